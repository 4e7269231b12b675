"""A snapshot of what an engine has done and holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from octavo.engine.core import Core
from octavo.engine.stats import Stats

__all__ = ["take_stats"]


def take_stats(core: Core) -> Stats:
    """The engine's own counts, now. Raises OctavoError where Dual Chunk Attention should have been active."""
    clock, ledger, memory = core.clock, core.memory.ledger, core.memory
    pages = {
        store.group.name: {kind: asdict(group.allocator.count(kind)) for kind in ("plain", "packed")}
        for store, group in zip(memory.stores, ledger.groups, strict=True)
    }
    return Stats(
        model=core.loaded.name,
        pages=pages,
        tokens={
            "computed": clock.prefill_tokens,
            "cached": clock.cached,
            "generated": clock.generated,
            "dropped": clock.dropped,
        },
        context_shifts=clock.shifts,
        prefix_hits=core.scheduler.hits,
        requests={
            "running": len(core.scheduler.running),
            "waiting": len(core.scheduler.waiting),
            "finished": clock.finished,
            "aborted": clock.aborted,
            "failed": clock.failed,
            "preempted": core.scheduler.preempted,
        },
        documents=sum(d.ready for d in core.documents.values()),
        cells={"now": memory.cells, "peak": clock.peak_cells},
        bytes={"live": memory.live_bytes, "peak": clock.peak_bytes, "budget": memory.budget},
        chunk=memory.chunk,
        backend={"name": core.backend.name, "reason": core.backend.reason},
        recipe=core.recipe.as_dict(),
        tokens_per_s={
            "prefill": clock.prefill_tokens / clock.prefill_s if clock.prefill_s else 0.0,
            "decode": clock.decode_tokens / clock.decode_s if clock.decode_s else 0.0,
        },
        pool=[asdict(size) for size in memory.sizes],
        dca=dca_stats(core),
    )


def dca_stats(core: Core) -> dict[str, Any] | None:
    if core.dual is None or core.dca is None:
        return None
    return core.dca.as_dict() | {"layers": sorted(core.dual.layers), "rows": core.dual.verify()}
