"""Settings of glibc's allocator for a slot, whose batches make and free arrays of 0.1 to 4 MB all the time.

By default glibc returns such an array to the kernel at once, and each new array costs a page fault per 4 KB: more than
half of the time of `last_of_groups` (benchmarks/figures.md).
"""

import contextlib

from barrier_runtime.state.libc import libc

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
MOST_KEPT_BYTES = 64 << 20  # free memory at the end of each heap that stays with the process
_LARGE_BYTES = 4 << 20  # larger arrays, such as columns of state, come from the kernel and return to it


def keep_freed_memory() -> bool:
    """Keeps freed arrays for the next batch, for good. False, without a change: another allocator."""
    with contextlib.suppress(AttributeError, OSError):  # musl and macOS lack mallopt
        mallopt = libc().mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, MOST_KEPT_BYTES))
    return False


def return_freed_memory() -> None:
    """Returns the free memory of all heaps to the kernel: threads have heaps of their own."""
    with contextlib.suppress(AttributeError, OSError):  # musl and macOS lack malloc_trim
        libc().malloc_trim(0)
