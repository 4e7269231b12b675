"""The engine: who runs this step (scheduler), the model's step (batch, runner), the next token (sampler),
text (output), and the loop around them (engine, worker)."""
