"""Threads for blocking work: bounded, reused, exceptions reach the caller."""

import math
import threading
import time
import weakref

import pytest

from barrier_runtime.state.threads import Threads


def test_who_waits_for_an_answer_before_the_next_call_has_one_thread() -> None:
    """A thread is free before its answer is delivered, so the next call never starts another thread."""
    threads = Threads(math.inf, "some")
    assert len({threads.submit(threading.get_ident).result(60) for _ in range(2_000)}) == 1
    threads.close()
    assert threads.join(60)


def test_what_work_raises_comes_out_and_the_thread_goes_on() -> None:
    threads = Threads(1, "some")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(60)
    assert threads.submit(lambda: "next").result(60) == "next"
    threads.close()
    assert threads.join(60)


def test_after_closing_what_runs_goes_on_and_what_waits_is_cancelled() -> None:
    threads, ends = Threads(1, "some"), threading.Event()
    runs = threads.submit(lambda: ends.wait(60))
    waits = threads.submit(int)
    while not runs.running():
        time.sleep(0.001)
    threads.close()
    threads.close()
    assert waits.cancelled()
    assert not threads.join(0.01)
    ends.set()
    assert runs.result(60)
    assert threads.join(60)


def test_threads_are_made_as_needed_used_again_and_keep_nothing_that_is_done():
    class Large:
        pass

    threads = Threads(8, "some")
    for _ in range(20):
        large = Large()
        gone = weakref.ref(large)
        threads.submit(lambda large=large: None).result(60)
        del large
        deadline = time.monotonic() + 60
        while gone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert threads._alive == 1
    together = threading.Barrier(9)
    futures = [threads.submit(together.wait) for _ in range(8)]
    waiting = threads.submit(lambda: "after them")
    assert not waiting.done(), "eight is the bound"
    together.wait(60)
    assert [future.result(60) for future in futures]
    assert waiting.result(60) == "after them"
    threads.close()
    assert threads.join(60)
    assert threads.submit(int).cancelled()
