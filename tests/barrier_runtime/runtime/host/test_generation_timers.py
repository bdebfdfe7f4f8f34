"""Deferrable work waits while the job is about to move to other slots, but only for a bounded time."""

from collections.abc import Callable

import pytest

from barrier_runtime.runtime.host.clock import GenerationTimers


@pytest.mark.slow
def test_what_may_wait_goes_on_once_no_move_is_near_and_sources_read() -> None:
    now_s, done = 100.0, 0
    held: list[bool] = []
    due: list[tuple[float, Callable[[], None]]] = []
    later_s = lambda delay_s, callback: due.append((now_s + delay_s, callback))  # noqa: E731
    timers = GenerationTimers(later_s, lambda: now_s, held.append)

    def work() -> None:
        nonlocal done
        done += 1
        timers.call_when_settled(0.01, work)

    def later(seconds: float) -> int:
        """Advances time and returns how often the work ran."""
        nonlocal now_s
        before, until_s = done, now_s + seconds
        while due and min(at for at, _ in due) <= until_s:
            now_s, callback = due.pop(min(range(len(due)), key=lambda at: due[at][0]))
            callback()
        now_s = until_s
        return done - before

    work()
    assert later(1) > 50
    timers.move_is_near()
    assert held == [True]
    assert later(6) == 0
    timers.move_is_near()
    assert later(8) == 0, "it is still near"
    timers.pause(7)
    assert later(60) == 0
    timers.aborted(7)
    assert later(1) > 50
    timers.move_is_near()
    assert later(60) > 50, "a move that failed says nothing"
    assert held == [True, False] * 2
    timers.move_is_near()
    timers.end()
    timers.move_is_near()
    timers.end()
    assert held == [True, False] * 3, "with the generation, and not again: nobody would look when to let go"


def test_work_that_cannot_wait_is_under_way_until_it_ends() -> None:
    compacts = True
    timers = GenerationTimers(lambda delay_s, callback: None, lambda: 0.0, lambda held: None)
    assert timers.at_rest
    timers.ends_before_move(lambda: compacts)
    timers.ends_before_move(lambda: False)
    assert not timers.at_rest
    compacts = False
    assert timers.at_rest
    compacts = True
    timers.end()
    assert timers.at_rest, "what its databases do is nobody's trouble any more"
