"""Asks the kernel for short time slices for a thread that rows wait for: a slot's loop, or a reader that feeds it.

Such a thread is to run as soon as there is some input, and needs little time then. By default a thread that
competes with others gets, and lets others have, slices of 1 to 3 ms; that is most of a slow row's latency where cores
are shared. Linux from 6.12 on schedules a thread that asks for shorter slices sooner, without giving it more time.
"""

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000  # the least the kernel gives
_SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_THREADS_AS_USUAL = 0x01  # SCHED_FLAG_RESET_ON_FORK: threads that this one starts get slices of the usual length
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def ask_for_short_slices(also_started: bool = False) -> bool:
    """For the calling thread, for good; `also_started`: and for the threads that it starts from now on, as those of a
    client in C. False: this system has no such thing, or somebody chose another way of scheduling; everything is as it
    was."""
    number = _SYSTEM_CALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    flags = 0 if also_started else _THREADS_AS_USUAL
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, nice, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, wanted, 0) == 0)
