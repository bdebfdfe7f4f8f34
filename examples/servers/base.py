"""Base of all servers of tests and examples: a directory and a port, start, stop, kill, start again.

A server runs below a keeper (keeper.py), so no process of the server outlives `kill`, `close` or the process that
called `start`. A restarted server keeps data and port, like a machine that was switched off and on.
"""

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from signal import SIGTERM

_KEEPER = Path(__file__).with_name("keeper.py")
_PORTS = range(15_000, 32_000)  # below the systems' ports for outgoing connections: a stopped server keeps the port
_LOOK_S = 0.05
_LOG_LINES = 20
_LONGEST_PARENT = 30  # characters: paths of sockets are limited to about a hundred
_reservations: list[socket.socket] = []


class ServerError(RuntimeError):
    """A server is not installed or does not start. The message has the remedy, or the server's output."""


class Server:
    """A server. Subclasses set `name` and `command`, may prepare `directory`, and implement `ready`."""

    name = "server"
    start_s = 120.0  # longest wait for a start
    stop_signal = SIGTERM

    def __init__(self, user: str = "") -> None:
        self.port = free_port()
        self.user = user
        self.directory = Path(tempfile.mkdtemp(prefix=f"barrier-{self.name}-", dir=_parent()))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._serving = False
        if user:
            shutil.chown(self.directory, user, user)

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Variables added to this process's environment."""
        return {}

    def ready(self) -> bool:
        """True if the server serves. Errors count as false."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """True if the server has served since the last start and is alive; false during the start."""
        return self._serving and self.alive

    @property
    def alive(self) -> bool:
        """True if there is a process of the server."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pids(self) -> list[int]:
        """Process ids of the server, without the keeper."""
        import psutil

        if self._keeper is None or self._keeper.poll() is not None:
            return []
        return [child.pid for child in psutil.Process(self._keeper.pid).children(recursive=True)]

    def start(self) -> None:
        """Starts the server and returns when it serves. After `stop` or `kill`: with the same port and data."""
        if self.alive:
            return
        self._keeper = subprocess.Popen(
            [sys.executable, str(_KEEPER), self.user, str(self.directory), str(self.log), *self.command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **self.environment()},
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        self._serving = True

    def stop(self, patience_s: float = 30.0) -> None:
        """Asks the server to end, as an administrator would; sends SIGKILL after `patience_s`."""
        self._order(f"stop {int(self.stop_signal)} {patience_s}")

    def kill(self) -> None:
        """Sends SIGKILL to all processes of the server."""
        self._order("kill")

    def close(self) -> None:
        """Sends SIGKILL to all processes of the server, and removes the data."""
        self._order("kill")
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def _order(self, order: str) -> None:
        self._serving = False
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(f"{order}\n".encode())
            self._keeper.stdin.flush()
        self._keeper.wait()
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise ServerError(f"{self.name} ended at once:\n{self._last_words()}")
            with contextlib.suppress(Exception):
                if self.ready():
                    return
            time.sleep(_LOOK_S)
        raise ServerError(f"{self.name} does not serve after {self.start_s:.0f} s:\n{self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_LOG_LINES:])


def _parent() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_PARENT else "/tmp"


def free_port() -> int:
    """An unused port of 127.0.0.1, reserved for this process: no other process's call returns the port.

    Servers listen seconds later, and keep their ports while they are stopped. The system gives these ports to no
    outgoing connection.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        reservation = _reserve(port)
        if reservation is None:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _reservations.append(reservation)
            return port
        reservation.close()


def _reserve(port: int) -> socket.socket | None:
    """A socket whose name reserves the port until the process ends; None if another socket has the name."""
    reservation = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":  # a name without a file; like the port, a name of this network namespace
        try:
            reservation.bind(f"\0barrier-port-{port}")
        except OSError:
            reservation.close()
            return None
    return reservation


def find_program(name: str, package: str, *places: str) -> str:
    """Path of a program on PATH or in `places` (glob patterns below /).

    Raises ServerError with the remedy."""
    found = shutil.which(name)
    beside = [str(path) for pattern in places for path in sorted(Path("/").glob(pattern), reverse=True)]
    if not found and not beside:
        raise ServerError(f"{name} is not installed: apt-get install {package} (.ci/servers brings all servers)")
    return beside[0] if beside else str(found)


def ordinary_user(name: str) -> str:
    """User for a server that refuses root: `name` if this process is root's, else "" for this user."""
    if os.getuid() != 0:
        return ""
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise ServerError(f"there is no user {name}, as whom root starts the server: run .ci/servers") from None
    return name


def run_as(user: str, command: list[str], directory: Path, environment: dict[str, str] | None = None) -> None:
    """Runs a command and waits for the end. Raises ServerError with the command's output."""
    as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **as_user,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace")[-2000:]
        raise ServerError(f"{Path(command[0]).name} failed with {done.returncode}:\n{said}")
