"""Order of eviction: each entry once, old entries before new entries, at any position of the clock hand."""

import numpy as np
import pytest

from barrier_runtime.state.columns import column_rows
from barrier_runtime.state.columns.column_rows import GONE, Victims
from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.keys.row_index import IntKeys
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.store import MemoryKv


def victims() -> Victims:
    return Victims(EntryKeys(Shard(MemoryKv(), "o", 0, 128, 0, 127), 0, 1))


@pytest.mark.parametrize("looked_at", [7, 64, 10_000])
@pytest.mark.parametrize("count", [1, 10, 2_000])
def test_no_entry_is_chosen_twice_and_what_was_asked_for_last_stays(
    looked_at: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_rows, "_LOOKED_AT", looked_at)
    drawn, keys, chosen = np.random.default_rng(1), IntKeys(1), victims()
    row_ids, _ = keys.place(np.arange(1_000)[np.newaxis])
    used = np.full(1_024, 0)
    used[row_ids] = drawn.permutation(1_000)
    gone = drawn.permutation(row_ids)[:100]
    keys.remove(gone)
    used[gone] = GONE
    for _ in range(30):
        left = keys.all()
        chosen.choose(keys, used, count)
        taken = chosen.take(2_000, used)
        assert len(taken) == len(set(taken.tolist()))
        assert set(taken.tolist()) <= set(left.tolist())
        assert 0 < len(taken) <= max(count, len(left) // 8 + 1)
        assert used[taken].max() <= np.sort(used[left])[len(left) // 8]
        keys.remove(taken)
        used[taken] = GONE
        if not len(keys):
            break


def test_what_is_asked_for_meanwhile_stays() -> None:
    keys, chosen = IntKeys(1), victims()
    row_ids, _ = keys.place(np.arange(100)[np.newaxis])
    used = np.zeros(1_024, np.int64)
    chosen.choose(keys, used, 100)
    used[row_ids[10:20]] = 5
    assert set(chosen.take(1_000, used).tolist()) == set(row_ids.tolist()) - set(row_ids[10:20].tolist())
