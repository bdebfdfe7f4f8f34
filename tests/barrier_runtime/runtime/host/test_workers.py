"""Thread pool for blocking work: results return on the loop; a closed pool starts no work."""

import asyncio
import threading

from barrier_runtime.runtime.host.workers import Workers


async def test_work_handed_in_after_closing_is_dropped_without_a_word():
    """A generation that is closing while the slot exits submits such work from a timer."""
    ran = []
    workers = Workers(asyncio.get_running_loop())
    first = asyncio.Event()
    workers.submit(lambda: ran.append(threading.current_thread().name), lambda result, error: first.set())
    await first.wait()
    assert workers.drain(60)
    workers.submit(lambda: ran.append("late"), lambda result, error: ran.append("told"))
    workers.executor(ran.append).submit(lambda: ran.append("late"), lambda result, error: ran.append("told"))
    assert len(ran) == 1
    assert ran[0].startswith("barrier-opening")


async def test_commits_that_hang_take_no_thread_from_snapshots_and_restores():
    """With any number of unreachable targets."""
    never = threading.Event()
    loop = asyncio.get_running_loop()
    workers = Workers(loop)
    for _ in range(100):
        workers.executor(lambda error: None, unhurried=True).submit(never.wait, lambda result, error: None)
    written = [loop.create_future() for _ in range(40)]
    for each in written:
        workers.executor(lambda error: None).submit(int, lambda result, error, each=each: each.set_result(result))
    assert await asyncio.wait_for(asyncio.gather(*written), 60) == [0] * 40
    assert await asyncio.wait_for(workers.run(lambda: "opened"), 60) == "opened"
    assert not workers.drain(0.01), "they hang"
    never.set()
    assert workers.drain(60)


async def test_uploads_that_hang_do_not_keep_a_restore_from_beginning():
    never = threading.Event()
    workers = Workers(asyncio.get_running_loop())
    for _ in range(40):
        workers.executor(lambda error: None).submit(never.wait, lambda result, error: None)
    assert await asyncio.wait_for(workers.run(lambda: "opened"), 60) == "opened"
    never.set()
    await asyncio.to_thread(workers.drain, 60)
