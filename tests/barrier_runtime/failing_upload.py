"""A store of which an upload fails in the middle of a run; the rows of the run, not a time, choose the upload."""

from barrier_runtime.state.store.memory import Fault, MemoryStore


class FailingUpload:
    """Fails an upload of the next checkpoint once the run has put more than `decisions` records after the first row."""

    def __init__(self, store: MemoryStore, decisions: int) -> None:
        self._store = store
        self._decisions = decisions
        self._first: int | None = None  # conditional puts when the run's first row came
        self._struck = False

    def on_row(self) -> None:
        puts = self._store.calls.get("put_if_absent", 0)
        if self._first is None:
            self._first = puts
        elif puts > self._first + self._decisions and not self._struck:
            self._struck = True
            self._store.inject(Fault.FAIL_BEFORE, "put", "/data/")
