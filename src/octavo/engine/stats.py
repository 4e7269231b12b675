"""What the engine has done and holds, as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Clock", "Stats"]


@dataclass
class Clock:
    """Tokens and seconds of the engine's own steps. A step with any prefill counts as prefill as a whole."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    steps: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    shifts: int = 0
    dropped: int = 0
    peak_cells: int = 0
    peak_bytes: int = 0

    def record(self, prefill: int, decode: int, sampled: int, seconds: float) -> None:
        """One step: tokens of prefills, tokens of decoding sequences, tokens sampled."""
        self.steps += 1
        self.generated += sampled
        if prefill:
            self.prefill_tokens += prefill
            self.prefill_s += seconds
        else:
            self.decode_tokens += decode
            self.decode_s += seconds


@dataclass(frozen=True)
class Stats:
    """A snapshot.

    pages     per layer group and kind: live, cached, free, total slots
    tokens    computed (prompt tokens run through the model), cached (prompt tokens read from shared pages),
              generated, dropped (by context shifts)
    cells     token slots held: now and at the peak, open pages included
    bytes     of held pages now and at the peak, and the pool's budget
    chunk     most prompt tokens of a step
    backend   what reads the pages, and why
    dca       Dual Chunk Attention: chunk, mscale, trained length, why it is on, the layers that take part and
              the rows that read each band; None where it is off
    """

    model: str
    pages: dict[str, dict[str, dict[str, int]]]
    tokens: dict[str, int]
    prefix_hits: int
    context_shifts: int
    requests: dict[str, int]
    documents: int
    cells: dict[str, int]
    bytes: dict[str, int]
    chunk: int
    backend: dict[str, str]
    recipe: dict[str, Any]
    tokens_per_s: dict[str, float]
    pool: list[dict[str, Any]] = field(default_factory=list)
    dca: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
