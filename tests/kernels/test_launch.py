"""Launches: what is set up is what is sent, whoever else uses the kernel."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pytest
import torch

from octavo.kernels.launch import Kernel

pytest.importorskip("cuda.bindings", reason="cuda-core launches the kernels")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Each thread on a stream of its own, on a driver that does nothing."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda _: threading.get_ident() % 1000, raising=False
    )
    return Kernel(None, 128, 0)


def test_threads_send_one_launch_at_a_time(kernel: Kernel) -> None:
    sent: list[tuple[int, ...]] = []

    def launch(config: Any, _: object, arguments: int, __: object) -> tuple[object]:
        seen = config.gridDimX, int(config.hStream)
        time.sleep(1e-4)  # another thread runs meanwhile
        first = ctypes.cast(arguments, ctypes.POINTER(ctypes.POINTER(ctypes.c_int)))[0][0]
        sent.append((*seen, config.gridDimX, int(config.hStream), first))
        return (kernel.done,)

    kernel.launch = launch
    threads = [
        threading.Thread(target=lambda n=n: [kernel((n, 1, 1), n) for _ in range(50)]) for n in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == 150 and {entry[0] for entry in sent} == {1, 2, 3}
    for grid, stream, grid_after, stream_after, argument in sent:
        assert grid == grid_after == argument and stream == stream_after
    assert len({(grid, stream) for grid, stream, *_ in sent}) == 3


def test_a_launch_that_breaks_leaves_the_kernel_free(kernel: Kernel) -> None:
    def launch(*_: object) -> None:
        raise KeyboardInterrupt

    kernel.launch = launch
    with pytest.raises(KeyboardInterrupt):
        kernel((1, 1, 1), 1)
    assert not kernel.lock.locked()
