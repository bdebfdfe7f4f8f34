"""A cluster without Java: an S3 server, daemons, the program and slots, each on a host of its own.

The program (`barrier-runtime run --local --processes 0`) starts no slot; `barrier-runtime slot` on each slot's host
does. All hosts share the folder of the target, so a fault never hides the output from the judge.
"""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from barrier_runtime.coordinator.client.client import CoordinatorClient, FailoverClient
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.hosts import shown
from tests.hosts.namespaces import PRIVATE, Network
from tests.integration.chaos import workload
from tests.integration.chaos.verdict import Figures
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DRIVER, STORE = "driver", "store"
DAEMONS = ("daemon", "standby")
SLOTS = ("slot-0", "slot-1")
TOKEN = "0123456789abcdef" * 4
_S3, _STORE, _REST, _CONTROL = 9000, 9001, 7070, 7071
_CLI = "from barrier_runtime.tools.cli import main; main()"
_LOOK_S = 2.0
PATIENCE_S = 900.0  # for a condition that comes about at once on an idle machine


@dataclass(frozen=True)
class Chosen:
    rows_per_second: float = 400.0
    slot_timeout_s: float = 10.0
    daemons: int = 1
    spark: bool = False
    ipv6: bool = False


@dataclass
class Running:
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path


@dataclass
class World:
    chosen: Chosen
    network: Network
    logs: Path
    target: Path = PRIVATE / "target"
    slots: tuple[str, ...] = SLOTS  # hosts whose slots this world starts
    processes: dict[str, Running] = field(default_factory=dict)

    def start(self) -> None:
        for folder in (self.logs, self.target, PRIVATE / "local"):
            folder.mkdir(parents=True, exist_ok=True)
        self._token().write_text(TOKEN)
        self._token().chmod(0o600)
        self._start_store()
        for daemon in self.daemons:
            self._start_daemon(daemon)
            until(lambda daemon=daemon: self._answers(daemon), f"{daemon} answers", PATIENCE_S)
        self._start_driver()
        until(lambda: self.status() or self._check(), "the job is known", PATIENCE_S)
        for number, host in enumerate(self.slots):
            self._start_slot(number, host)

    # ------------------------------------------------------------ looking

    @property
    def daemons(self) -> tuple[str, ...]:
        return DAEMONS[: self.chosen.daemons]

    def status(self) -> JobStatus | None:
        """None while no coordinator answers."""
        for daemon in self.daemons:
            with contextlib.suppress(Unavailable, InvalidJob):  # cut off, standing by, or not submitted yet
                return CoordinatorClient(self._rest(daemon), TOKEN, timeout_s=_LOOK_S).status(workload.JOB)
        return None

    def ended(self) -> str:
        """Returns how a process that must run has ended; "" while all run."""
        for each in self.processes.values():
            code = each.process.poll()
            if code is not None:
                tail = each.log.read_text(errors="replace").strip()[-1500:]
                return f"{each.name} ended with {code}: {tail}"
        return ""

    # ------------------------------------------------------------ faults beside those of the network

    @contextlib.contextmanager
    def delayed(self, milliseconds: float) -> Iterator[None]:
        """Delays requests to the store and answers of the store."""
        self._delay().write_text(str(milliseconds))
        try:
            yield
        finally:
            self._delay().unlink()

    @contextlib.contextmanager
    def skewed(self, host: str, seconds: float) -> Iterator[None]:
        """Steps the wall clock of all processes of a host, and steps it back."""
        self._skew(host).write_text(str(seconds))
        try:
            yield
        finally:
            self._skew(host).unlink()

    @contextlib.contextmanager
    def switched_off(self, host: str) -> Iterator[None]:
        """Kills all processes of a host, as a power cut does; the end starts them again."""
        os.killpg(self.processes.pop(host).process.pid, signal.SIGKILL)
        for pid in processes_of(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            yield
        finally:
            self.bring_back(host)

    def bring_back(self, host: str) -> None:
        if host in self.slots:
            self._start_slot(self.slots.index(host), host)
        else:
            self._start_daemon(host)

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        """Stops the job with a last checkpoint. Raises if a process does not end well."""
        until(self._asked_to_stop, "the coordinator accepts the stop", PATIENCE_S)
        for name in (DRIVER, *self.slots):
            code = self.processes[name].process.wait(PATIENCE_S)
            if code:
                raise ChildProcessError(self.ended())

    def audits(self) -> dict[str, Figures]:
        """Figures of outputs beside the files, after the end."""
        return {}

    def _asked_to_stop(self) -> bool:
        with contextlib.suppress(Unavailable):
            self._client().stop(workload.JOB)
            return True
        return False

    # ------------------------------------------------------------ processes

    def _start_store(self) -> None:
        self._run(STORE, "s3", [sys.executable, "-m", "examples.servers.s3", str(_S3)])
        relay = [self._place(STORE, _STORE), f"127.0.0.1:{_S3}", str(self._delay())]
        self._run(STORE, "relay", [sys.executable, "-m", "tests.hosts.relay", *relay])
        until(self._made_bucket, "the store answers", PATIENCE_S)

    def _made_bucket(self) -> bool:
        with contextlib.suppress(OSError):
            asked = urllib.request.Request(f"{self._endpoint()}/{self._bucket()}", method="PUT")
            urllib.request.urlopen(asked, timeout=10).close()
            return True
        return bool(self._check())

    def _start_daemon(self, host: str) -> None:
        places = ["--listen", self._place(host, _CONTROL), "--http", self._place(host, _REST)]
        flags = [*places, "--storage", self._checkpoints()]
        module = [sys.executable, "-m", "barrier_runtime.coordinator.server.daemon"]
        self._run(host, host, [*module, *flags, "--token-file", str(self._token()), "--insecure-network-ok"])

    def _start_driver(self) -> None:
        options = {
            "--processes": "0",
            "--parallelism": str(len(self.slots)),
            "--checkpoints": self._checkpoints(),
            "--checkpoint-interval": "0.5",
            "--slot-timeout": f"{self.chosen.slot_timeout_s:g}",
            "--resource-wait-timeout": "600",
        }
        given = [part for option in options.items() for part in option]
        self._run(
            DRIVER, DRIVER, [sys.executable, "-c", _CLI, "run", self._app(), "--local", *given, *self._coordinator()]
        )

    def _start_slot(self, number: int, host: str) -> None:
        command = [sys.executable, "-c", _CLI, "slot", self._app(), "--slot", str(number), *self._coordinator()]
        until(lambda: self._misses(number), f"the coordinator misses slot {number}", PATIENCE_S)
        self._run(host, host, command)

    def _misses(self, number: int) -> bool:
        status = self.status()
        return status is not None and number in status.missing_slots

    def _run(self, host: str, name: str, command: Sequence[str]) -> None:
        log = self.logs / f"{name}.log"
        local = PRIVATE / "local" / host
        local.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.network.command(host, command),
                env={
                    **os.environ,
                    **self._environment(),
                    **self._environment_of(host),
                    "SPARK_LOCAL_DIRS": str(local),
                    "HOSTS_SKEW": str(self._skew(host)),
                    _HOST: host,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
        self.processes[name] = Running(name, process, log)

    def _environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self._endpoint(),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("skewed")), str(ROOT)]),
            "HOSTS_TARGET": str(self.target),
            "HOSTS_RATE": str(self.chosen.rows_per_second),
        }

    def _environment_of(self, host: str) -> dict[str, str]:
        return {}

    # ------------------------------------------------------------ names

    def _client(self) -> FailoverClient:
        return FailoverClient([self._rest(daemon) for daemon in self.daemons], TOKEN)

    def _answers(self, daemon: str) -> bool:
        with contextlib.suppress(Unavailable):
            return CoordinatorClient(self._rest(daemon), TOKEN).health() is not None
        return bool(self._check())

    def _check(self) -> None:
        """Raises if a process has ended."""
        if ended := self.ended():
            raise ChildProcessError(ended)

    def _rest(self, daemon: str) -> str:
        return f"http://{self._place(daemon, _REST)}"

    def _coordinator(self) -> list[str]:
        return ["--coordinator", ",".join(map(self._rest, self.daemons)), "--token-file", str(self._token())]

    def _endpoint(self) -> str:
        return f"http://{self._place(STORE, _STORE)}"

    def _place(self, host: str, port: int) -> str:
        return shown(self.network.address(host), port)

    def _bucket(self) -> str:
        return "barrier-runtime"

    def _checkpoints(self) -> str:
        return f"s3://{self._bucket()}/checkpoints"

    def _token(self) -> Path:
        return PRIVATE / "token"

    def _skew(self, host: str) -> Path:
        return PRIVATE / f"skew-{host}"

    def _delay(self) -> Path:
        return PRIVATE / "delay"

    def _app(self) -> str:
        return f"{Path(__file__).with_name('app.py')}:flow"


_HOST = "BARRIER_RUNTIME_TEST_HOST"  # in the environment of all processes of a host


def processes_of(host: str) -> list[int]:
    mark = f"{_HOST}={host}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # exited meanwhile
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
