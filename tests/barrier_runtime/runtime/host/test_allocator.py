"""Memory of freed arrays of batches stays with a slot's process; that of larger arrays returns to the system."""

import resource
import subprocess
import sys

import numpy as np

from barrier_runtime.runtime.host import allocator

_BATCHES = 50
_ARRAYS, _BYTES = 16, 512 << 10  # of a batch of 65,536 rows


def faults_of_batches() -> int:
    """Page faults of batches after the first, which fills the heap."""
    before = 0
    for batch in range(1 + _BATCHES):
        arrays = [np.full(_BYTES, 1, np.uint8) for _ in range(_ARRAYS)]
        del arrays
        if not batch:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _in_process(code: str) -> int:
    lines = f"from tests.barrier_runtime.runtime.host import test_allocator as t; {code}"
    return int(subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True, text=True).stdout)


def test_arrays_of_later_batches_take_no_page_faults() -> None:
    assert _in_process("t.allocator.keep_freed_memory(); print(t.faults_of_batches())") < _BATCHES * _ARRAYS


def test_large_freed_arrays_return_to_the_system() -> None:
    code = "t.allocator.keep_freed_memory(); print(t.rss_after_freeing(32, 8 << 20))"
    assert _in_process(code) < allocator.MOST_KEPT_BYTES


def rss_after_freeing(arrays: int, size: int) -> int:
    """Resident bytes that stay after `arrays` of `size` bytes each were made and freed."""
    before = _rss()
    made = [np.full(size, 1, np.uint8) for _ in range(arrays)]
    assert _rss() - before >= arrays * size // 2
    del made
    return _rss() - before


def _rss() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
