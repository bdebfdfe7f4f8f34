"""A daemon of the next release takes over running jobs of this one, and jobs move to it one by one.

The next release is a copy of the sources with a raised protocol version, a changed message in each direction, and their
translation.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime import Dataflow, JsonlSink
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.state.errors import Unavailable
from examples.servers.base import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
NEXT = PROTOCOL_VERSION + 1
PATIENCE_S = 600
CHANGES = {
    "coordinator/wire/messages.py": [
        (rf"PROTOCOL_VERSION = {PROTOCOL_VERSION}\b", f"PROTOCOL_VERSION = {NEXT}"),
        (r"ACCEPTED_PROTOCOLS = \(.*?\)", f"ACCEPTED_PROTOCOLS = ({PROTOCOL_VERSION}, {NEXT})"),
        (r"triggered_at_ms: int\n", 'triggered_at_ms: int = msgspec.field(name="begun_ms")\n'),
        (r"sent_at_ms: int = 0\n", 'sent_at_ms: int = msgspec.field(default=0, name="clock_ms")\n'),
    ],
    "coordinator/wire/codec.py": [
        (
            r"TRANSLATIONS: (.*?) = \{\}",
            f"""
def _renamed(fields: Fields, before: str, after: str) -> Fields:
    return {{(after if name == before else name): value for name, value in fields.items()}}


TRANSLATIONS: \\1 = {{
    {PROTOCOL_VERSION}: Translation(
        {{"Trigger": lambda fields: _renamed(fields, "begun_ms", "triggered_at_ms")}},
        {{"Heartbeat": lambda fields: _renamed(fields, "sent_at_ms", "clock_ms")}},
    )
}}""",
        ),
    ],
}
PROGRAM = """
import sys
from barrier_runtime import Dataflow, JsonlSink

url, token_file, folder = sys.argv[1:]
flow = Dataflow("moved")
flow.rate("ticks", 2_000, splits=2).select(["value"]).sink("out", JsonlSink(folder + "/moved"))
job = flow.start_local(processes=1, coordinator=url, token_file=token_file, resource_wait_timeout=3_600,
                       slot_timeout=300, checkpoint_interval=0.2, checkpoints=folder + "/jobs")
with job:
    while (status := job.status()).outcome is None and status.checkpoints.completed < 2:
        pass
print("ended", job.wait(timeout=600).status.outcome)
"""


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    for package in ("barrier_runtime", "coordinator", "state"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=ignored)
    for name, changes in CHANGES.items():
        text = (folder / name).read_text()
        for pattern, after in changes:
            text, times = re.subn(pattern, after, text)
            assert times == 1, pattern
        (folder / name).write_text(text)
    return folder


class Daemon:
    """`barrier-runtime coordinator` of the sources in `release`, on the same ports after each start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self._listen = f"127.0.0.1:{free_port()}"
        self.token_file = folder / "token"
        self.token_file.write_text("0123456789abcdef" * 4)
        self.token_file.chmod(0o600)
        self._client = CoordinatorClient(self.url, self.token_file.read_text())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, release: Path) -> None:
        places = ["--listen", self._listen, "--http", self.url.removeprefix("http://")]
        stored = ["--storage", str(self._folder / "jobs"), "--token-file", str(self.token_file)]
        main = "from barrier_runtime.tools.cli import main; main()"
        command = [sys.executable, "-c", main, "coordinator", *places, *stored]
        self._process = subprocess.Popen(command, cwd=release, env=environment(release))
        until(self._answers, "the daemon to answer", patience_s=PATIENCE_S)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the daemon did not start"
        try:
            return self._client.health().pid == self._process.pid
        except Unavailable:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def environment(release: Path) -> dict[str, str]:
    path = os.pathsep.join([str(release), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def run_program(release: Path, daemon: Daemon, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "app.py").write_text(PROGRAM)
    given = [daemon.url, str(daemon.token_file), str(folder)]
    command = [sys.executable, "app.py", *given]
    return subprocess.run(command, cwd=folder, env=environment(release), capture_output=True, text=True)


def start(folder: Path, daemon: Daemon) -> JobHandle:
    flow = Dataflow("stays")
    flow.rate("ticks", 2_000, splits=2).select(["value"]).sink("out", JsonlSink(str(folder / "stays")))
    return flow.start_local(
        processes=2,
        coordinator=daemon.url,
        token_file=str(daemon.token_file),
        checkpoints=str(folder / "jobs"),
        checkpoint_interval=0.2,
        resource_wait_timeout=3_600,
        slot_timeout=300,
    )


def led_by(job: JobHandle, other_than: str, completed: int) -> JobStatus:
    """Returns the status once another process leads and has completed more checkpoints than `completed`."""
    seen: list[JobStatus] = []

    def reached() -> bool:
        try:
            seen.append(job.status())
        except Unavailable:
            return False
        assert seen[-1].outcome is None, seen[-1].error
        return (
            seen[-1].phase == "running" and seen[-1].leader != other_than and seen[-1].checkpoints.completed > completed
        )

    until(reached, "checkpoints of another leader", patience_s=PATIENCE_S)
    return seen[-1]


def test_a_daemon_of_the_next_release_takes_over_running_jobs(
    tmp_path: Path, daemon: Daemon, next_release: Path
) -> None:
    daemon.start(ROOT)
    with start(tmp_path, daemon) as job:
        before = led_by(job, "", 2)
        daemon.kill()
        daemon.start(next_release)
        after = led_by(job, before.leader, before.checkpoints.completed + 2)
        assert (after.token, after.generations) == (before.token, before.generations)
        assert [slot.pid for slot in after.slots] == [slot.pid for slot in before.slots]
        os.kill(after.slots[0].pid, signal.SIGKILL)  # the slots are deployed anew, by the next release
        until(lambda: job.status().token > after.token, "another generation", patience_s=PATIENCE_S)
        led_by(job, before.leader, job.status().checkpoints.completed + 1)
        moved = run_program(next_release, daemon, tmp_path)  # another job is of the next release already
        assert moved.stdout.endswith("ended cancelled\n"), moved.stderr
    assert job.status().outcome == "cancelled"


def test_slots_of_the_next_release_are_refused_by_name(tmp_path: Path, daemon: Daemon, next_release: Path) -> None:
    daemon.start(ROOT)
    refused = run_program(next_release, daemon, tmp_path)
    assert refused.returncode != 0
    assert f"has the protocol {NEXT}, the coordinator has {PROTOCOL_VERSION}" in refused.stderr
    assert "coordinator daemons the same release" in refused.stderr
