"""A time limit that loses no cancellation."""

import asyncio
import gc

import pytest

from barrier_runtime.runtime.network.connection import within


async def test_a_result_and_a_time_limit() -> None:
    assert await within(30, asyncio.sleep(0, "given")) == "given"
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(0.001, never)
    assert never.cancelled()


def test_an_error_comes_through() -> None:
    async def fails() -> None:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        asyncio.run(within(30, fails()))


@pytest.mark.parametrize("result_first", [True, False])
async def test_a_cancellation_that_comes_with_the_result_is_not_lost(result_first: bool) -> None:
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[str] = loop.create_future()
    task = asyncio.ensure_future(within(30, coming))
    await asyncio.sleep(0)
    both = [lambda: coming.set_result("given"), task.cancel]
    for each in both if result_first else both[::-1]:
        each()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_whoever_is_cancelled_leaves_no_task_behind() -> None:
    task = asyncio.ensure_future(within(30, asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_that_comes_with_a_cancellation_is_not_reported_as_never_heard() -> None:
    loop, reported = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    coming: asyncio.Future[str] = loop.create_future()
    task = asyncio.ensure_future(within(30, coming))
    await asyncio.sleep(0)
    coming.set_exception(OSError("refused"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del coming, task
    gc.collect()
    assert reported == []
