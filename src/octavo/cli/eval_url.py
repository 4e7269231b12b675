"""Who answers prompts: an engine made here, or a server behind --url."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.eval_options import make_bench
from octavo.cli.options import RECIPE, on_command_line, shared

if TYPE_CHECKING:
    from octavo.evaluation.answers import Answerer
    from octavo.evaluation.log import SampleLog
    from octavo.evaluation.protocols import TextTokenizer
    from octavo.evaluation.setup import Bench
    from octavo.recipe import Recipe

__all__ = ["Source", "answerer_of", "url_options"]

URL = (
    click.option(
        "--url",
        metavar="URL",
        help="An OpenAI-compatible server (…/v1) that answers instead of an engine made here.",
    ),
    click.option("--url-model", metavar="NAME", help="The model's name on the server.  [default: MODEL]"),
    click.option(
        "--send",
        type=click.Choice(["tokens", "text"]),
        default="tokens",
        show_default=True,
        help="How prompts are sent to the server.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="For one answer of the server.",
    ),
    click.option(
        "--api-key",
        envvar="OPENAI_API_KEY",
        metavar="KEY",
        help="For the server.  [default: $OPENAI_API_KEY]",
    ),
)


url_options = shared(URL)
"""--url and what belongs to it."""


@dataclass(frozen=True)
class Source:
    """Makes answerers. `local` tells an engine from a server."""

    bench: Bench | None
    options: dict[str, Any]
    model: str
    tokens: int
    batch: int
    tokenizer: TextTokenizer

    @property
    def local(self) -> bool:
        return self.bench is not None

    def setup(self, **more: Any) -> dict[str, Any]:
        """What a report says about how it was measured."""
        if self.bench is not None:
            return self.bench.setup(**more)
        from octavo.evaluation.identity import version

        url = self.options["url"]
        return {
            "model_name": f"{self.model} at {url}",
            "model": self.model,
            "url": url,
            "version": version(),
            **more,
        }

    def log(self, folder: Path, recipe: Recipe, target: str, told: dict[str, Any]) -> SampleLog:
        """The answers of earlier runs that asked the same of the same: `told` says what was asked.

        Raises InvalidFile where the folder has those of another run.
        """
        from octavo.evaluation.log import SampleLog

        server = {"url": str(self.options["url"]).rstrip("/"), "send": self.options["send"]}
        by = {"recipe": recipe.as_dict()} if self.local else server
        name = target.replace(":", "-").replace("/", "-")
        return SampleLog(folder / f"samples-{name}.jsonl", {**told, "target": target, **by})

    @contextmanager
    def open(self, recipe: Recipe) -> Iterator[tuple[Answerer, str]]:
        """An answerer, and what to call it in tables."""
        if self.bench is None:
            yield self._server(), self.options["url_model"] or self.model
            return
        from octavo.evaluation.answers import EngineAnswerer

        room = self.tokens * self.batch
        with self.bench.engine(recipe, tokens=room, sequences=self.batch) as engine:
            yield EngineAnswerer(engine, batch=self.batch), recipe.pair

    def _server(self) -> Answerer:
        from octavo.evaluation.client import UrlAnswerer

        return UrlAnswerer(
            self.options["url"],
            self.options["url_model"] or self.model,
            timeout=self.options["timeout"],
            concurrent=self.batch,
            send=self.options["send"],
            tokenizer=self.tokenizer,
            api_key=self.options["api_key"],
        )


def refuse_engine_options() -> None:
    """What a server has settled for itself cannot be asked for here."""
    if option := on_command_line("formats", "device", "dtype", "recipe", *RECIPE):
        raise click.UsageError(
            f"{option} is for an engine made here; with --url the server has its own setting"
        )


def answerer_of(model: str, options: dict[str, Any], *, tokens: int, batch: int) -> Source:
    """Load the model, or only its tokenizer where a server answers."""
    if options["url"]:
        refuse_engine_options()
        from octavo.evaluation.setup import load_tokenizer

        return Source(None, options, model, tokens, batch, load_tokenizer(model))
    if option := on_command_line("url_model", "send", "timeout", "api_key"):
        raise click.UsageError(f"{option} is for a server, and an engine made here answers; add --url")
    bench = make_bench(model, options)
    return Source(bench, options, model, tokens, batch, bench.loaded.tokenizer)
