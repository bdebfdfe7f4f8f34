"""Discovery by periodic listings."""

import threading
import time
from collections.abc import Callable, Sequence

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import Unavailable

_AGAIN_S = 2.0
_RESTS = 4  # shortest pause, as a multiple of the listing, which slows the slot's loop


class ListingThread:
    """Lists splits periodically in a thread, from construction on.

    `list_splits` returns all existing splits in the best order for reading, and may block. `Unavailable` leads to a
    retry; any other error ends the job or the generation. With `again`, `list_splits` itself omits earlier splits, and
    may return a split once more.
    """

    def __init__(
        self,
        list_splits: Callable[[], Sequence[Split]],
        known: NameSet,
        period_s: float,
        name: str,
        *,
        again: bool = False,
    ) -> None:
        self._again = again
        self._list = list_splits
        self._seen = known
        self._period_s = period_s
        self._lock = threading.Lock()
        self._new: list[Split] = []
        self._ended: list[tuple[str, int | None, int]] = []  # since the last listing began
        self._trouble: Exception | None = None
        self._wake: Callable[[], None] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"discovery-{name}", daemon=True)
        self._thread.start()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Calls `wake` at once, because the first listing may have ended already."""
        with self._lock:
            self._wake = wake
        wake()

    def found(self) -> Sequence[Split]:
        if not self._new and self._trouble is None:
            return ()
        with self._lock:
            new, self._new = self._new, []
            if not new and self._trouble is not None:
                trouble = self._trouble
                if isinstance(trouble, Unavailable):
                    self._trouble = None
                raise trouble
            return new

    def ended(self, split_id: str, size: int | None, mark: int) -> None:
        with self._lock:
            self._ended.append((split_id, size, mark))

    def close(self) -> None:
        """Does not wait for a hanging listing."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            rest_s, began_s = self._period_s, time.monotonic()
            with self._lock:
                ended, self._ended = self._ended, []
            for each in ended:
                self._seen.add(*each)
            try:
                splits = self._list()
            except Exception as error:
                with self._lock:
                    self._trouble = error
                self._tell()
                if not isinstance(error, Unavailable):
                    return
                rest_s = min(rest_s, _AGAIN_S)
            else:
                new = [split for split in splits if self._again or split.id not in self._seen]
                for split in new:
                    self._seen.add(split.id, split.size)
                self._seen.absorb()
                with self._lock:
                    self._new += new
                if new:
                    self._tell()
            self._closed.wait(max(rest_s, _RESTS * (time.monotonic() - began_s)))

    def _tell(self) -> None:
        with self._lock:
            wake = self._wake
        if wake is not None:
            wake()
