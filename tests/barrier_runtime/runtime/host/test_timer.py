"""Alarms ring once, not before their time, and never once they are closed: the kernel's and the loop's."""

import asyncio
import contextlib
import os
import sys
import time

import pytest
import uvloop

from barrier_runtime.runtime.host.clock import FileTimer, LoopTimer, best_timer

KINDS = [LoopTimer, pytest.param(FileTimer, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only"))]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()


def timers_open() -> set[str]:
    """Returns this process's open descriptors of kernel timers.

    Other descriptors, also of earlier tests, open and close during a test, so a test looks for new descriptors.
    """
    found = set()
    for descriptor in os.listdir("/dev/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor, or a descriptor closed meanwhile
            if "timerfd" in os.readlink(f"/dev/fd/{descriptor}"):
                found.add(descriptor)
    return found


async def rung(calls, count):
    while len(calls) < count:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_it_rings_once_each_time_it_is_set(loop, kind):
    calls = []
    timer = kind(loop, lambda: calls.append(1))
    timer.set(0.0003)
    loop.run_until_complete(asyncio.wait_for(rung(calls, 1), 60))
    timer.set(0.0)  # at once
    loop.run_until_complete(asyncio.wait_for(rung(calls, 2), 60))
    loop.run_until_complete(asyncio.sleep(0.01))
    timer.close()
    assert len(calls) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_setting_it_anew_replaces_what_was_set(loop, kind):
    calls = []
    timer = kind(loop, lambda: calls.append("rang"))
    timer.set(3_600)
    timer.set(0.0003)
    loop.run_until_complete(asyncio.wait_for(rung(calls, 1), 60))
    timer.set(0.0003)
    timer.set(3_600)
    loop.run_until_complete(asyncio.sleep(0.01))
    timer.close()
    assert calls == ["rang"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_one_of_the_kernel_never_rings_early(loop):
    calls = []
    timer = FileTimer(loop, lambda: calls.append(time.monotonic()))
    for delay_s in (0.0002, 0.0005, 0.0011):
        set_at = time.monotonic()
        timer.set(delay_s)
        loop.run_until_complete(asyncio.wait_for(rung(calls, 1), 60))
        assert calls.pop() - set_at >= delay_s
    timer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_one_does_not_ring_and_leaves_nothing_open(loop, kind):
    calls, open_before = [], timers_open()
    timer = kind(loop, lambda: calls.append(1))
    own = timers_open() - open_before
    assert len(own) == (kind is FileTimer)
    timer.set(0.0)
    timer.close()
    timer.close()
    loop.run_until_complete(asyncio.sleep(0.005))
    assert not calls
    assert timers_open() & own == set()


def test_where_the_kernel_has_none_the_loops_timers_do(loop, monkeypatch):
    def none_left(self, loop, ring):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(FileTimer, "__init__", none_left)
    assert isinstance(best_timer(loop, lambda: None), LoopTimer)
