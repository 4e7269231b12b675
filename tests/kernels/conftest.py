"""Where the kernels around attention run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from octavo.kernels import append, blend

from . import emulated


@pytest.fixture(scope="session")
def emulated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(
    request: pytest.FixtureRequest, emulated_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Tensors of the test lie there; on a CPU the kernels are emulated."""
    device: str = request.param
    if device == "cpu":
        if shutil.which("g++") is None:
            pytest.skip("g++ compiles the kernels for the CPU")
        monkeypatch.setattr(append, "_kernel", append._kernel.__wrapped__)
        for module in (append, blend):
            monkeypatch.setattr(module, "load_kernel", emulated.load_kernel(emulated_folder))
    torch.set_default_device(device)
    yield device
    torch.set_default_device(None)
