"""Kernels on a CPU: their sources compiled by g++ against emulation/, which does in C++ what a GPU's
instructions do. Slow, and blind to races within a warp; but waits that are missing show, and no GPU is
needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import octavo.kernels.decode as decoding
from octavo.kernels.compile import sources
from octavo.kernels.launch import as_ctypes
from octavo.kernels.variants import SHARED_LIMIT

__all__ = ["load_kernel", "stand_in"]

HERE = Path(__file__).parent / "emulation"
COMPILE = ["g++", "-std=c++20", "-O1", "-w", "-fpermissive", "-fPIC", "-U_FORTIFY_SOURCE"]
"""Fortified jumps take one from stack to stack for a mistake."""
CTAS = 3
"""Few, so that a CTA has many pages and more than one segment."""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int = 0) -> None:
    """kernels.decode on the CPU from now on; `folder` keeps what is compiled, `seed` orders the threads."""
    for made in ("decode_kernel", "wide_kernel", "merge_kernel"):
        monkeypatch.setattr(decoding, made, getattr(decoding, made).__wrapped__)
    monkeypatch.setattr(decoding, "load_kernel", load_kernel(folder, seed))
    monkeypatch.setattr(decoding, "multiprocessors", lambda: CTAS)
    monkeypatch.setattr(decoding, "shared_limit", lambda: SHARED_LIMIT)
    monkeypatch.setattr(decoding, "make_parts", poisoned_parts)


def poisoned_parts(
    rows: int, channels: int, _: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """What nobody wrote shows."""
    return torch.full((rows * channels,), torch.nan, dtype=dtype), torch.full((rows * 2,), torch.nan)


def load_kernel(folder: Path, seed: int = 0) -> Callable[..., Callable[..., None]]:
    """What stands in for kernels.launch.load_kernel: kernels of `folder`, one CTA after another."""

    def load(
        file: str, name: str, defines: tuple[tuple[str, int], ...], threads: int, shared: int, **_: bool
    ) -> Callable[..., None]:
        macros = dict(defines) | {"SHARED_BYTES": shared}
        library = compile_for_cpu(file, name, tuple(macros.items()), threads, folder)
        return lambda grid, *arguments: run(library, grid, seed, *arguments)

    return load


def run(library: ctypes.CDLL, grid: tuple[int, int, int], seed: int, *arguments: object) -> None:
    """Launch a kernel of `grid` CTAs, one CTA after another."""
    library.run(*map(ctypes.c_int, (*grid, seed)), *map(as_ctypes, arguments))


@cache
def compile_for_cpu(
    file: str, kernel: str, defines: tuple[tuple[str, int], ...], threads: int, folder: Path
) -> ctypes.CDLL:
    """`kernel` of cuda/`file` as a library with one function, run(grid, seed, the kernel's parameters)."""
    texts = {**sources(), **{path.name: path.read_text() for path in HERE.iterdir()}}
    place = folder / hashlib.sha256(repr((file, kernel, threads, defines, texts)).encode()).hexdigest()[:16]
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text.replace("extern __shared__", "extern"))
    (place / "constants.h").write_text(_constants(sources()["common.cuh"]))
    (place / "main.cpp").write_text(_main(file, kernel, threads))
    macros = [f"-D{name}={value}{'u' * (value > 0x7FFFFFFF)}" for name, value in defines]
    given = [*macros, "-D__CUDA_ARCH__=900", "-include", library_headers(folder)]
    subprocess.run([*COMPILE, *given, "-shared", "main.cpp", "-o", "kernel.so"], cwd=place, check=True)
    return ctypes.CDLL(str(place / "kernel.so"))


@cache
def library_headers(folder: Path) -> Path:
    """What the emulation includes of C++'s library, parsed once for all kernels of `folder`: that is half of
    what compiling most of them takes."""
    texts = [path.read_text() for path in sorted(HERE.iterdir())]
    found = [line for text in texts for line in re.findall(r"^#include <.*>$", text, re.M)]
    header = folder / "library.h"
    header.write_text("\n".join(["#pragma once", *found]))
    subprocess.run([*COMPILE, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return header


def _constants(common: str) -> str:
    """What of cuda/common.cuh is plain C++: its structures and numbers."""
    found = re.findall(r"^(?:struct alignas|constexpr)[^\n]*;", common, re.M)
    return "\n".join(line for line in found) + "\n"


def _main(file: str, kernel: str, threads: int) -> str:
    found = re.search(rf"\n{kernel}\((.*?)\) \{{", sources()[file], re.DOTALL)
    assert found, f"{file} has no kernel {kernel}"
    parameters = found[1].replace("\n", " ")
    names = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
    return (
        f'#include "{file}"\n'
        f'extern "C" void run(int x, int y, int z, int seed, {parameters}) {{\n'
        f"  srand(seed);\n  launch({{x, y, z}}, {threads}, [&] {{ {kernel}({names}); }});\n}}\n"
    )
