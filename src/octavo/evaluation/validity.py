"""Whether a model and a text can judge formats at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log

__all__ = ["Validity", "check_control", "check_reference"]

MAX_ENTROPY_SHARE = 0.60
MAX_PPL = 1000.0
MIN_CONTROL_TOP1 = 0.98
MAX_CONTROL_KLD = 0.02


@dataclass(frozen=True)
class Validity:
    """`reasons` says why a run is invalid; empty when it is valid."""

    reasons: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.reasons


def check_reference(entropy: float, vocab: int, ppl: float) -> Validity:
    """Whether the reference's own predictions mean anything: flat ones make every format look perfect.

    entropy    mean entropy in nats
    """
    reasons = []
    share = entropy / log(vocab)
    if not share < MAX_ENTROPY_SHARE:
        reasons.append(
            f"the reference's mean entropy is {entropy:.2f} nats, {share:.0%} of log V; a usable text stays "
            f"under {MAX_ENTROPY_SHARE:.0%}: give prose in a language the model knows"
        )
    if not (isfinite(ppl) and ppl < MAX_PPL):
        reasons.append(
            f"the reference's perplexity is {ppl:,.0f}; it must be under {MAX_PPL:,.0f}: the model does not "
            "understand this text"
        )
    return Validity(tuple(reasons))


def check_control(top1: float, mean_kld: float, dtype: str = "float32") -> Validity:
    """Whether q8_0, which is known to be harmless, looks harmless here; `dtype` the model's."""
    reasons = []
    coarse = "; rounding to bfloat16 alone moves near ties: try --dtype float16 or float32"
    hint = coarse if dtype == "bfloat16" else ""
    if not top1 >= MIN_CONTROL_TOP1:
        reasons.append(
            f"the q8_0 control keeps the top token in {top1:.3f} of positions; below {MIN_CONTROL_TOP1} the "
            f"instrument (model, text or engine) is at fault, not the formats{hint}"
        )
    if not mean_kld <= MAX_CONTROL_KLD:
        reasons.append(
            f"the q8_0 control has a mean KLD of {mean_kld:.4f} nats; above {MAX_CONTROL_KLD} the instrument "
            f"(model, text or engine) is at fault, not the formats{hint}"
        )
    return Validity(tuple(reasons))
