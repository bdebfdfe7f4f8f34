"""Restores at another parallelism open a snapshot of which at least half stays, and remove foreign key groups."""

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from backend_bench import Bench, checkpoint, of_operator, values

from barrier_runtime.state.backend import restore as restoring
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.keys.key_groups import key_group, key_group_range
from barrier_runtime.state.kv.key_ranges import KeyRanges
from barrier_runtime.state.snapshots.plan import RestorePlan, opened_databases, plan_restore, stored_databases
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot

MAX = 128
KEYS = range(600)


@cache
def owned(subtask: int, parallelism: int) -> list[int]:
    first, last = key_group_range(subtask, parallelism, MAX)
    return [key for key in KEYS if first <= key_group((key,), MAX) <= last]


def put(backend: KeyedBackend, keys: list[int], value: str) -> None:
    table = values(backend)
    for key in keys:
        table.put((key,), value)


def content(backend: KeyedBackend) -> dict[int, Any]:
    return {key[0]: value for key, value in values(backend).scan()}


def snapshots(bench: Bench, parallelism: int, number: int, restored: Any = (), write: Any = put) -> Any:
    """Returns snapshots of all subtasks; each subtask writes its keys with the parallelism as the value."""
    taken = []
    for subtask in range(parallelism):
        backend = bench.open(restored, subtask, parallelism)
        write(backend, owned(subtask, parallelism), f"of {parallelism}")
        taken.append(of_operator(checkpoint(backend, number), subtask, parallelism))
        backend.snapshots.completed(number)
        backend.close()
    return taken


def test_which_snapshot_is_opened_is_that_of_which_most_stays_and_at_least_half(bench: Bench) -> None:
    kind = bench.kind

    def opened(before: int, after: int) -> list[int | None]:
        taken = [
            OperatorSnapshot("counts", each.subtask, before, keyed=each.keyed) for each in snapshots(bench, before, 1)
        ]
        plans = [plan_restore("counts", subtask, after, MAX, taken) for subtask in range(after)]
        return [first_of(plan, kind) for plan in plans]

    assert opened(2, 4) == [0, 0, 1, 1]
    assert opened(1, 4) == [None] * 4, "a quarter stays"
    assert opened(3, 2) == [0, 2]
    assert opened(4, 3) == [0, 2, 3]
    assert first_of(plan_restore("counts", 0, 2, MAX, snapshots(bench, 4, 9)), "another") is None


def first_of(plan: RestorePlan, kind: str) -> int | None:
    """Returns the subtask whose database is opened first; None if none is opened."""
    databases = [each for part in plan.parts for each in stored_databases(part, KeyRanges())]
    first = opened_databases(plan, kind, databases, sys.maxsize).opened.get(0)
    return None if first is None else first.part.subtask


def test_no_entry_is_copied_where_one_snapshot_has_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = snapshots(bench, 2, 1)

    def never(*arguments: object) -> None:
        raise AssertionError("entries were copied")

    monkeypatch.setattr(restoring, "_copy", never)
    for subtask in range(4):
        backend = bench.open(taken, subtask, 4)
        assert content(backend) == dict.fromkeys(owned(subtask, 4), "of 2")
        backend.close()


@pytest.mark.slow
def test_what_its_owner_has_deleted_does_not_come_back_from_a_neighbours_files(bench: Bench) -> None:
    """Both subtasks have opened the files of one: foreign entries must be removed from these files."""
    taken = snapshots(bench, 2, 1)

    def removed(backend: KeyedBackend, keys: list[int], _: str) -> None:
        table = values(backend)
        for key in keys:
            if key % 3 == 0:
                table.delete((key,))
            elif key % 3 == 1:
                table.put((key,), "changed")

    taken = snapshots(bench, 4, 2, taken, removed)
    for parallelism in (2, 1, 3):
        for subtask in range(parallelism):
            backend = bench.open(taken, subtask, parallelism)
            assert content(backend) == {
                key: "changed" if key % 3 == 1 else "of 2" for key in owned(subtask, parallelism) if key % 3
            }
            backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 4, 3, 2), (1, 2, 1, 3), (3, 5, 2, 4)])
def test_columns_keep_their_deltas_over_rescalings(bench: Bench, sizes: tuple[int, ...]) -> None:
    """Rows are changed and removed after the last base at each parallelism, and compared with the expected entries."""
    expected: dict[int, int] = {}
    restored: Any = ()
    random = np.random.default_rng(3)
    number = 0
    for parallelism in sizes:
        backends = [bench.open(restored, subtask, parallelism) for subtask in range(parallelism)]
        tables = [each.column_table("sums", {"n": ("i8", 0)}, 1) for each in backends]
        for table, subtask in zip(tables, range(parallelism), strict=True):
            ids = table.load_all()
            found = {key[0]: n for key, n in zip(table.keys_of(ids), table.columns["n"][ids].tolist(), strict=True)}
            mine = set(owned(subtask, parallelism))
            assert found == {key: n for key, n in expected.items() if key in mine}
        for _ in range(3):  # a base, and deltas
            number += 1
            some = set(random.choice(600, 600 if number == 1 else 40, replace=False).tolist())
            gone = set(random.choice(600, 15, replace=False).tolist())
            restored = []
            for subtask, (backend, table) in enumerate(zip(backends, tables, strict=True)):
                mine = set(owned(subtask, parallelism))
                ids = table.row_ids_int64(np.array(sorted(some & mine), np.int64))
                table.columns["n"][ids] += 1
                table.mark_dirty(ids)
                for key in some & mine:
                    expected[key] = expected.get(key, 0) + 1
                leaving = sorted(gone & mine & set(expected))
                if leaving:
                    table.remove(table.row_ids_int64(np.array(leaving, np.int64)))
                for key in leaving:
                    del expected[key]
                restored.append(of_operator(checkpoint(backend, number), subtask, parallelism))
                backend.snapshots.completed(number)
        for backend in backends:
            backend.close()
