"""The next decode step, begun before the host knows this one's tokens.

    host    settle n-1 | plan n+1, launch | wait for n | settle n | plan n+2, launch | ...
    GPU     ......... step n .............| ......... step n+1 ......... | ......

Once a step's keys and values are accounted for and old pages are sealed, all that the next step depends on is
settled but its tokens, and those the device has. Only whole sequences can still drop out: then their rows are
not used, and what they wrote lies in pages that whoever takes them next writes anew, later in stream order.
"""

from __future__ import annotations

from typing import Protocol

import torch

from octavo.engine.scheduler import Grant, Scheduler
from octavo.engine.sequence import Sequence
from octavo.errors import PoolFull

__all__ = ["Ahead", "Decoder"]


class Decoder(Protocol):
    """Runs steps in which every grant decodes one token."""

    def run(self, grants: list[Grant], ids: torch.Tensor | None = None) -> torch.Tensor | None:
        """Logits [B, V], or None if there are too many; `ids` [B] are the tokens that only the device knows.
        Launches only."""

    def clear(self) -> None:
        """Give back what steps were captured as."""


class Ahead:
    """At most one step of `decoder` whose logits nobody has asked for yet."""

    def __init__(self, scheduler: Scheduler, decoder: Decoder | None):
        self.scheduler, self.decoder = scheduler, decoder
        self._rows: dict[tuple[Sequence, int], int] = {}  # by what was stored of the sequence
        self._logits: torch.Tensor | None = None
        self._preempted = 0

    def begin(self, sampled: list[Sequence], tokens: torch.Tensor) -> None:
        """Launch the step in which `sampled` go on from their new tokens [W], if no other step can come next.

        Takes the pages for it, as the scheduler is about to: it serves those that decode before all others.
        """
        on = [n for n, s in enumerate(sampled) if len(s.tokens) + 1 < s.limit]
        if self.decoder is None or not on or not self._certain(sampled, len(on)):
            return
        going = [sampled[n] for n in on]
        try:
            for sequence in going:
                self.scheduler.ledger.extend(sequence.holding, sequence.computed + 1)
        except PoolFull:  # the scheduler decides who gives way
            return
        if len(on) < len(sampled):
            tokens = tokens[places(on, tokens.device)]
        self._logits = self.decoder.run([Grant(s, 1) for s in going], tokens)
        self._rows = {(s, s.computed): row for row, s in enumerate(going)}
        self._preempted = self.scheduler.preempted

    def take(self, grants: list[Grant]) -> torch.Tensor | None:
        """Logits [B, V] of the sequences that decode in this step, if they have run; asked once a step."""
        logits, rows, self._logits, self._rows = self._logits, self._rows, None, {}
        if logits is None or self._preempted != self.scheduler.preempted:
            return None
        wanted = [(g.sequence, g.sequence.computed) for g in grants]
        if not wanted or any(key not in rows for key in wanted):
            return None
        at = [rows[key] for key in wanted]
        return logits[: len(at)] if at == list(range(len(at))) else logits[places(at, logits.device)]

    def _certain(self, sampled: list[Sequence], going: int) -> bool:
        """Whether the next step only decodes, unless a request comes in between."""
        scheduler = self.scheduler
        full = len(scheduler.running) >= scheduler.max_sequences and going == len(sampled)
        return len(sampled) == len(scheduler.running) and (full or not scheduler.waiting)


def places(rows: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(rows).to(device, non_blocking=True)
