"""`octavo eval compare`: two reports side by side."""

from __future__ import annotations

from pathlib import Path

import click

from octavo.cli.eval_options import finish
from octavo.cli.output import check_folder, json_option

__all__ = ["command"]

REPORT = click.Path(exists=True, path_type=Path)


@click.command("compare")
@click.argument("a", type=REPORT)
@click.argument("b", type=REPORT)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports/compare"),
    show_default=True,
    metavar="DIR",
    help="Report folder.",
)
@json_option
def command(a: Path, b: Path, out: Path, as_json: bool) -> None:
    """Compare report folders A and B of the same command, and say which differences exceed their uncertainty.

    Where each measured one recipe, the two recipes are compared; where several, equal ones are.
    """
    check_folder(out, "--out")
    from octavo.evaluation.compare import compare_reports, same_input
    from octavo.evaluation.identity import version
    from octavo.evaluation.present import compare_report
    from octavo.evaluation.report import load_report

    reports = load_report(a), load_report(b)
    found, only = compare_reports(*reports)
    setup = {"a": str(a), "b": str(b), "same input": same_input(*reports), "version": version()}
    report = compare_report(found, only, setup)
    finish(report, out, report.results, as_json)
