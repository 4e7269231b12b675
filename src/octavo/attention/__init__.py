"""From a flat batch of tokens to attention over pages: plan what to read, choose who reads it, hook into the
model."""
