"""Summaries of samples, and how far a mean can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Interval", "bootstrap", "bootstrap_difference", "quantile"]

Interval = tuple[float, float]
_RESAMPLES = 2000
_SEED = 42


def quantile(sorted_values: Tensor, share: float) -> float:
    """The `share` quantile of ascending values, between neighbours linearly (numpy's default)."""
    place = share * (len(sorted_values) - 1)
    low = int(place)
    high = min(low + 1, len(sorted_values) - 1)
    a, b = float(sorted_values[low]), float(sorted_values[high])
    return a + (b - a) * (place - low)


def bootstrap(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """A percentile bootstrap interval of the mean of `values`; the same for the same values."""
    return _interval(_resampled_means(torch.tensor(values, dtype=torch.float64)), level)


def bootstrap_difference(
    a: Sequence[float], b: Sequence[float], *, paired: bool, level: float = 0.95
) -> Interval:
    """The interval of mean(b) − mean(a); `paired` values belong to the same samples in the same order."""
    left, right = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    if paired:
        return _interval(_resampled_means(right - left), level)
    return _interval(_resampled_means(right, seed=_SEED + 1) - _resampled_means(left), level)


def _resampled_means(values: Tensor, seed: int = _SEED) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    # A chunk of resamples at a time: 2,000 × n indices would be gigabytes for long texts.
    chunk = max(1, 4_000_000 // n)
    means = []
    for start in range(0, _RESAMPLES, chunk):
        rows = min(chunk, _RESAMPLES - start)
        picks = torch.randint(n, (rows, n), generator=generator)
        means.append(values[picks].mean(1))
    return torch.cat(means)


def _interval(means: Tensor, level: float) -> Interval:
    ordered = means.sort().values
    return quantile(ordered, (1 - level) / 2), quantile(ordered, (1 + level) / 2)
