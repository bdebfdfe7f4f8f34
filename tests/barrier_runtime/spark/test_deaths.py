"""Messages about killed processes name the cause: Spark's workers by their daemon, the coordinator by the driver."""

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]

_DAEMON = """
import os, signal, time
from barrier_runtime.spark import deaths
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as pyspark's manager does
deaths.watch()
listening, listens = os.pipe()
if (pid := os.fork()) == 0:
    os.read(listening, 1)
    os.kill(os.getpid(), signal.SIGSEGV)
os.write(listens, b"!")
well = os.fork()
if well == 0:
    os._exit(3)
while pid not in deaths.died_lately():
    time.sleep(0.01)
again = os.fork()
if again == 0:
    print(deaths.died_lately() == {pid: "SIGSEGV"}, signal.getsignal(signal.SIGCHLD).name, flush=True)
    os._exit(0)
while True:
    try:
        os.kill(again, 0)
    except ProcessLookupError:
        break
    time.sleep(0.01)
print(len(deaths.died_lately()))
"""


_TWO_AT_ONCE = """
import contextlib, io, os, signal, sys
from barrier_runtime.spark import deaths

def worker(number, until=None):
    if (pid := os.fork()) == 0:
        if until is not None:
            os.read(until, 1)
        os.kill(os.getpid(), number)
    return pid

class Slow(io.RawIOBase):
    def writable(self):
        return True
    def write(self, data):  # while it lasts the other worker dies
        global told
        if not told:
            told = True
            write(goes_on, b"!")
            with contextlib.suppress(ChildProcessError):  # its death was told meanwhile
                os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
        return write(2, data)

told, write = False, os.write
os.write = lambda descriptor, data: Slow().write(data)
sys.stderr = io.TextIOWrapper(io.BufferedWriter(Slow()), line_buffering=True)
waits, goes_on = os.pipe()
other, one = worker(signal.SIGTERM, waits), worker(signal.SIGKILL)
os.waitid(os.P_PID, one, os.WEXITED | os.WNOWAIT)
signal.signal(signal.SIGCHLD, deaths._reap)
signal.raise_signal(signal.SIGCHLD)
print([deaths.died_lately()[pid] for pid in (one, other)], flush=True)
os._exit(0)
"""


def test_a_worker_that_dies_while_the_death_of_another_is_told_ends_no_daemon():
    """The handler of the second death interrupts the first handler in the middle of a line."""
    ended = subprocess.run(
        [sys.executable, "-c", _TWO_AT_ONCE],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ended.returncode, ended.stdout) == (0, "['SIGKILL', 'SIGTERM']\n")
    assert sorted(line.split()[-1] for line in ended.stderr.splitlines()) == ["SIGKILL", "SIGTERM"]


def test_a_worker_knows_which_worker_died_of_what_before_it_was_forked():
    ended = subprocess.run(
        [sys.executable, "-c", _DAEMON],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert ended.stdout.split() == ["True", "SIG_IGN", "1"]
    assert "died of SIGSEGV" in ended.stderr


@pytest.mark.slow
def test_a_coordinator_that_dies_of_a_signal_is_told_by_its_name(tmp_path, caplog):
    with EmbeddedCoordinator(tmp_path.as_uri(), log_file=tmp_path / "log") as coordinator:
        coordinator.wait_ready()
        os.kill(coordinator.pid, signal.SIGSEGV)
        until(lambda: coordinator.restarts == 1, "it is started again")
        coordinator.wait_ready()
    assert "the coordinator process died of SIGSEGV; starting it again" in caplog.text
    written = (tmp_path / "log").read_text()
    assert "Fatal Python error: Segmentation fault" in written
    assert "coordinator/server/daemon.py" in written, "where it was"


@pytest.mark.slow
def test_a_worker_that_dies_writes_where_it_was_and_its_daemon_of_what(tmp_path):
    """The daemon and a worker as Spark starts them, without Spark: a port on standard output, a worker per
    connection."""
    log = tmp_path / "stderr"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "barrier_runtime.spark.worker_daemon"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as daemon,
    ):
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (worker,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            os.kill(worker, signal.SIGSEGV)
            assert connection.recv(1) == b"", "the worker is gone"
        until(lambda: f"Python worker {worker} died of SIGSEGV" in log.read_text(), "the daemon tells")
        daemon.stdin.close()
        daemon.wait()
    assert "Fatal Python error: Segmentation fault" in log.read_text()
