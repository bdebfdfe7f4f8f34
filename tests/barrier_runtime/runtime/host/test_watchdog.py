"""Whoever has no owner any more leaves: real processes, real signals, the exit status as the witness."""

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
watchdog = Watchdog(sockets, lambda: time.monotonic() - heard, {lease}, lambda: print("tidied", flush=True), 0.02)
print("watching", flush=True)
watchdog.start()
threading.Event().wait({lives})
os._exit(0)
"""


def worker(lease=60.0, lives=60.0, sockets=False, **arguments):
    code = textwrap.dedent(_WORKER).format(lease=lease, lives=lives, sockets=sockets)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **arguments)
    assert process.stdout.readline() == "watching\n"
    return process


def test_a_slot_whose_coordinator_is_silent_for_the_whole_lease_leaves_and_tidies_up():
    """Z9"""
    process = worker(lease=0.1)
    assert process.wait(20) == ORPHANED
    assert process.stdout.readline() == "tidied\n"


def test_a_slot_with_a_coordinator_is_left_alone():
    process = worker(lives=0.5)
    assert process.wait(20) == 0


def test_a_slot_that_was_stopped_for_longer_than_its_lease_leaves_when_it_goes_on():
    """Z8"""
    process = worker(lease=1.5)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.0)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(20) == ORPHANED


def test_a_slot_whose_executor_closed_its_connection_leaves():
    """Z9: a long-lived loop never touches that connection, so nothing else would notice."""
    import socket

    ours, theirs = socket.socketpair()
    process = worker(sockets=True, pass_fds=(theirs.fileno(),))
    theirs.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    ours.close()
    assert process.wait(20) == ORPHANED


def test_a_slot_whose_parent_is_gone_leaves():
    """Z9: SIGKILL of the process that forked it."""
    code = textwrap.dedent(_WORKER).format(lease=60.0, lives=60.0, sockets=False)
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "watching\n"
    parent.kill()
    parent.wait(20)
    assert parent.stdout.readline() == "tidied\n"
    assert parent.stdout.read() == ""  # the pipe is closed: the orphan is gone too
