"""Every run of the tests is the same run: one thread, fixed examples, the same seed before every test."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is no fault of the code
)
hypothesis.settings.load_profile("same")


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)


def pytest_runtest_call() -> None:
    torch.manual_seed(1)  # whether or not this test was the one for which a module's fixtures were made
