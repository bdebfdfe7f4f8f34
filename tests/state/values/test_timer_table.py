"""How timers are stored: their bytes, however many keys have come before."""

from pathlib import Path
from typing import Any

import pytest

from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.values import known_keys, timer_table
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
    monkeypatch.setattr(known_keys, *bound)
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


def test_what_waits_is_bounded_whatever_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fires timers looks at all that wait, so they may not be very many."""
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
