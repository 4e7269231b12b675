"""Formats for each layer within a budget of bits, by what each layer's keys and values can bear.

Each side of each layer is quantised alone, at a probing format. The loss of small errors is quadratic, so

    KLD(formats) ≈ Σ sides  kld at the probe · mse(format) / mse(probe)

which is separable: starting from the fewest bits, the upgrade that saves most per byte is taken until the
budget is spent. That is an estimate; `Judge` on other text says whether it came true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from octavo.errors import InvalidRequest
from octavo.evaluation.judge import Judge
from octavo.evaluation.sizes import bits_per_value, packed_layers
from octavo.formats.base import Side
from octavo.formats.codec import PageCodec
from octavo.formats.ladder import ladder
from octavo.formats.registry import get_format
from octavo.model.shape import ModelShape
from octavo.recipe import Recipe, layers_of

__all__ = ["FORMATS", "PROBE", "Sensitivity", "best_uniform", "check_budget", "fit_budget", "probe_layers"]

FORMATS = ("turbo2_tcq", "turbo3_tcq", "turbo4_tcq", "q6_0", "turbo8")
"""What layers may get, from few bits to many."""
PROBE = "turbo3_tcq"


@dataclass(frozen=True)
class Sensitivity:
    """Mean KLD in nats when one side of one layer is kept in `PROBE` and all else is plain."""

    layer: int
    side: Side
    kld: float


@dataclass(frozen=True)
class Choice:
    """One side of one layer in one format: bytes of a page, and the KLD it is expected to add."""

    format: str
    nbytes: int
    kld: float


def probe_layers(
    judge: Judge,
    recipe: Recipe,
    shape: ModelShape,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Sensitivity]:
    """The sensitivity of both sides of every layer that the recipe packs; 2 passes a layer."""
    found: list[Sensitivity] = []
    layers = packed_layers(recipe, shape)
    for n in layers:
        for side, pair in (("k", f"{PROBE}:plain"), ("v", f"plain:{PROBE}")):
            alone = recipe.with_(k="plain", v="plain", layers=f"{n}={pair}")
            found.append(Sensitivity(n, side, judge.kld(alone)))  # type: ignore[arg-type]
            progress("layers", len(found), 2 * len(layers))
    return found


def fit_budget(
    found: Sequence[Sensitivity],
    recipe: Recipe,
    shape: ModelShape,
    bits: float,
    formats: Sequence[str] = FORMATS,
) -> Recipe:
    """`recipe` with formats by layer: the least expected KLD at `bits` stored bits a value or less."""
    check_budget(recipe, shape, bits, formats)
    choices = [choices_of(s, recipe, shape, formats) for s in found]
    at = [0] * len(found)
    values = sum(64 * shape.layers[s.layer].kv_heads * shape.layers[s.layer].head_dim for s in found)
    left = bits * values / 8 - sum(ladder[0].nbytes for ladder in choices)
    while steps := [step for n, i in enumerate(at) for step in upgrades(n, i, choices[n], left)]:
        _, n, to = max(steps)
        left -= choices[n][to].nbytes - choices[n][at[n]].nbytes
        at[n] = to
    chosen = {(s.layer, s.side): choices[n][at[n]].format for n, s in enumerate(found)}
    return by_layer(chosen, recipe, shape)


def check_budget(recipe: Recipe, shape: ModelShape, bits: float, formats: Sequence[str] = FORMATS) -> None:
    """Raise InvalidRequest where the smallest of `formats` in all layers is more than `bits` bits a value."""
    least, name = min((bits_per_value(recipe.with_(k=f, v=f), shape), f) for f in formats)
    if not bits >= least:  # nor is not-a-number enough
        raise InvalidRequest(
            f"{bits:g} bits a value are too few: {name} in all layers takes {least:.4g} on this model"
        )


def upgrades(n: int, at: int, choices: Sequence[Choice], left: float) -> list[tuple[float, int, int]]:
    """(KLD saved per byte, side, choice) for every better choice of one side that the bytes left allow."""
    now = choices[at]
    more = [(to, choices[to]) for to in range(at + 1, len(choices))]
    return [
        ((now.kld - c.kld) / (c.nbytes - now.nbytes), n, to)
        for to, c in more
        if now.nbytes < c.nbytes <= now.nbytes + left and c.kld < now.kld
    ]


def choices_of(s: Sensitivity, recipe: Recipe, shape: ModelShape, formats: Sequence[str]) -> list[Choice]:
    """What one side of one layer may be kept in, by bytes."""
    layer = shape.layers[s.layer]
    mse = {rung.name: rung.mse for rung in ladder(layer.head_dim)}
    centred = recipe.centre and s.side == "k"
    dtype: torch.dtype = getattr(torch, shape.dtype)
    found = []
    for name in formats:
        form = get_format(name)
        codec = PageCodec(form, layer.head_dim, s.side, centred=centred and form.quantised, dtype=dtype)
        found.append(Choice(name, codec.nbytes * layer.kv_heads, s.kld * mse[name] / mse[PROBE]))
    return sorted(found, key=lambda choice: choice.nbytes)


def by_layer(chosen: dict[tuple[int, Side], str], recipe: Recipe, shape: ModelShape) -> Recipe:
    """A recipe whose k and v are the commonest pair, the other layers named."""
    layers = sorted({layer for layer, _ in chosen})
    pairs = {n: f"{chosen[n, 'k']}:{chosen[n, 'v']}" for n in layers}
    usual = max(pairs.values(), key=list(pairs.values()).count)
    k, _, v = usual.partition(":")
    told = layers_of([pairs.get(n, usual) for n in range(len(shape.layers))], usual)
    return recipe.with_(k=k, v=v, layers=told)


def best_uniform(
    found: Sequence[Sensitivity],
    recipe: Recipe,
    shape: ModelShape,
    bits: float,
    formats: Sequence[str] = FORMATS,
) -> Recipe:
    """`recipe` with the one pair of formats for all layers that is expected to lose least at those bits."""
    loss = dict.fromkeys(product(formats, formats), 0.0)
    for s in found:
        for choice in choices_of(s, recipe, shape, formats):
            for k, v in loss:
                loss[k, v] += choice.kld if choice.format == (k if s.side == "k" else v) else 0.0
    check_budget(recipe, shape, bits, formats)
    _, (k, v) = min(
        (kld, pair)
        for pair, kld in loss.items()
        if bits_per_value(recipe.with_(k=pair[0], v=pair[1]), shape) <= bits
    )
    return recipe.with_(k=k, v=v)
