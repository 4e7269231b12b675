"""What a figure belongs to: commit, device, versions."""

from __future__ import annotations

import os
import platform
import subprocess

import torch
import transformers


def where() -> dict[str, str]:
    """Commit (OCTAVO_COMMIT where the tree has no history), device and versions."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    commit = os.environ.get("OCTAVO_COMMIT") or found.stdout.strip() or "unknown"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
    return {
        "commit": commit,
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
