"""Generated documentation, the lock and the example agree with what they describe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from octavo.cli.agents import read_agents
from octavo.cli.reference import reference

ROOT = Path(__file__).parents[2]


def test_the_command_line_documentation_is_up_to_date() -> None:
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def pins() -> dict[str, str]:
    text = (ROOT / "requirements.txt").read_text() + (ROOT / "requirements-dev.txt").read_text()
    found = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {re.sub("[._]", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("extra", [None, "cli", "server", "gguf", "models", "dev"])
def test_the_lock_pins_what_the_project_asks_for(extra: str | None) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    locked = pins()
    for requirement in map(Requirement, wanted):
        if requirement.name != "octavo":
            assert requirement.specifier.contains(locked[requirement.name]), requirement


def test_the_example_agents_ask_what_was_written() -> None:
    handbook = (ROOT / "examples/handbook.txt").read_text()
    cast = read_agents(ROOT / "examples/agents.toml", None)
    assert len(cast.agents) == 4
    for agent in cast.agents:
        source = handbook + str(agent.prompt)
        assert agent.expect in source and agent.question in str(agent.prompt)
