"""Late rows that steps dropped, from the status. Pure."""

from barrier_runtime.coordinator.metric_table import LATE_LEFT_ROWS, LATE_RIGHT_ROWS, LATE_ROWS
from barrier_runtime.coordinator.status.statistics import totals
from barrier_runtime.coordinator.status.status import JobStatus

_COUNTERS = frozenset(each.name for each in (LATE_ROWS, LATE_LEFT_ROWS, LATE_RIGHT_ROWS))


def late_rows(status: JobStatus) -> dict[str, int]:
    """Returns the number of late rows that each step dropped, over all slots. Steps without such rows are missing."""
    found: dict[str, float] = {}
    for key, rows in totals(slot.metrics for slot in status.slots).items():
        step, _, metric = key.rpartition(".")
        if metric in _COUNTERS and rows:
            found[step] = found.get(step, 0.0) + rows
    return {step: int(rows) for step, rows in sorted(found.items())}


def late_rows_in_words(status: JobStatus) -> str:
    """Returns "19 rows too late for 'hourly' dropped", with all such steps; empty if no late row was dropped."""
    dropped = late_rows(status)
    steps = ", ".join(f"{rows:,} row{'s' if rows > 1 else ''} too late for {step!r}" for step, rows in dropped.items())
    return f"{steps} dropped" if steps else ""
