"""The pool for blocking work: results come back on the loop; once it is closed nothing begins any more."""

import asyncio
import threading

from barrier_runtime.slot.workers import Workers


def test_work_handed_in_after_closing_is_dropped_without_a_word():
    """A generation that is still being closed when its slot leaves asks for it, from a timer nobody waits for."""
    ran = []

    async def main():
        workers = Workers(asyncio.get_running_loop())
        first = asyncio.Event()
        workers.submit(lambda: ran.append(threading.current_thread().name), lambda result, error: first.set())
        await first.wait()
        workers.drain()
        workers.submit(lambda: ran.append("late"), lambda result, error: ran.append("told"))
        workers.lane(ran.append).submit(lambda: ran.append("late"), lambda result, error: ran.append("told"))

    asyncio.run(main())
    assert len(ran) == 1
    assert ran[0].startswith("barrier-worker")
