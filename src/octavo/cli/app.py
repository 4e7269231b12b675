"""The `octavo` command itself: finds verbs, suggests the nearest for a mistyped one, reports errors."""

from __future__ import annotations

import difflib
import sys
import traceback
from importlib import import_module

import click

from octavo.errors import InvalidRequest, OctavoError, UnknownDocument, UnsupportedModel

__all__ = ["VERBS", "Verbs", "octavo", "run_app"]

VERBS = {
    "models": "octavo.cli.models",
    "run": "octavo.cli.run",
    "chat": "octavo.cli.chat",
    "serve": "octavo.cli.serve",
    "info": "octavo.cli.info",
    "formats": "octavo.cli.formats",
    "calibrate": "octavo.cli.calibrate",
    "bench": "octavo.cli.bench",
    "eval": "octavo.cli.eval",
}
"""Verb → module, whose click command is `command`, or module:name."""

INPUT_ERRORS = (InvalidRequest, UnsupportedModel, UnknownDocument)


class Verbs(click.Group):
    """A group whose commands are imported when they are asked for."""

    def __init__(self, *, verbs: dict[str, str], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        module, _, name = self.verbs[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.verbs:
            near = difflib.get_close_matches(name, self.verbs, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(self.verbs)
            ctx.fail(f"unknown command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="octavo", message="%(prog)s %(version)s")
@click.pass_context
def octavo(ctx: click.Context, debug: bool) -> None:
    """Long contexts from any Hugging Face causal LM, on a compressed, shared, paged KV pool.

    MODEL is a built-in name (`octavo models`), a folder, a .gguf file or a hub id.
    """
    ctx.meta["octavo.debug"] = debug


def run_app(arguments: list[str] | None = None) -> int:
    """Run the command line; every error becomes one line on stderr and an exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = arguments[:1] == ["--debug"]
    try:
        result = octavo.main(args=arguments, prog_name="octavo", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.Abort:
        return fail("interrupted", 130)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        return fail(*explain(error))


def explain(error: Exception) -> tuple[str, int]:
    """The line that tells of `error`, and the exit status."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "octavo"
        return f"{error.format_message().rstrip('.')} (see {where} --help)", 2
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, OctavoError):
        return str(error), 2 if isinstance(error, INPUT_ERRORS) else 1
    return f"{type(error).__name__}: {error}; `octavo --debug ...` shows where", 1


def fail(message: str, status: int) -> int:
    click.echo("octavo: error: " + " ".join(message.split()), err=True)
    return status
