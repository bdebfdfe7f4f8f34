"""Deletable records of the decision log. Pure.

A new log after a deleted job uses the positions again, so the first record is compared before each deletion. Design:
docs/design/log-compaction.md.
"""

from collections.abc import Container

from barrier_runtime.coordinator.log.records import FIRST_POSITION, Fence, Lead, Record

STEP = 1_024  # a power of two; between STEP and 2 STEP records are in reach, more while sinks have not committed


def is_milestone(position: int, step: int = 0) -> bool:
    """`step` of another log: a power of two."""
    return position % (step or STEP) == 0 or position & (position - 1) == 0


def milestone_after(position: int, step: int = 0) -> int:
    step = step or STEP
    return (position // step + 1) * step


def base_of(record: Record | None) -> int:
    """Lowest position in reach after `record`."""
    return FIRST_POSITION if record is None else record.base or FIRST_POSITION


def is_due(base: int, position: int) -> bool:
    return position - base >= 2 * STEP


def base_after(base: int, position: int, committed: int) -> int:
    """`committed`: position of the last decision that all sinks have committed. Sinks read later decisions."""
    return max(base, min(position - STEP, committed) // STEP * STEP)


def may_go(position: int, record: Record, base: int, kept: Container[int]) -> bool:
    if position >= base or is_milestone(position) or position in kept:
        return False
    return not isinstance(record, Fence | Lead)
