"""Who asks what in a fan-out: agents from a file, or made up to a given size."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.text import read_text
from octavo.errors import InvalidFile, InvalidRequest, unknown

if TYPE_CHECKING:
    from octavo.model.tokenizer import Tokenizer

__all__ = ["Agent", "Cast", "made_up", "read_agents"]

SETTINGS = {"agent": list, "layout": str, "raw": bool, "stop": list}
FIELDS = {"name": str, "instructions": str, "question": str, "expect": str}


@dataclass(frozen=True)
class Agent:
    """One reader of the document. `prompt` follows the document; `expect` should occur in the answer."""

    name: str
    prompt: str | Sequence[int]
    question: str = ""
    expect: str = ""


@dataclass(frozen=True)
class Cast:
    """Agents, whether they continue the document as bare text, and what ends their answers."""

    agents: list[Agent]
    raw: bool
    stop: tuple[str, ...] = ()


def read_agents(path: str | Path, most: int | None) -> Cast:
    """The first `most` agents of a TOML file.

    It has [[agent]] tables of name, instructions, question and expect. `layout` says how a prompt is made
    of {instructions} and {question}; `raw` that it continues the document without a chat template; `stop`
    lists what ends an answer.
    """
    try:
        found = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidFile(f"{path} is not TOML: {error}") from error
    checked(found, SETTINGS, str(path))
    tables = found.get("agent", [])
    if not tables:
        raise InvalidFile(f"{path} has no [[agent]] tables; give each a name and a question")
    if most is not None and most > len(tables):
        raise InvalidRequest(f"{most} agents were asked for, but {path} has {len(tables)}; lower --agents")
    layout = found.get("layout", "{instructions}\n\n{question}")
    agents = [make_agent(table, layout, f"{path}, agent {n}") for n, table in enumerate(tables[:most], 1)]
    return Cast(agents, found.get("raw", False), tuple(found.get("stop", ())))


def make_agent(table: Any, layout: str, where: str) -> Agent:
    if not isinstance(table, dict):
        raise InvalidFile(f"{where} is {table!r}; write it as an [[agent]] table")
    checked(table, FIELDS, where)
    for name in ("name", "question"):
        if not table.get(name, "").strip():
            raise InvalidFile(f"{where} has no {name}; add one")
    prompt = layout.replace("{instructions}", table.get("instructions", "")).replace(
        "{question}", table["question"]
    )
    return Agent(table["name"], prompt, table["question"], table.get("expect", ""))


def checked(table: dict[str, Any], known: Mapping[str, type], where: str) -> None:
    """Raise InvalidFile for a name that is not known and a value of another type."""
    for name, value in table.items():
        if name not in known:
            raise InvalidFile(f"{where}: {unknown('setting', name, known)}")
        if not isinstance(value, known[name]):
            raise InvalidFile(f"{where}: {name} is {value!r}; it must be a {known[name].__name__}")


def made_up(tokenizer: Tokenizer, agents: int, tokens: int) -> Cast:
    """Agents whose private suffixes have exactly `tokens` tokens each, all of them different."""
    found = []
    for n in range(1, agents + 1):
        text = f"\n\nAgent {n} keeps the private number {7919 * n} and asks what the text above is about. "
        ids = tokenizer.encode(text, special=False)
        ids *= -(-tokens // len(ids))
        found.append(Agent(f"agent {n}", ids[:tokens]))
    return Cast(found, raw=True)
