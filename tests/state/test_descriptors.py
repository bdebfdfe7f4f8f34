"""The limit of open files is raised in processes of ours, and named when files run out. Limits are set in children."""

import errno
import resource
import subprocess
import sys

import pytest

from barrier_runtime.state.descriptors import remedy_if_exhausted

LOW, HIGH = 200, 400
_SLOT = """
import pickle
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.spark.task import SlotSettings, run_slot
options = SlotOptions(coordinator_lease=0.1)
print(run_slot(0, 1, SlotSettings(b"no program", options, b"secret" * 8, (("127.0.0.1", 1),), "file:///none", job="j")))
"""
_DAEMON = """
from barrier_runtime.coordinator.server import daemon
assert daemon.main(["--storage", "nowhere://", "--token-file", "/none"]) == 2
"""
_CONNECTS = """
import asyncio
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.runtime.network.channels import ChannelId
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.errors import Unavailable

async def main():
    listening = TcpDataPlane(b"s" * 32, "job", "run")
    host, port = await listening.listen()
    connecting = TcpDataPlane(b"s" * 32, "job", "run")
    taken = []
    try:
        while True:
            taken.append(open("/dev/null"))
    except OSError:
        pass
    try:
        await connecting.connect(Peer(4, "u", host, port), [ChannelId(1, 0, 14, 4)], lambda: None)
    except Unavailable as error:
        taken.clear()
        print(error)

asyncio.run(main())
"""


def ended(script: str) -> str:
    """Output of a child that begins with the limits, and prints the limits that the script leaves behind."""
    whole = f"{script}\nimport resource\nprint(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LOW}, {HIGH}))\n"
    command = [sys.executable, "-c", limits + whole]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", [_SLOT, _DAEMON], ids=["slot", "daemon"])
def test_process_begins_with_the_hard_limit(script: str) -> None:
    assert ended(script).splitlines()[-1] == f"{HIGH} {HIGH}"


@pytest.mark.slow
def test_connection_that_fails_for_lack_of_files_names_limit_and_remedy() -> None:
    said = ended(_CONNECTS)
    assert "slot 14 cannot reach slot 4" in said
    assert f"this process may open {LOW} files and connections (hard limit {HIGH}): raise the hard limit" in said
    assert "check the network" not in said


def test_error_for_lack_of_files_is_recognized_through_its_causes() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    outer = RuntimeError("the flush failed")
    outer.__cause__ = OSError(errno.EMFILE, "Too many open files")
    for error in (outer, RuntimeError("IO error: While open a file: Too many open files")):
        assert remedy_if_exhausted(error).startswith(f"this process may open {soft:,} files")
    assert "fs.file-max" in remedy_if_exhausted(OSError(errno.ENFILE, "full"))
    assert remedy_if_exhausted(OSError(errno.ENOENT, "Too many open files?")) == ""
    assert remedy_if_exhausted(None) == ""
