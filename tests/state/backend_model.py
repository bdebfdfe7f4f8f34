"""Base of model tests of keyed state: the runtime's actions in a random program.

Actions are captures, drains, completed and aborted snapshots, crashes, and restores, also through another
parallelism."""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from tests.state.backend_bench import Bench, drain, of_operator


class RuntimeModel(RuleBasedStateMachine):
    """State machine with the runtime's rules. A subclass adds the operators' rules and the expected state."""

    kind: str = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="backend-model-"))
        self.bench = Bench(self.directory, self.kind, cache_bytes=1)  # the smallest caches
        self.checkpoint = 0
        self.completed: tuple[KeyedSnapshot, Any] | None = None
        self.in_flight: dict[int, Any] = {}
        self.written: dict[int, KeyedSnapshot] = {}
        self.backend: KeyedBackend

    def open_tables(self) -> None:
        raise NotImplementedError

    def expected(self) -> Any:
        raise NotImplementedError

    def expect(self, state: Any) -> None:
        raise NotImplementedError

    def everything_agrees(self) -> None:
        raise NotImplementedError

    # ---- actions of the runtime

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def freeze(self) -> None:
        self.checkpoint += 1
        self.backend.snapshots.freeze(self.checkpoint)
        self.in_flight[self.checkpoint] = copy.deepcopy(self.expected())

    @rule(entries=st.integers(1, 400))
    def drain_a_slice(self, entries: int) -> None:
        self.backend.snapshots.drain(entries)

    @precondition(lambda self: set(self.in_flight) - set(self.written))
    @rule(complete=st.booleans())
    def write_the_oldest(self, complete: bool) -> None:
        number = min(set(self.in_flight) - set(self.written))
        drain(self.backend)
        self.written[number] = self.backend.snapshots.write(number)
        self.backend.snapshots.clean_up()
        if complete:
            self.complete_the_newest_written()

    @precondition(lambda self: self.in_flight)
    @rule(sure=st.sampled_from([True, False, False]))
    def abort_the_newest(self, sure: bool) -> None:
        if sure:
            number = max(self.in_flight)
            self.backend.snapshots.aborted(number)
            self.written.pop(number, None)
            del self.in_flight[number]

    @precondition(lambda self: self.written)
    @rule()
    def complete_the_newest_written(self) -> None:
        number = max(self.written)
        self.backend.snapshots.completed(number)
        self.completed = (self.written[number], self.in_flight[number])
        self.in_flight = {later: state for later, state in self.in_flight.items() if later > number}
        self.written = {}

    @precondition(lambda self: self.completed is not None)
    @rule(keep_copies=st.booleans(), through=st.sampled_from([1, 2, 3]))
    def crash_and_restore(self, keep_copies: bool, through: int) -> None:
        """Restores the last completed checkpoint; a fresh slot and another parallelism on the way are optional."""
        self.backend.close()
        if not keep_copies:
            self.bench.copies = LocalCopies()
        self.in_flight, self.written = {}, {}
        assert self.completed is not None
        self.expect(copy.deepcopy(self.completed[1]))
        restored = [of_operator(self.completed[0])]
        if through > 1:
            restored = self._rescaled(restored, through)
        self.backend = self.bench.open(restored)
        self.open_tables()
        self.everything_agrees()

    def _rescaled(self, restored: list[Any], through: int) -> list[Any]:
        self.checkpoint += 1
        rescaled = []
        for subtask in range(through):
            part = self.bench.open(restored, subtask, through)
            part.snapshots.freeze(self.checkpoint)
            drain(part)
            rescaled.append(of_operator(part.snapshots.write(self.checkpoint), subtask, through))
            part.close()
        return rescaled

    def teardown(self) -> None:
        try:
            if hasattr(self, "backend"):
                self.everything_agrees()
                self.backend.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
