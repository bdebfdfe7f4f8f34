"""Processes without an owner exit: real processes and signals, checked by exit status."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from barrier_runtime.runtime.host.watchdog import ORPHANED

_WORKER = """
import os, socket, sys, threading, time
from barrier_runtime.runtime.host.watchdog import Watchdog, inherited_sockets

sockets = inherited_sockets() if {sockets} else []
heard = time.monotonic()

def silent_s():
    return {silent_s}

watchdog = Watchdog(sockets, silent_s, {lease}, lambda: print("tidied", flush=True), 0.02)
print("watching", flush=True)
watchdog.start()
threading.Event().wait({lives})
os._exit(0)
"""


def code_of(lease=60.0, lives=60.0, sockets=False, silent_s="time.monotonic() - heard"):
    return textwrap.dedent(_WORKER).format(lease=lease, lives=lives, sockets=sockets, silent_s=silent_s)


def worker(lease=60.0, lives=60.0, sockets=False, silent_s="time.monotonic() - heard", **arguments):
    code = code_of(lease, lives, sockets, silent_s)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **arguments)
    assert process.stdout.readline() == "watching\n"
    return process


def test_a_slot_whose_coordinator_is_silent_for_the_whole_lease_leaves_and_tidies_up():
    """Z9"""
    process = worker(lease=0.1)
    assert process.wait(60) == ORPHANED
    assert process.stdout.readline() == "tidied\n"


def test_a_slot_leaves_also_when_nobody_reads_what_it_says():
    """Z9: standard error is a pipe to the executor, which was killed."""
    reading, writing = os.pipe()
    process = worker(lease=3600.0, silent_s="3601.0 * (os.read(0, 1) == b'!')", stdin=subprocess.PIPE, stderr=writing)
    os.close(writing)
    os.close(reading)
    process.stdin.write("!")
    process.stdin.close()
    assert process.wait(60) == ORPHANED
    assert process.stdout.readline() == "tidied\n"


def test_a_slot_with_a_coordinator_is_left_alone():
    process = worker(lives=0.5)
    assert process.wait(60) == 0


def test_a_slot_that_was_stopped_for_longer_than_its_lease_leaves_when_it_goes_on(tmp_path):
    """Z8: the clock advances while the slot is stopped; here a file makes an hour pass."""
    passed = tmp_path / "an hour has passed"
    process = worker(silent_s=f"3600.0 * os.path.exists({str(passed)!r})")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # before the stop the watchdog's threads may still run
    passed.touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == ORPHANED


def test_a_slot_whose_executor_closed_its_connection_leaves():
    """Z9: a long-lived loop never touches that connection, so nothing else would notice."""
    import socket

    ours, theirs = socket.socketpair()
    process = worker(sockets=True, pass_fds=(theirs.fileno(),))
    theirs.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    ours.close()
    assert process.wait(60) == ORPHANED


def test_a_slot_whose_parent_is_gone_leaves():
    """Z9: SIGKILL of the parent process."""
    code = code_of()
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "watching\n"
    parent.kill()
    parent.wait(60)
    assert parent.stdout.readline() == "tidied\n"
    assert parent.stdout.read() == ""  # the pipe is closed, so the orphan has exited, too
