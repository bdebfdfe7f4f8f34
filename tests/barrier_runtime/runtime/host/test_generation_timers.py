"""What may wait waits while the job is about to move to other slots, and not for ever."""

from collections.abc import Callable

from barrier_runtime.runtime.host.generation_timers import GenerationTimers


def test_what_may_wait_goes_on_once_no_move_is_near_and_sources_read() -> None:
    now_s, done = 100.0, 0
    due: list[tuple[float, Callable[[], None]]] = []
    timers = GenerationTimers(lambda delay_s, callback: due.append((now_s + delay_s, callback)), lambda: now_s)

    def work() -> None:
        nonlocal done
        done += 1
        timers.call_when_settled(0.01, work)

    def later(seconds: float) -> int:
        """How often it went on meanwhile."""
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
    assert later(3) == 0
    timers.move_is_near()
    assert later(4) == 0, "it is still near"
    timers.pause(7)
    assert later(60) == 0
    timers.aborted(7)
    assert later(1) > 50
    timers.move_is_near()
    assert later(60) > 50, "a move that failed says nothing"
