"""Loop and worker of a keyed backend on real threads, interleaved line by line: segments, links, uploads."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from backend_bench import Bench, of_operator

import tests.stepped_example as example
from barrier_runtime.state.backend import backend_snapshots
from barrier_runtime.state.backend.backend_snapshots import SnapshotDropped
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns import frozen_rows as dense_segments
from barrier_runtime.state.columns import segment
from barrier_runtime.state.columns import segment_set as segment_log
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.snapshots import local_copies
from barrier_runtime.state.snapshots import transfer as snapshot_files
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from tests.drawn import seeds
from tests.stepped_threads import Stepper

TRACED = (backend_snapshots, segment, segment_log, snapshot_files, local_copies, dense_segments)
KEYS = 60
CHECKPOINTS = 9


def dense(backend: KeyedBackend) -> ColumnTable:
    return backend.column_table("dense", {"count": ("i8", 0)}, 1)


def content(table: ColumnTable) -> dict[object, int]:
    row_ids = table.load_all()
    return {key[0]: n for key, n in zip(table.keys_of(row_ids), table.columns["count"][row_ids].tolist(), strict=True)}


class Run:
    """A loop that takes checkpoints and a worker that writes them, as in a slot."""

    def __init__(self, bench: Bench, stepper: Stepper, seed: int) -> None:
        self._bench = bench
        self._stepper = stepper
        self._random = np.random.default_rng(seed)
        self._backend = bench.open()
        self._table = dense(self._backend)
        self._now: dict[object, int] = {}
        self._queue: list[int] = []
        self._written: list[tuple[int, KeyedSnapshot]] = []
        self._over = False
        self.expected: dict[int, dict[object, int]] = {}
        self.completed: dict[int, KeyedSnapshot] = {}

    def loop(self) -> None:
        for number in range(1, CHECKPOINTS + 1):
            self._change(number)
            self._backend.snapshots.freeze(number)
            self.expected[number] = dict(self._now)
            while not self._backend.snapshots.drain(8):
                self._stepper.wait_until(lambda: not self._backend.snapshots.linking)
            self._queue.append(number)
            self._settle()
            if self._random.random() < 0.1:
                self._stepper.wait_until(lambda: not self._queue)
        self._stepper.wait_until(lambda: not self._queue)
        self._settle()
        self._over = True

    def worker(self) -> None:
        while not self._over:
            self._stepper.wait_until(lambda: bool(self._queue) or self._over)
            if self._queue:
                with contextlib.suppress(SnapshotDropped):  # a later checkpoint has completed
                    self._written.append((self._queue[0], self._backend.snapshots.write(self._queue[0])))
                    self._backend.snapshots.clean_up()
                self._queue.pop(0)

    def restored(self, snapshot: KeyedSnapshot) -> dict[object, int]:
        self._bench.copies = LocalCopies()
        backend = self._bench.open([of_operator(snapshot)])
        try:
            return content(dense(backend))
        finally:
            backend.close()

    def close(self) -> None:
        self._backend.close()

    def _change(self, number: int) -> None:
        keys = np.arange(KEYS) if number == 1 else self._random.choice(KEYS, KEYS // 3, replace=False)
        row_ids = self._table.row_ids_int64(keys)
        self._table.columns["count"][row_ids] += 1
        self._table.mark_dirty(row_ids)
        for key in keys.tolist():
            self._now[key] = self._now.get(key, 0) + 1
        if number % 3 == 0:
            gone = self._random.choice(KEYS, 4, replace=False)
            self._table.remove(self._table.row_ids_int64(gone))
            for key in gone.tolist():
                self._now.pop(key, None)

    def _settle(self) -> None:
        """Completes the written checkpoints, and aborts a quarter of them."""
        while self._written:
            number, snapshot = self._written.pop(0)
            if self._random.random() < 0.25:
                self._backend.snapshots.aborted(number)
            else:
                self._backend.snapshots.completed(number)
                self.completed[number] = snapshot


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Stepper]:
    def make(seed: int) -> Stepper:
        stepper = Stepper(seed, TRACED)
        stepper.lock_of(monkeypatch, backend_snapshots, segment_log, local_copies)
        return stepper

    return make


@pytest.mark.parametrize("seed", seeds(40))
def test_snapshots_restore_the_state_at_their_barrier_however_threads_interleave(
    seed: int, tmp_path: Path, stepped: Callable[[int], Stepper]
) -> None:
    """Covers a merge during a write, a link during a merge, an upload during the next capture."""
    stepper = stepped(seed)
    run = Run(Bench(tmp_path, kind="memory"), stepper, seed)
    try:
        stepper.run(loop=run.loop, worker=run.worker)
        assert run.completed
        for number, snapshot in run.completed.items():
            assert run.restored(snapshot) == run.expected[number], f"checkpoint {number}"
    finally:
        run.close()


def test_threads_take_turns_inside_a_function_and_a_seed_gives_the_same_order(tmp_path: Path) -> None:
    def order(seed: int) -> list[str]:
        lines: list[str] = []
        stepper = Stepper(seed, [example])
        stepper.run(
            a=lambda: example.write_three_lines(lines, "a"),
            b=lambda: example.write_three_lines(lines, "b"),
        )
        return lines

    assert order(3) == order(3)
    assert any(len({line[0] for line in order(seed)[:3]}) == 2 for seed in range(20))
