"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    monkeypatch.chdir(ROOT)
    exec(compile(found[1], "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "Bonny Heron" in shown and "Nora Pendry" in shown and "Hercules" in shown
