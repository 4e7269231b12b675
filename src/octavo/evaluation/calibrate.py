"""Key statistics of a model on a text, and the channel scales that follow from them.

Scales equalise a KV head's channels before they are rotated and quantised (InnerQ): keys
times s, queries divided by s. With rms over tokens and over both channels of a RoPE pair,

    s = (rms_q / rms_k) ** ½, of geometric mean 1 in a head, within [1/16, 16]

It is equal within a pair, so it commutes with RoPE and can be taken from turned keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from octavo.engine.engine import Engine
from octavo.errors import InvalidRequest
from octavo.evaluation.windows import Windows
from octavo.formats.base import PAGE
from octavo.recipe import Scales

__all__ = ["Statistics", "choose_scales", "collect"]

_MOST = 16.0
_LEAST_RMS = 1e-6
_CHUNK = 512


@dataclass
class Sums:
    """One layer's sums over tokens, float64: keys and their squares [G, D], squares of queries (over the
    query heads of a KV head) and of values [G, D]."""

    k: Tensor
    k2: Tensor
    q2: Tensor
    v2: Tensor
    tokens: int

    def __add__(self, more: Sums) -> Sums:
        k, k2, q2, v2 = self.k + more.k, self.k2 + more.k2, self.q2 + more.q2, self.v2 + more.v2
        return Sums(k, k2, q2, v2, self.tokens + more.tokens)


@dataclass
class Statistics:
    """What layers' keys, queries and values look like after RoPE; the first `skip` rows of a step do not
    count."""

    sums: dict[int, Sums] = field(default_factory=dict)
    skip: int = 0

    def see(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Add a step's q [T, H, D], k and v [T, G, D]."""
        q, k, v = (x[self.skip :].double() for x in (q, k, v))
        t, g, d = k.shape
        q2 = q.reshape(t, g, -1, d).square().mean(2).sum(0)
        new = Sums(k.sum(0), k.square().sum(0), q2, v.square().sum(0), t)
        old = self.sums.get(layer)
        self.sums[layer] = old + new if old else new

    @property
    def tokens(self) -> int:
        """Tokens that counted."""
        return next(iter(self.sums.values())).tokens if self.sums else 0

    def tensors(self) -> dict[str, Tensor]:
        """key_mean, key_rms, query_rms and value_rms [G, D] float32 of each layer, by name."""
        found = {}
        for n, s in sorted(self.sums.items()):
            found[f"layers.{n}.key_mean"] = s.k / s.tokens
            for name, square in (("key", s.k2), ("query", s.q2), ("value", s.v2)):
                found[f"layers.{n}.{name}_rms"] = (square / s.tokens).sqrt()
        return {name: x.float().cpu() for name, x in found.items()}


def collect(
    engine: Engine, windows: Windows, progress: Callable[[str, int, int], None] = lambda *_: None
) -> Statistics:
    """Statistics of the windows' tokens, without each window's first page: that one is kept exactly."""
    if windows.ctx <= PAGE:
        raise InvalidRequest(f"windows of {windows.ctx} tokens end with their first page of {PAGE}")
    statistics = Statistics()
    with engine.watched(statistics.see):
        for n, tokens in enumerate(windows.rows, 1):
            statistics.skip = PAGE
            for _ in engine.score(tokens, chunk=_CHUNK):
                statistics.skip = 0
            progress("statistics", n, len(windows.rows))
    return statistics


def ratio(k2: Tensor, q2: Tensor) -> Tensor:
    """Mean squares [G, D] → scales [G, D]."""
    log = 0.25 * (q2.clamp_min(_LEAST_RMS**2).log() - k2.clamp_min(_LEAST_RMS**2).log())
    return (log - log.mean(-1, keepdim=True)).exp().clamp(1 / _MOST, _MOST)


def choose_scales(statistics: Statistics, partners: Sequence[Tensor]) -> Scales:
    """Scales of every layer; `partners` are `rope_partners` of the model."""
    scales = {}
    for layer, s in statistics.sums.items():
        pair = partners[layer].to(s.k2.device)
        k2, q2 = ((x + x[:, pair]) / (2 * s.tokens) for x in (s.k2, s.q2))
        scales[layer] = ratio(k2, q2).float()
    return Scales(scales, "ratio")
