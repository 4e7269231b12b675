"""`octavo eval`: what a recipe costs in quality, and reports of it."""

from __future__ import annotations

from octavo.cli.app import Verbs

__all__ = ["command"]

command = Verbs(
    name="eval",
    verbs={
        "kld": "octavo.cli.eval_kld",
        "ppl": "octavo.cli.eval_ppl",
        "equivalence": "octavo.cli.eval_equivalence",
        "ruler": "octavo.cli.eval_ruler",
        "mrcr": "octavo.cli.eval_mrcr",
        "ladder": "octavo.cli.eval_ladder",
        "compare": "octavo.cli.eval_compare",
        "lm-eval": "octavo.cli.eval_lm",
    },
    help="Measure what a KV recipe costs in quality. Each command writes a report folder.",
)
