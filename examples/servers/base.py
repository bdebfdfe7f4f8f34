"""What all servers of tests and examples share: a directory and a port of their own, start, stop, kill, start again.

A server runs below a keeper (keeper.py), so nothing of it outlives `kill`, `close` or the process that asked for it.
Its data and port stay from one start to the next, as those of a machine that was switched off and on.
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
_PORTS = range(15_000, 32_000)  # below those that systems hand to outgoing connections: a stopped server keeps its port
_LOOK_S = 0.05
_LOG_LINES = 20
_LONGEST_PARENT = 30  # characters: paths of sockets may have some hundred


class ServerError(RuntimeError):
    """A server is not installed or does not start. The message says what to do, or what the server said."""


class Server:
    """Subclasses set `name` and `command`, may prepare `directory`, and say when they are `ready`."""

    name = "server"
    start_s = 120.0  # the longest wait for a start
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
        """Added to this process's environment."""
        return {}

    def ready(self) -> bool:
        """Does it serve? Errors count as no."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Has it served since its start, and is it still there? Not yet while it starts."""
        return self._serving and self.alive

    @property
    def alive(self) -> bool:
        """Is there a process of it?"""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pids(self) -> list[int]:
        """Of all its processes, without the keeper."""
        import psutil

        if self._keeper is None or self._keeper.poll() is not None:
            return []
        return [child.pid for child in psutil.Process(self._keeper.pid).children(recursive=True)]

    def start(self) -> None:
        """Start it and return when it serves. Again after `stop` or `kill`: with the same port and data."""
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
        """Ask it to end, as an administrator would; kill what has not ended then."""
        self._order(f"stop {int(self.stop_signal)} {patience_s}")

    def kill(self) -> None:
        """SIGKILL to all of it."""
        self._order("kill")

    def close(self) -> None:
        """SIGKILL to all of it, and its data removed."""
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
    """A port of 127.0.0.1 that nobody uses, now or as the near end of a connection later."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def find_program(name: str, package: str, *places: str) -> str:
    """Path of a program on PATH or in one of `places` (glob patterns below /). Raises ServerError with the remedy."""
    found = shutil.which(name)
    beside = [str(path) for pattern in places for path in sorted(Path("/").glob(pattern), reverse=True)]
    if not found and not beside:
        raise ServerError(f"{name} is not installed: apt-get install {package} (.ci/servers brings all servers)")
    return beside[0] if beside else str(found)


def ordinary_user(name: str) -> str:
    """Whose user a server has to run as: `name` for root (it refuses root), nobody else's ("") otherwise."""
    if os.getuid() != 0:
        return ""
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise ServerError(f"there is no user {name}, as whom root starts the server: run .ci/servers") from None
    return name


def run_as(user: str, command: list[str], directory: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command to its end. Raises ServerError with what it said."""
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
