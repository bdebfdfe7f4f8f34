"""Reads staged objects ahead, because each read waits for the store."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Object = TypeVar("_Object")
_Read = TypeVar("_Read")
_MOST_ROWS = 1 << 16  # read or waiting; a larger object is read alone


def read_ahead(
    read: Callable[[_Object], _Read],
    objects: Sequence[_Object],
    rows_of: Callable[[_Object], int],
    at_once: int,
    most_rows: int = _MOST_ROWS,
) -> Iterator[_Read]:
    """Yields `read` of each object in order, with `at_once` objects in threads.

    An error of `read` is raised when that object is due.
    """
    at_once = min(at_once, len(objects))
    if at_once < 2:
        yield from map(read, objects)
        return
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="read-ahead")
    reading: deque[tuple[int, Future[_Read]]] = deque()
    rows = position = 0
    try:
        while position < len(objects) or reading:
            while position < len(objects) and len(reading) < at_once:
                more = rows_of(objects[position])
                if reading and rows + more > most_rows:
                    break
                reading.append((more, pool.submit(read, objects[position])))
                rows += more
                position += 1
            less, result = reading.popleft()
            yield result.result()
            rows -= less
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
