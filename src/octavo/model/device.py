"""Where a model runs."""

from __future__ import annotations

import torch

from octavo.errors import InvalidRequest

__all__ = ["find_device"]


def find_device(name: str) -> torch.device:
    """The device of that name, "cpu" or "cuda:1"; "auto" takes the GPU if there is one.

    Raises InvalidRequest for one that is not here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:  # as PyTorch was built
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidRequest(f"device {name!r} does not exist here: {reason}; try cpu") from error
    return device
