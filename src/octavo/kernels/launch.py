"""Compiled kernels as callables on PyTorch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from threading import Lock

import torch

from octavo.kernels.compile import KernelsUnavailable, compile_kernel, unavailable

__all__ = [
    "VECTOR_THREADS",
    "Kernel",
    "as_ctypes",
    "load_kernel",
    "multiprocessors",
    "shared_limit",
    "sorted_defines",
    "vector_defines",
    "vector_grid",
]


class Kernel:
    """A function of a loaded cubin. Arguments: tensors (addresses), None, ctypes numbers, int as 32 bits.

    Threads may share one: a launch is set up and sent by one at a time.
    """

    def __init__(self, function: object, threads: int, shared_bytes: int) -> None:
        from cuda.bindings import driver

        self.function = function
        self.launch, self.done = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        self.config = driver.CUlaunchConfig()
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = threads, 1, 1
        self.config.sharedMemBytes = shared_bytes
        self.config.numAttrs = 0
        self.lock = Lock()

    def follow_early(self) -> None:
        """From now on start while the kernel before still runs."""
        from cuda.bindings import driver

        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        self.config.attrs, self.config.numAttrs = [attribute], 1

    def __call__(self, grid: tuple[int, int, int], *arguments: object) -> None:
        values = [as_ctypes(a) for a in arguments]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = self.config
        with self.lock:
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
            result = self.launch(config, self.function, ctypes.addressof(addresses), 0)
        if result[0] != self.done:
            _check(result)


@cache
def load_kernel(
    source: str,
    name: str,
    defines: tuple[tuple[str, int], ...],
    threads: int,
    shared: int,
    *,
    early: bool = False,
    own: bool = False,
) -> Kernel:
    """The function `name` of cuda/`source`, compiled with these macros for the current device.

    early  may start while the kernel before still runs, on Hopper and later; the source waits where it must
    own    uses instructions of the device's own generation alone
    """
    from cuda.bindings import driver

    if reason := unavailable():
        raise KernelsUnavailable(reason)
    torch.cuda.current_stream()  # makes the device's context current
    torch.zeros(1, device="cuda")
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}{'a' if own else ''}"
    module = _check(driver.cuModuleLoadData(compile_kernel(source, dict(defines), arch)))
    function = _check(driver.cuModuleGetFunction(module, name.encode()))
    attributes = driver.CUfunction_attribute
    _check(
        driver.cuFuncSetAttribute(
            function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
        )
    )
    # Alike for all: a multiprocessor stands still while it moves the border between cache and shared memory.
    _check(
        driver.cuFuncSetAttribute(
            function, attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100
        )
    )
    made = Kernel(function, threads, shared)
    made.module = module
    if early and major >= 9:
        made.follow_early()
    return made


@cache
def multiprocessors() -> int:
    """Of the current device."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


@cache
def shared_limit() -> int:
    """Bytes of shared memory a CTA of the current device may use."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin


def sorted_defines(defines: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Macros as a cache key."""
    return tuple(sorted(defines.items()))


VECTOR_WARPS = 4
VECTOR_THREADS = 32 * VECTOR_WARPS
"""Of a CTA of the kernels around cuda/vector.cuh, where a warp has a vector of channels."""


def vector_grid(count: int) -> tuple[int, int, int]:
    """CTAs for so many vectors."""
    return -(-count // VECTOR_WARPS), 1, 1


def vector_defines(head_dim: int, half: bool, **more: int) -> tuple[tuple[str, int], ...]:
    """Macros of cuda/vector.cuh, and more."""
    return sorted_defines({"HD": head_dim, "HALF": int(half), "WARPS": VECTOR_WARPS} | more)


def as_ctypes(value: object) -> ctypes._SimpleCData:
    """An argument as a kernel takes it."""
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return value


def _check(result: tuple) -> object:
    """The value of a driver call; KernelsUnavailable names the error it met."""
    from cuda.bindings import driver

    code, *rest = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise KernelsUnavailable(f"the CUDA driver answered {code.name}")
    return rest[0] if rest else None
