"""CUDA C++ becomes machine code at first use, by NVRTC through cuda-core, and stays on disk.

A cubin is kept in OCTAVO_CACHE (default ~/.cache/octavo) under kernels/, named by the hash of all that it
depends on: sources, macros, architecture, and the versions of NVRTC, driver and cuda-core. Files are
written whole or not at all and carry their own checksum, so processes may share the folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from octavo.errors import OctavoError

__all__ = ["KernelsUnavailable", "cache_folder", "compile_kernel", "sources", "unavailable"]

SOURCES = Path(__file__).parent / "cuda"

OLDEST = (8, 0)
"""The first compute capability the kernels run on (Ampere)."""


class KernelsUnavailable(OctavoError):
    """The GPU kernels cannot run here; the message says what is missing."""


def cache_folder() -> Path:
    """Where cubins are kept."""
    root = os.environ.get("OCTAVO_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "octavo") / "kernels"


@cache
def sources() -> dict[str, str]:
    """File name → text of every CUDA source."""
    return {
        path.name: path.read_text() for path in sorted(SOURCES.iterdir()) if path.suffix in (".cu", ".cuh")
    }


@cache
def unavailable() -> str | None:
    """Why the kernels cannot run in this process; None where they can."""
    import torch

    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    found = torch.cuda.get_device_capability()
    if found < OLDEST:
        return (
            f"the GPU has compute capability {found[0]}.{found[1]}; the kernels need {OLDEST[0]}.{OLDEST[1]}"
        )
    try:
        _cuda_core()
    except KernelsUnavailable as error:
        return str(error)
    return None


def compile_kernel(name: str, defines: Mapping[str, int], arch: str) -> bytes:
    """The cubin of cuda/`name` for `arch` ("sm_90") with these macros; compiled if it is not on disk.

    Raises KernelsUnavailable where cuda-core is missing, and where the compiler refuses, with its log.
    """
    path = cache_folder() / f"{_key(name, defines, arch)}.cubin"
    cubin = _read(path)
    if cubin is None:
        cubin = _compile(name, defines, arch)
        _write(path, cubin)
    return cubin


def _cuda_core():
    try:
        import cuda.core as core

        if not hasattr(core, "Program"):
            import cuda.core.experimental as core
    except ImportError as error:
        raise KernelsUnavailable(
            f"the GPU kernels need cuda-core ({error}); install it with pip install 'cuda-core[cu13]'"
        ) from None
    return core


@cache
def _versions() -> str:
    _cuda_core()
    from cuda.bindings import driver, nvrtc

    try:
        installed = driver.cuDriverGetVersion()[1]
    except Exception:  # no driver on a machine that only compiles
        installed = 0
    return f"nvrtc {nvrtc.nvrtcVersion()[1:]} driver {installed} cuda-core {metadata.version('cuda-core')}"


def _key(name: str, defines: Mapping[str, int], arch: str) -> str:
    parts = [name, arch, _versions(), repr(sorted(defines.items())), repr(sorted(sources().items()))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(name: str, defines: Mapping[str, int], arch: str) -> bytes:
    core = _cuda_core()
    macros = [(key, f"{value}u" if value > 0x7FFFFFFF else str(value)) for key, value in defines.items()]
    options = core.ProgramOptions(
        name=name, arch=arch, std="c++17", define_macro=macros, ftz=True,
        include_path=str(SOURCES), no_source_include=True,
    )  # fmt: skip
    try:
        return bytes(core.Program(sources()[name], "c++", options).compile("cubin").code)
    except Exception as error:
        raise KernelsUnavailable(f"NVRTC refused {name} for {arch} with {dict(defines)}: {error}") from error


def _read(path: Path) -> bytes | None:
    """The cubin in `path`, or None where there is none or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write(path: Path, cubin: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(hashlib.sha256(cubin).digest() + cubin)
    os.replace(file.name, path)
