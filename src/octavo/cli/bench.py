"""`octavo bench`: measurements."""

from __future__ import annotations

from octavo.cli.app import Verbs

__all__ = ["command"]

command = Verbs(
    name="bench",
    verbs={
        "fanout": "octavo.cli.fanout",
        **{name: f"octavo.cli.bench_gpu:{name}" for name in ("kernels", "decode", "prefill", "memory")},
    },
    help="Measure what Octavo costs and saves.",
)
