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

import torch
from torch import Tensor

from octavo.kernels.compile import sources
from octavo.kernels.decode import LOG2_E, DevicePlan, LayerPool, merge_defines, table_of
from octavo.kernels.launch import as_ctypes
from octavo.kernels.variants import Variant, choose

__all__ = ["decode", "load_kernel"]

HERE = Path(__file__).parent / "emulation"
CTAS = 3
"""Few, so that a CTA has many pages and more than one segment."""


def decode(
    q: Tensor,
    pool: LayerPool,
    plan: DevicePlan,
    folder: Path,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """As kernels.decode.decode, on the CPU; `folder` keeps what is compiled, `seed` orders the threads."""
    _, heads, head_dim = q.shape
    variant = choose(
        pool.k, pool.v, head_dim, plan.most_rows,
        centred=pool.centred and pool.k != "plain", softcap=softcap > 0, half=q.dtype == torch.float16,
    )  # fmt: skip
    kv_heads, slices = heads // plan.group, head_dim // variant.slice
    slots = plan.max_runs * kv_heads * slices + CTAS
    parts = torch.full((slots * variant.rows * variant.slice,), float("nan"))
    parts_ml = torch.full((slots * variant.rows * 2,), float("nan"))
    out = q.new_empty(plan.outputs, heads, head_dim) if out is None else out
    view = plan.views
    walk, merge = _libraries(variant, folder)
    run(
        walk, (CTAS, 1, 1), seed,
        q, pool.k_packed, pool.v_packed, pool.k_plain, pool.v_plain,
        view["addresses"], view["runs"], view["rows"], plan.header, view["sees"],
        table_of(pool.k, q.device), table_of(pool.v, q.device), parts, parts_ml,
        ctypes.c_int64(q.stride(0)), ctypes.c_int64(q.stride(1)), kv_heads, plan.group,
        float(scale * LOG2_E), float(softcap * LOG2_E),
    )  # fmt: skip
    run(
        merge, (plan.outputs, heads, slices), seed,
        parts, parts_ml, view["runs"], plan.header, view["offsets"], view["links"], sinks, out,
        ctypes.c_int64(out.stride(0)), ctypes.c_int64(out.stride(1)), kv_heads, plan.group, CTAS,
    )  # fmt: skip
    return out


def load_kernel(folder: Path, seed: int = 0) -> Callable[..., Callable[..., None]]:
    """What stands in for kernels.launch.load_kernel: kernels of `folder`, one CTA after another."""

    def load(
        file: str, name: str, defines: tuple[tuple[str, int], ...], threads: int, shared: int
    ) -> Callable[..., None]:
        library = compile_for_cpu(name, dict(defines) | {"SHARED_BYTES": shared}, threads, folder)
        return lambda grid, *arguments: run(library, grid, seed, *arguments)

    return load


def run(library: ctypes.CDLL, grid: tuple[int, int, int], seed: int, *arguments: object) -> None:
    """Launch a kernel of `grid` CTAs, one CTA after another."""
    library.run(*map(ctypes.c_int, (*grid, seed)), *map(as_ctypes, arguments))


@cache
def _libraries(variant: Variant, folder: Path) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    walk = compile_for_cpu("decode", variant.defines(), 32 * variant.warps, folder)
    return walk, compile_for_cpu("merge", dict(merge_defines(variant)) | {"SHARED_BYTES": 0}, 256, folder)


def compile_for_cpu(kernel: str, defines: dict[str, int], threads: int, folder: Path) -> ctypes.CDLL:
    """cuda/`kernel`.cu as a library with one function, run(grid, seed, the kernel's parameters)."""
    texts = {**sources(), **{path.name: path.read_text() for path in HERE.iterdir()}}
    place = folder / hashlib.sha256(repr((kernel, threads, defines, texts)).encode()).hexdigest()[:16]
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text.replace("extern __shared__", "extern"))
    (place / "constants.h").write_text(_constants(sources()["common.cuh"]))
    (place / "main.cpp").write_text(_main(kernel, sources()[f"{kernel}.cu"], threads))
    macros = [f"-D{name}={value}{'u' * (value > 0x7FFFFFFF)}" for name, value in defines.items()]
    command = ["g++", "-std=c++20", "-O1", "-w", "-fpermissive", "-shared", "-fPIC", "-D__CUDA_ARCH__=900"]
    subprocess.run([*command, *macros, "main.cpp", "-o", "kernel.so"], cwd=place, check=True)
    return ctypes.CDLL(str(place / "kernel.so"))


def _constants(common: str) -> str:
    """What of cuda/common.cuh is plain C++: its structures and numbers."""
    found = re.findall(r"^(?:struct alignas|constexpr)[^\n]*;", common, re.M)
    return "\n".join(line for line in found) + "\n"


def _main(kernel: str, source: str, threads: int) -> str:
    found = re.search(rf"\n{kernel}\((.*?)\) \{{", source, re.DOTALL)
    assert found, f"{kernel}.cu has no kernel of that name"
    parameters = found[1].replace("\n", " ")
    names = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
    return (
        f'#include "{kernel}.cu"\n'
        f'extern "C" void run(int x, int y, int z, int seed, {parameters}) {{\n'
        f"  srand(seed);\n  launch({{x, y, z}}, {threads}, [&] {{ {kernel}({names}); }});\n}}\n"
    )
