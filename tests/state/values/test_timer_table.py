"""Stored timers: their bytes, for any number of earlier keys."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barrier_runtime.state.keys.key_codec import decode_key, encode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.kv.shard import PREFIX_BYTES
from barrier_runtime.state.values import timer_table
from tests.drawn import examples
from tests.state.backend_bench import Bench, checkpoint, of_operator


@pytest.mark.parametrize("bound", [("_MOST", 10), ("_MOST_BYTES", 200), ("_MOST", 1 << 30)])
@pytest.mark.parametrize(
    "keys",
    [
        [(None,), *((f"key \0 {number}",) for number in range(100))],
        [(number - 50, f"{number % 3}") for number in range(100)],
    ],
    ids=["one field", "two fields"],
)
def test_a_timer_is_stored_by_group_state_time_and_key(
    keys: list[tuple[Any, ...]], bound: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_table, *bound)
    backend = Bench(tmp_path, kind="memory").open()
    backend.timer_table("others", len(keys[0]))
    table = backend.timer_table("@timers", len(keys[0]))
    timers = [(time, key) for key in keys for time in (-(1 << 63), -1, 0, 1 << 40, (1 << 63) - 1)]
    for timer in timers:
        table.put(timer, True)
    checkpoint(backend, 1)
    stored = dict(backend._shard.scan_state(table._state_id))
    assert sorted(stored) == sorted(
        backend._shard.prefix(key_group(key, 128), table._state_id) + encode_key((time, *key)) for time, key in timers
    )
    assert set(stored.values()) == {b"\x01"}
    for timer in timers:
        table.delete(timer)
    checkpoint(backend, 2)
    assert dict(backend._shard.scan_state(table._state_id)) == {}
    backend.close()


@pytest.mark.slow
def test_what_waits_is_bounded_whatever_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Firing timers scans all waiting timers, so their number is bounded."""
    monkeypatch.setattr(timer_table, "_MOST_WAITING", 1_000)
    bench = Bench(tmp_path, kind="memory", cache_bytes=1 << 30)
    backend = bench.open()
    table = backend.timer_table("@timers", 1)
    for number in range(5_000):
        table.put((number, ("key",)), True)
        assert len(table.waiting()) <= 2 * 1_000
    snapshot = of_operator(checkpoint(backend, 1))
    backend.close()
    restored = bench.open([snapshot]).timer_table("@timers", 1)
    assert sum(1 for _ in restored.scan()) == 5_000
    assert restored.waiting() == []


STEP = st.one_of(
    st.tuples(st.just("list"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["put", "delete", "get"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["checkpoint", "freeze", "waiting", "scan", "of key"]), st.just(0)),
)


@pytest.mark.slow
@example([("delete", 1), ("list", 1), ("list", 2), ("list", 3), ("checkpoint", 0)])
@example([("list", 1), ("waiting", 0), ("list", 1), ("delete", 1), ("checkpoint", 0)])
@given(st.lists(STEP, max_size=25))
@examples(150)
def test_timers_in_lists_are_younger_than_all_others(steps: list[tuple[str, int]]) -> None:
    """Compared with a set, for any order of calls and any moment of writing the lists."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Bench(Path(folder), kind="memory").open()
        table = backend.timer_table("@timers", 1)
        table.spilled_at_once = 3
        true: set[Any] = set()
        for number, (what, time) in enumerate(steps, 1):
            timer = time, ("key",)
            if what == "list":
                table.times.append(time)
                table.keys.append(("key",))
                true.add(timer)
                if len(table.times) >= table.spilled_at_once:
                    table.write_listed()
            elif what == "put":
                table.put(timer, True)
                true.add(timer)
            elif what == "delete":
                table.delete(timer)
                true.discard(timer)
            elif what == "get":
                assert (table.get(timer) is not None) is (timer in true)
                assert not (table.is_deleted(timer) and timer in true)
            elif what == "waiting":
                assert set(table.waiting()) <= true
            elif what == "scan":
                assert sorted(each for each, _ in table.scan()) == sorted(true)
            elif what == "of key":
                assert table.of_key(("key",), 0) == sorted(at for at, _ in true)
            elif what == "freeze":
                backend.snapshots.freeze(number)
            elif what == "checkpoint":
                checkpoint(backend, number)
                stored = [each for each, _ in backend._shard.scan_state(table._state_id)]
                assert len(stored) == len(true)
        assert sorted(each for each, _ in table.scan()) == sorted(true)
        backend.close()


def test_what_is_in_lists_waits_as_all_that_is_not_written(tmp_path: Path) -> None:
    table = Bench(tmp_path, kind="memory").open().timer_table("@timers", 1)
    table.times.append(7)
    table.keys.append(("key",))
    assert table.waiting() == [(7, ("key",))]


def test_timers_in_lists_are_written_while_others_wait(tmp_path: Path) -> None:
    """Otherwise a few timers that are due soon would make all others as expensive."""
    backend = Bench(tmp_path, kind="memory").open()
    table = backend.timer_table("@timers", 1)
    table.delete((1, ("key",)))
    for time in (7, 8):
        table.times.append(time)
        table.keys.append(("key",))
        table.put((2, ("key",)), True)
    assert table.times == [7, 8]
    table.write_listed()
    assert [decode_key(key, PREFIX_BYTES) for key, _ in backend._shard.scan_state(table._state_id)] == [
        (7, "key"),
        (8, "key"),
    ]
    assert table.waiting() == [(2, ("key",))]
    backend.close()
