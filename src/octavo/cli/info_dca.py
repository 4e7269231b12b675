"""What `octavo info` says of Dual Chunk Attention."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo import Recipe
    from octavo.model.shape import ModelShape

__all__ = ["dual_chunk", "told_dca"]


def dual_chunk(model: str, shape: ModelShape, recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Dual Chunk Attention: what it would do for sequences of `tokens`, and which layers take part.

    `layers` is None where only the loaded weights can say; `refused` is why it cannot be.
    """
    from octavo.model.turned import turned_layers
    from octavo.recipe.dca import resolve_dca

    found: dict[str, Any] = {"trained": shape.context, "setting": recipe.dca}
    turned = turned_layers(model)
    full = {n for n, layer in enumerate(shape.layers) if layer.window is None}
    part = full if turned is None else full & turned
    if not part:
        lacking = "no full-attention layer has RoPE" if full else "all layers slide over windows"
        return {**found, "refused": f"{lacking}, and sliding layers keep true positions"}
    dca = resolve_dca(recipe.with_(dca="on"), shape.context, None)
    assert dca is not None
    on = resolve_dca(recipe, shape.context, tokens) is not None
    layers = None if turned is None else sorted(part)
    return {**found, "on": on, "chunk": dca.chunk, "mscale": dca.mscale, "layers": layers}


def told_dca(dca: dict[str, Any], tokens: int) -> str:
    if "refused" in dca:
        return f"Dual Chunk Attention cannot be: {dca['refused']}"
    trained = f"{dca['trained']:,}"
    if dca["setting"] == "off":
        return f"Dual Chunk Attention is off: a context beyond the {trained} tokens trained is refused"
    when = f"is on: trained on {trained}"
    if dca["setting"] == "auto":
        state, side = ("on", "beyond") if dca["on"] else ("off", "up to")
        when = f"(auto) is {state} with --context {tokens}, as with any {side} the {trained} tokens trained"
    scaled = f", mscale {dca['mscale']:g}" if dca["mscale"] != 1 else ""
    who = "all full-attention layers" if dca["layers"] is None else f"layers {ranges(dca['layers'])}"
    return f"Dual Chunk Attention {when}; chunks of {dca['chunk']:,}{scaled}, {who}"


def ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] → "0-2, 5"."""
    told = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        part = [n for _, n in run]
        told.append(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}")
    return ", ".join(told)
