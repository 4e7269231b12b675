"""The command line. Every verb is a small file: parse, call, print.

Commands are imported when they are named, torch and models when they run, so `octavo --help` is quick.
"""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run `octavo` with `arguments` (the process's own by default) and return the exit status.

    0 done, 1 the work failed, 2 the input is wrong, 130 interrupted.
    """
    try:
        import click  # noqa: F401
    except ImportError:
        import sys

        print("octavo: error: the command line needs click; pip install 'octavo[cli]'", file=sys.stderr)
        return 1
    from octavo.cli.app import run_app

    return run_app(arguments)
