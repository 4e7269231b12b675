"""One request's tokens and pages. Every length is a property of a few integers.

0 ........ cached ........ computed ........ prompt ........ len(tokens) ........ limit
  read from shared pages   keys and values stored              known so far
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.requests import Sampling
from octavo.pages.ledger import Holding
from octavo.pages.prefix import Key

__all__ = ["Sequence"]


@dataclass(eq=False)
class Sequence:
    """`base` is the document's sequence it is forked from; `limit` the most tokens it may reach.

    `keys` name the complete pages of its tokens; pages [0, led) no longer keep followers waiting.
    """

    id: int
    tokens: list[int]
    prompt: int
    limit: int
    sampling: Sampling
    holding: Holding
    base: Sequence | None = None
    computed: int = 0
    cached: int = 0
    entered: bool = False
    pinned: bool = False
    keys: list[Key] = field(default_factory=list)
    led: int = 0

    @property
    def pending(self) -> int:
        """Known tokens whose keys and values are not stored yet."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        return self.pending == 1 and self.generated > 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def done(self) -> bool:
        """A document's sequence ends with its prefill."""
        return self.pinned and self.pending == 0
