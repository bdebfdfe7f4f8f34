"""The command `leave` on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from barrier_runtime.spark.task import local_root
from barrier_runtime.tools.rescaling import signal_own_slots

HOLDS = """
import os, pathlib, signal, sys, time

expects = sys.argv[2] == "expects"
if expects:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPWR])  # threads of libraries inherit this

from barrier_runtime.spark.task import living_in

folder = pathlib.Path(sys.argv[1]) / f"1-{os.getpid()}-abc"
folder.mkdir(parents=True)
with living_in(folder):
    print("lives", flush=True)
    if expects:
        while signal.SIGPWR not in signal.sigpending():  # a waiting `sigwait` would not block the signal
            time.sleep(0.01)
        sys.exit(0)
    sys.stdin.read()
"""


def slot_in(run: Path, how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDS, str(run), how]
    slot = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert slot.stdout is not None
    assert slot.stdout.readline() == "lives\n"
    return slot


def test_only_living_slots_of_this_user_are_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    run = local_root("run")
    dead = run / f"0-{os.getpid()}-abc"  # not locked: a signal would end this process
    dead.mkdir(parents=True)
    (dead / "life.lock").touch()
    slot = slot_in(run, "expects")
    assert signal_own_slots() == 1
    assert slot.wait(timeout=120) == 0
    assert signal_own_slots() == 0


def test_a_slot_that_does_not_expect_the_signal_yet_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    slot = slot_in(local_root("run"), "starts")
    assert signal_own_slots() == 0
    slot.communicate("", timeout=120)
    assert slot.returncode == 0
