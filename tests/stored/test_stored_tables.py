"""Checkpoints of earlier releases are read as tables: each row read by the job is in every state, or in flight.

These releases did not store names and types of keys; columns are `key_1`, `key_2`, and untyped values are JSON.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_rows import row, rows
from test_stored_files import HERE, WINDOW_MS, at_ms

from barrier_runtime.state_tables import StoredState, open_checkpoint
from tests.unpacked import unpack

pytestmark = pytest.mark.slow


@pytest.fixture(params=["aligned", "unaligned"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredState]:
    unpack(HERE / f"f69d69f-{request.param}.tar.xz", tmp_path)
    with open_checkpoint(str(tmp_path / "checkpoints"), "stored") as opened:
        yield opened


def table(stored: StoredState, operator: str, state: str) -> list[dict[str, Any]]:
    if (operator, state) not in {(each.operator, each.state) for each in stored.tables()}:
        return []
    return stored.table(operator, state).read_all().to_pylist()  # type: ignore[no-any-return]


def taken(stored: StoredState, operator: str) -> list[dict[str, Any]]:
    """Rows of the fixed files that this step has taken."""
    positions = [each for each in stored.positions().to_pylist() if each["source"] == "fixed"]
    read = [row("fixed", int(at["split"][5:10]), number) for at in positions for number in range(at["rows"])]
    in_flight = {each["n"] for each in table(stored, operator, "in_flight_0")}
    assert len(positions) == 6
    return [each for each in read if each["n"] not in in_flight]


def test_aggregates_and_values_are_of_the_rows_that_were_read(stored: StoredState) -> None:
    rows = taken(stored, "running")
    sums: Counter[int] = Counter()
    for each in rows:
        sums[each["k"]] += each["n"]
    counts = Counter(each["k"] for each in rows)
    running = {each["key_1"]: (each["rows"], each["sum:n"]) for each in table(stored, "running", "running")}
    assert running == {key: (counts[key], sums[key]) for key in counts}
    seen = {each["key_1"]: int(each["value"]) for each in table(stored, "quiet", "seen")}
    assert seen == Counter(each["k"] for each in taken(stored, "quiet"))


def test_open_windows_hold_their_rows(stored: StoredState) -> None:
    rows = taken(stored, "windows")
    windows = table(stored, "windows", "windows")
    assert windows
    for window in windows:
        start = window["key_2"]
        of_it = [each for each in rows if each["k"] == window["key_1"] and start <= at_ms(each) < start + WINDOW_MS]
        told = (window["rows"], window["sum:n"], window["min:x"], window["max:x"])
        xs = [each["x"] for each in of_it]
        assert told == (len(of_it), sum(each["n"] for each in of_it), min(xs), max(xs))


def test_timers_are_those_that_their_keys_have_set(stored: StoredState) -> None:
    timers = {(each["key_1"], each["key_2"]) for each in table(stored, "quiet", "@timers")}
    assert timers == {(each["key_1"], int(each["value"])) for each in table(stored, "quiet", "timer")} != set()


def test_ids_that_were_seen_and_transactions_that_wait(stored: StoredState) -> None:
    ids = {each["key_1"] for each in table(stored, "once", "seen")}
    assert ids
    assert ids <= {each["n"] for each in rows("watched")}
    pending = stored.pending().to_pylist()
    assert pending
    assert all(each["checkpoint"] <= stored.checkpoint and each["committable"] for each in pending)
