"""Slope per hour of a sampled figure, with the error of the slope, and the verdict. Pure.

Samples of a process belong to a *life*. Lives share a slope and have levels of their own, so that a restarted process
neither hides nor feigns growth. The error takes into account that samples of neighbouring minutes resemble each other
(Newey and West).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["grows", "flat", "unclear"]
Life = Sequence[tuple[float, float]]  # (hours, value)
_SIGMAS = 2.0
_FEWEST = 4  # samples of all lives


@dataclass(frozen=True)
class Limit:
    """Greatest growth per hour that counts as flat: a share of the mean, at least `least`."""

    share: float
    least: float


@dataclass(frozen=True)
class Slope:
    per_hour: float
    error: float  # a standard error
    mean: float
    samples: int

    def verdict(self, limit: Limit) -> Verdict:
        allowed = max(limit.least, limit.share * abs(self.mean))
        if self.per_hour - _SIGMAS * self.error > allowed:
            return "grows"
        return "flat" if self.per_hour + _SIGMAS * self.error <= allowed else "unclear"


def slope(lives: Sequence[Life]) -> Slope | None:
    """None if there are too few samples."""
    parts = [np.array(life, dtype=float) for life in lives if len(life) > 1]
    count = sum(len(part) for part in parts)
    if count < max(_FEWEST, len(parts) + 2):
        return None
    centred = [part - part.mean(axis=0) for part in parts]
    spread = sum(float((part[:, 0] ** 2).sum()) for part in centred)
    if not spread:
        return None
    per_hour = sum(float((part[:, 0] * part[:, 1]).sum()) for part in centred) / spread
    scores = [part[:, 0] * (part[:, 1] - per_hour * part[:, 0]) for part in centred]
    residual = sum(float(((part[:, 1] - per_hour * part[:, 0]) ** 2).sum()) for part in centred)
    usual = residual / (count - len(parts) - 1) / spread
    related = sum(_long_run(score) for score in scores) / spread**2
    mean = float(np.concatenate([part[:, 1] for part in parts]).mean())
    return Slope(per_hour, float(np.sqrt(max(usual, related))), mean, count)


def _long_run(score: np.ndarray) -> float:
    """Sum of the scores' covariances, the farther apart the less."""
    lags = min(len(score) - 1, int(4 * (len(score) / 100) ** (2 / 9)) + 1)
    found = float((score**2).sum())
    for lag in range(1, lags + 1):
        found += 2 * (1 - lag / (lags + 1)) * float((score[lag:] * score[:-lag]).sum())
    return found
