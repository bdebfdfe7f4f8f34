"""What Python's garbage collector walks in a slot's process, and when. Its pauses are the tail of the latency.

Imports live for ever and are most of the heap: they are frozen, which means that the collector leaves them out. Of a
dropped generation circles of objects remain, caches and all, so a collection follows; without the imports it takes
milliseconds. Only where a generation itself has made very many objects, as by imports of its functions, is it frozen
too, and then everything has to be walked once to get rid of it.
"""

import gc

_MANY = 100_000  # objects: some 30 ms of a collection


class Heap:
    """Of this process. Not for one that belongs to the user's program."""

    def __init__(self) -> None:
        self._generation_frozen = False

    def begin(self) -> None:
        """Before a slot begins: what is there was imported, or is left of an earlier slot."""
        self.trim(True)
        gc.freeze()

    def trim(self, dropped: bool) -> None:
        """When a generation has restored, or, `dropped`, was dropped."""
        if dropped and self._generation_frozen:
            gc.unfreeze()
            self._generation_frozen = False
        gc.collect()
        if not self._generation_frozen and _tracked() > _MANY:
            gc.freeze()
            self._generation_frozen = True


def _tracked() -> int:
    """How many objects the collector walks, counted in one step of the interpreter: no other thread runs in between.

    The list of them refers to each, also to a tuple that another thread is still filling from a generator; if that
    thread ran while the list is there, it would get a SystemError ("bad argument to internal function").
    """
    return next(map(len, map(gc.get_objects, (None,))))


PROCESS_HEAP = Heap()
