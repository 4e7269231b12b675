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
    """`base` is the document's sequence it is forked from; `limit` the most tokens it may hold.

    `keys` name the complete pages of its tokens; pages [0, led) no longer keep followers waiting.

    Under context shift (`sampling.context_shift`) tokens behind the first `keep` are dropped when the limit
    is reached, `dropped` so far. Pages computed in sight of dropped ones are its own (`private`), and tokens
    run at positions `offset` beyond their place.
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
    keys: list[Key] = field(default_factory=list, repr=False)
    led: int = 0
    keep: int = 0
    dropped: int = 0
    offset: int = 0
    answer: int = 0

    def __post_init__(self) -> None:
        self.answer = self.prompt  # where generated tokens begin in `tokens`

    @property
    def private(self) -> bool:
        return self.offset > 0

    @property
    def room(self) -> int:
        """Tokens that can still be stored."""
        return self.limit - self.computed

    def drop(self, first: int, count: int) -> None:
        """Forget `count` stored tokens from token `first` on; those behind them move up."""
        del self.tokens[first : first + count]
        self.computed -= count
        self.dropped += count
        self.offset += count
        self.answer = max(min(self.answer, first), self.answer - count)
        self.base, self.keys, self.led = None, [], 0

    def restart(self) -> None:
        """Nothing is stored any more; what is left of the tokens is computed anew, from position 0."""
        self.computed = self.offset = 0

    @property
    def pending(self) -> int:
        """Known tokens whose keys and values are not stored yet."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        return self.pending == 1 and self.generated > 0

    @property
    def generated(self) -> int:
        return self.dropped + len(self.tokens) - self.prompt

    @property
    def done(self) -> bool:
        """A document's sequence ends with its prefill."""
        return self.pinned and self.pending == 0
