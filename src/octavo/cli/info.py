"""`octavo info`: what a model is, what its cache costs, and what will run."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.info_dca import dual_chunk, told_dca
from octavo.cli.options import announce_conversion, cache_options, make_recipe
from octavo.cli.output import emit, json_option, size, table

if TYPE_CHECKING:
    from octavo import Recipe
    from octavo.model.shape import ModelShape

__all__ = ["cache_bytes", "command"]

CONTEXT = 100_000
MIXED = (("q8_0", "q4_0"), ("q8_0", "turbo3"), ("turbo4", "turbo3"))


@click.command("info")
@click.argument("model")
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=CONTEXT,
    show_default=True,
    metavar="TOKENS",
    help="Length of the sequence that the last columns are about.",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@cache_options
@json_option
def command(model: str, tokens: int, device: str, as_json: bool, **options: Any) -> None:
    """Show a model's layers by group, its KV bytes for each pair of formats, and what will run and why.

    No weights are read. Without formats or a recipe file all usual pairs are shown.
    """
    recipe = make_recipe(options)
    announce_conversion(model)
    from octavo.model.load import inspect_model

    shape = inspect_model(model)
    recipe.check(shape, model)
    chosen = any(options[name] for name in ("k", "v", "layers", "recipe"))
    found: dict[str, Any] = {
        "model": model,
        "architecture": shape.architecture,
        "parameters": shape.parameters or None,
        "context": shape.context,
        "dtype": shape.dtype,
        "groups": groups(shape),
        "tokens": tokens,
        "formats": [costs(shape, r, tokens) for r in ([recipe] if chosen else pairs(recipe))],
        "layers": layers(shape, recipe) if chosen else [],
        "evidence": evidence(options["recipe"]),
        "backend": backend(device, shape, recipe),
        "dca": dual_chunk(model, shape, recipe, tokens),
        "notes": list(shape.notes),
    }
    if as_json:
        emit(found)
    else:
        show(found)


def groups(shape: ModelShape) -> list[dict[str, Any]]:
    return [
        {
            "name": g.name,
            "layers": len(g.layers),
            "kv_heads": g.kv_heads,
            "q_heads": shape.layers[g.layers[0]].q_heads,
            "head_dim": g.head_dim,
            "window": g.window,
        }
        for g in shape.groups
    ]


def pairs(recipe: Recipe) -> list[Recipe]:
    """`recipe` with each format on both sides, and with the usual pairs whose keys have more bits."""
    from octavo.formats.registry import format_names

    names = format_names()
    mixed = [
        (k, v)
        for k, v in (("q8_0", "q4_0"), ("q8_0", "turbo3"), ("turbo4", "turbo3"))
        if {k, v} <= set(names)
    ]
    return [recipe.with_(k=k, v=v) for k, v in [*((n, n) for n in names), *mixed]]


def costs(shape: ModelShape, recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Bits a value and bytes of one more token, and of a sequence of `tokens`."""
    from octavo.cli.fanout import dense_bytes

    total, further = cache_bytes(shape, recipe, tokens)
    return {
        "pair": recipe.pair,
        "bytes_per_token": further,
        "bytes": total,
        "of_dense_16_bit": total / dense_bytes(shape, tokens),
    }


def layers(shape: ModelShape, recipe: Recipe) -> list[dict[str, Any]]:
    """Formats of each layer, and what a page of it takes; sliding layers that stay plain say so."""
    import torch

    from octavo.pages.store import Store

    found = []
    for group in shape.groups:
        store = Store(group, recipe, getattr(torch, shape.dtype))
        for n, layer in enumerate(group.layers):
            k, v = recipe.formats(layer) if store.packs else ("plain", "plain")
            nbytes = store.layer_bytes[n] if store.packs else store.plain_bytes // len(group.layers)
            row = {"layer": layer, "k": k, "v": v, "scaled": store.scales[n] is not None}
            found.append({**row, "page_bytes": nbytes})
    return sorted(found, key=lambda row: int(row["layer"]))


def evidence(path: str | None) -> dict[str, Any]:
    """What a recipe file says justified it; dates, nan and inf, which JSON does not have, as words."""
    from octavo.recipe import RecipeFile

    found = dict(RecipeFile.read(path).evidence) if path else {}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str), parse_constant=str)
    return plain


def cache_bytes(shape: ModelShape, recipe: Recipe, tokens: int) -> tuple[int, float]:
    """(bytes of one sequence's pages at `tokens` tokens, bytes of a further token), by the pool's page sizes.

    Windows are counted as far as they reach; first, young and open pages as plain ones.
    """
    import torch

    from octavo.formats.base import PAGE
    from octavo.pages.store import Store

    total, further = 0, 0.0
    for group in shape.groups:
        store = Store(group, recipe, getattr(torch, shape.dtype))
        pages = -(-tokens // PAGE)
        if group.window is not None:  # the next token sees window - 1 tokens and itself
            pages -= max(0, tokens - group.window + 1) // PAGE
        packed = max(0, pages - recipe.exact_pages - recipe.recent // PAGE - 1) if store.packed_bytes else 0
        total += packed * store.packed_bytes + (pages - packed) * store.plain_bytes
        if group.window is None:
            further += (store.packed_bytes or store.plain_bytes) / PAGE
    return total, further


def backend(device: str, shape: ModelShape, recipe: Recipe) -> dict[str, str]:
    from octavo.attention.dispatch import choose_backend
    from octavo.model.device import find_device

    place = find_device(device)
    choice = choose_backend(place, shape, recipe)
    return {"device": str(place), "name": choice.name, "reason": choice.reason}


def runs(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Equal neighbours as one row."""
    told = []
    for _, same in groupby(rows, lambda row: [row[name] for name in ("k", "v", "scaled", "page_bytes")]):
        part = list(same)
        first, last = part[0]["layer"], part[-1]["layer"]
        where = str(first) if first == last else f"{first}-{last}"
        scaled = "yes" if part[0]["scaled"] else "no"
        told.append([where, part[0]["k"], part[0]["v"], scaled, part[0]["page_bytes"]])
    return told


def show(found: dict[str, Any]) -> None:
    parameters = f"{found['parameters']:,} parameters, " if found["parameters"] else ""
    limits = f"{parameters}trained on {found['context']:,} tokens, {found['dtype']}"
    click.echo(f"{found['model']}: {found['architecture']}, {limits}")
    for note in found["notes"]:
        click.echo(f"note: {note}")
    click.echo()
    header = ["group", "layers", "KV heads", "query heads", "head dim", "window"]
    rows = [
        [g["name"], g["layers"], g["kv_heads"], g["q_heads"], g["head_dim"], g["window"]]
        for g in found["groups"]
    ]
    click.echo(table(header, rows) + "\n")
    header = ["K:V", "bytes/token", f"{found['tokens']:,} tokens", "of dense 16-bit"]
    rows = [
        [f["pair"], f["bytes_per_token"], size(f["bytes"]), f"{f['of_dense_16_bit']:.1%}"]
        for f in found["formats"]
    ]
    click.echo(table(header, rows) + "\n")
    if found["layers"]:
        header = ["layers", "K", "V", "scaled", "bytes/page"]
        click.echo(table(header, runs(found["layers"])) + "\n")
    for name, value in found["evidence"].items():
        click.echo(f"evidence: {name} = {value}")
    click.echo(told_dca(found["dca"], found["tokens"]))
    reads = found["backend"]
    click.echo(f"on {reads['device']}, pages are read by {reads['name']}: {reads['reason']}")
