"""Search for the highest rate an engine holds: doubles until not held, then halves the ratio. Pure."""

from collections.abc import Sequence

_FINE = 1.15  # a held rate and a rate not held this close to each other are the answer


def next_rate(tried: Sequence[tuple[float, bool]], first: float, lowest: float, highest: float) -> float | None:
    """The rate to try next, rows per second; None if the highest held rate is known (0 if none is held)."""
    held = [rate for rate, ok in tried if ok]
    lost = [rate for rate, ok in tried if not ok]
    if not tried:
        return first
    if not lost:
        best = max(held)
        return min(best * 2, highest) if best < highest else None
    bound = min(lost)
    below = [rate for rate in held if rate < bound]
    if not below:
        return max(bound / 2, lowest) if bound > lowest else None
    best = max(below)
    return None if bound / best <= _FINE else round((bound * best) ** 0.5)


def highest_held(tried: Sequence[tuple[float, bool]]) -> float:
    """The highest held rate below all rates that were not held; 0 if there is none."""
    bound = min((rate for rate, ok in tried if not ok), default=float("inf"))
    return max((rate for rate, ok in tried if ok and rate < bound), default=0.0)
