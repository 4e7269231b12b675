"""`octavo bench`: measurements."""

from __future__ import annotations

from octavo.cli.app import Verbs

__all__ = ["command"]

command = Verbs(
    name="bench",
    verbs={"fanout": "octavo.cli.fanout"},
    help="Measure what Octavo costs and saves.",
)
