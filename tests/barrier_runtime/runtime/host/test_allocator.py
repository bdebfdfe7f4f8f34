"""Memory of freed arrays of batches stays with a slot's process; that of larger arrays returns to the system."""

import resource
import subprocess
import sys
import threading

import numpy as np

from barrier_runtime.runtime.host import process
from barrier_runtime.runtime.host.process import Heap

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
    assert _in_process("t.process.keep_freed_memory(); print(t.faults_of_batches())") < _BATCHES * _ARRAYS


def test_large_freed_arrays_return_to_the_system() -> None:
    code = "t.process.keep_freed_memory(); print(t.rss_after_freeing(32, 8 << 20))"
    assert _in_process(code) < process.MOST_KEPT_BYTES


def test_what_threads_freed_returns_to_the_system_when_a_generation_ends() -> None:
    code = "t.process.keep_freed_memory(); print(t.rss_after_threads(7, 60, 2 << 20))"
    assert _in_process(code) < process.MOST_KEPT_BYTES // 2


def rss_after_threads(threads: int, arrays: int, size: int) -> int:
    """Resident bytes that stay after threads made arrays at the same time and freed them, and a generation ended."""
    made, freed, end = (threading.Barrier(threads + 1) for _ in range(3))

    def work() -> None:
        each = [np.full(size, 1, np.uint8) for _ in range(arrays)]
        made.wait()
        del each
        freed.wait()
        end.wait()

    before = _rss()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    made.wait()
    freed.wait()
    Heap().trim(True)
    kept = _rss() - before
    end.wait()
    for worker in workers:
        worker.join()
    return kept


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
