"""A `Discovery` that lists everything again and again in a thread of its own, and hands out what is new."""

import threading
from collections.abc import Callable, Collection, Sequence

from barrier_runtime.sources.base import Split
from state.errors import Unavailable

_AGAIN_S = 2.0


class ListingThread:
    """`list_splits` gives all splits there are, in the order in which they are best read. It may block, and raise
    `Unavailable` (it is tried again) or what ends the job or the generation (it is not).

    The first listing begins at once; `period_s` lie between the end of one and the begin of the next; after one that
    failed it may be less.
    """

    def __init__(
        self, list_splits: Callable[[], Sequence[Split]], known: Collection[str], period_s: float, name: str
    ) -> None:
        self._list = list_splits
        self._seen = set(known)
        self._period_s = period_s
        self._lock = threading.Lock()
        self._new: list[Split] = []
        self._trouble: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"discovery-{name}", daemon=True)
        self._thread.start()

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

    def close(self) -> None:
        """Does not wait for a listing that hangs: its result is dropped."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            rest_s = self._period_s
            try:
                splits = self._list()
            except Exception as error:
                with self._lock:
                    self._trouble = error
                if not isinstance(error, Unavailable):
                    return
                rest_s = min(rest_s, _AGAIN_S)
            else:
                new = [split for split in splits if split.id not in self._seen]
                self._seen.update(split.id for split in new)
                with self._lock:
                    self._new += new
            self._closed.wait(rest_s)
