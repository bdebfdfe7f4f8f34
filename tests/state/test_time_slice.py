"""Threads of the data path get short time slices if the kernel supports them; nothing else changes."""

import ctypes
import json
import os
import platform
import struct
import subprocess
import sys

import pytest

from barrier_runtime.state.threads import SLICE_NS, ask_for_short_slices

_GET = {"x86_64": 315, "aarch64": 275}  # sched_getattr


def attributes():
    """Returns (nice, slice in ns) of the calling thread."""
    buffer = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(_GET[platform.machine()], 0, buffer, 48, 0) == 0
    found = struct.unpack("=IIQiIQQQ", buffer.raw)
    return found[3], found[5]


def kernel():
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


needs_short_slices = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _GET or kernel() < (6, 12), reason="needs Linux 6.12"
)


@pytest.mark.slow
@needs_short_slices
@pytest.mark.parametrize("also_started", [False, True])
def test_caller_and_requested_threads_have_short_slices_and_none_becomes_less_nice(also_started):
    """Runs in a process of its own: the change is permanent."""
    program = (
        "import json, os, threading\n"
        "from test_time_slice import attributes, ask_for_short_slices\n"
        "before = attributes()[1]\n"
        "os.nice(5)\n"
        f"assert ask_for_short_slices({also_started})\n"
        "seen = []\n"
        "thread = threading.Thread(target=lambda: seen.append(attributes()))\n"
        "thread.start(), thread.join()\n"
        "print(json.dumps([before, attributes(), seen[0]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    before, own, of_its_thread = json.loads(done.stdout)
    nice = min(19, os.nice(0) + 5)
    assert own == [nice, SLICE_NS]
    assert of_its_thread == [nice, SLICE_NS if also_started else before]
    assert before > SLICE_NS


def test_a_system_without_it_goes_on_as_it_was(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not ask_for_short_slices()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_who_chose_another_policy_keeps_it():
    program = (
        "import os\n"
        "from barrier_runtime.state.threads import ask_for_short_slices\n"
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "assert not ask_for_short_slices()\n"
        "assert os.sched_getscheduler(0) == os.SCHED_BATCH\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
