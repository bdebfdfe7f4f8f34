"""Coordinator as a child process of the driver, restarted after each death.

The driver owns the listening sockets: a restarted child has the same address, and slots that connect in between wait in
the backlog. The child ends with the driver, which closes the child's standard input.
"""

import contextlib
import errno
import importlib.util
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.private_directory import PrivateDirectory, write_private
from barrier_runtime.coordinator.client.rest_types import SubmitReply
from barrier_runtime.coordinator.client.trust import Trust, given_certificate
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.hosts import shown
from barrier_runtime.state.sockets import ANY_PORT, PortRange, listening_on, unheard
from barrier_runtime.state.tls import CertificateFiles

log = logging.getLogger("coordinator.embedded")

_START_TIMEOUT_S = 20.0
_QUICK_DEATH_S = 2.0
_MAX_QUICK_DEATHS = 5
_SUBMIT_TIMEOUT_S = 60.0
_AGAIN_S = 1.0
_PASSES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}  # of a new process


@dataclass(frozen=True)
class WebOptions:
    """REST and page of a child, on loopback. `https`: "generated", or a file with the certificate; "": HTTP."""

    ui: bool = True
    ports: PortRange = ANY_PORT
    https: str = ""
    https_key: str = ""

    def arguments(self) -> list[str]:
        options = {"--https": self.https, "--https-key": self.https_key}
        given = [part for flag, value in options.items() if value for part in (flag, value)]
        return given if self.ui else [*given, "--no-ui"]


class EmbeddedCoordinator:
    """Starts at once; use as a context manager or call `close()`.

    `host`: address to listen on for slots; REST stays on loopback. `advertise`: host that slots connect to, if another.
    """

    def __init__(
        self,
        storage_url: str,
        *,
        host: str = "127.0.0.1",
        advertise: str = "",
        ports: PortRange = ANY_PORT,
        log_file: Path | None = None,
        web: WebOptions = WebOptions(),
        tls: CertificateFiles | None = None,
    ) -> None:
        self._storage_url = storage_url
        self._advertise = advertise
        self._web_options = web
        self._tls = tls
        self._private = PrivateDirectory()
        self._token = secrets.token_hex(32)
        self._log_given = log_file
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._proven = False
        self._died: tuple[str, int] | None = None  # end of the previous child, and since when no child led
        self._specs: dict[str, JobSpec] = {}
        self._error: str | None = None
        self.restarts = 0
        try:
            self._control = _listen(host, ports, "coordinator_ports")
            self._web = _listen("127.0.0.1", web.ports, "http_ports")
            self._control_address = _address(self._control)
            url = f"{'https' if web.https else 'http'}://127.0.0.1:{self._web.getsockname()[1]}"
            self._certificate = given_certificate(web.https)
            self.client = CoordinatorClient(url, self._token, trust=Trust(certificate=str(self._certificate or "")))
            self._write_files()
            self._process = self._spawn()
        except BaseException:
            self._private.remove()
            raise
        self._supervisor = threading.Thread(target=self._supervise, name="coordinator-supervisor", daemon=True)
        self._supervisor.start()

    @property
    def control_address(self) -> tuple[str, int]:
        return self._control_address

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def error(self) -> str | None:
        return self._error

    def submit(self, spec: JobSpec) -> SubmitReply:
        """Submits a job now, and again to every restarted child."""
        reply = self._submit(spec)
        with self._lock:
            self._specs[spec.job] = spec
            self._proven = True
        return reply

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.client.health()
                return
            except Unavailable as error:
                self._check_alive(error, deadline)
                self._closing.wait(0.02)

    def ensure_alive(self) -> None:
        if self._error is not None:
            raise Unavailable(f"the coordinator can't be kept alive: {self._error}")

    def log_tail(self, lines: int = 20) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def close(self) -> None:
        """Ends the child. Deletes nothing in the store. May be repeated."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._supervisor is not threading.current_thread():
            self._supervisor.join(timeout=10)
        self._stop_listening()
        self._log_file.close()
        self._private.remove()

    def __enter__(self) -> "EmbeddedCoordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_files(self) -> None:
        self._directory = self._private.path
        self._token_file = self._directory / "driver.token"
        self._log_path = self._log_given or self._directory / "coordinator.log"
        write_private(self._token_file, self._token)
        self._log_file = self._log_path.open("ab")
        self._private.announce(self.url, self._token_file, self._certificate)

    def _has_token(self) -> bool:
        with contextlib.suppress(OSError):
            return self._token_file.read_text() == self._token
        return False

    def _spawn_again(self) -> bool:
        """False: closed, or given up."""
        while True:
            try:
                with self._lock:
                    if self._closing.is_set():
                        return False
                    if not self._has_token():  # a cleaner of temporary folders deletes old files
                        self._log_file.close()
                        self._private.remove()
                        self._private = PrivateDirectory()
                        self._write_files()
                    self._process = self._spawn()
                    return True
            except (OSError, InvalidJob) as error:
                why = f"no new coordinator process can be started: {error}"
                if not isinstance(error, OSError) or error.errno not in _PASSES:
                    self._give_up(why)
                    return False
            log.warning("%s; it is tried again", why)
            self._closing.wait(_AGAIN_S)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        for package in ("uvicorn", "starlette", "prometheus_client"):
            if importlib.util.find_spec(package) is None:
                raise missing_extra("the coordinator", "coordinator", ImportError(f"No module named {package!r}"))
        descriptors = (self._control.fileno(), self._web.fileno())
        command = [
            sys.executable,
            "-m",
            "barrier_runtime.coordinator.server.daemon",
            "--storage",
            self._storage_url,
            "--token-file",
            str(self._token_file),
            "--control-fd",
            str(descriptors[0]),
            "--http-fd",
            str(descriptors[1]),
            "--lease",
            "0",  # no daemon stands by: the driver restarts the child
            "--exit-with-parent",
            "--parents-directory",
            str(self._directory),
        ]
        if self._advertise:
            command += ["--advertise", shown(self._advertise, self._control_address[1])]
        command += self._web_options.arguments()
        if self._tls is not None:
            files = {"certificate": self._tls.certificate, "key": self._tls.key, "ca": self._tls.ca}
            command += [part for name, file in files.items() if file for part in (f"--tls-{name}", file)]
        if self._proven:
            command.append("--store-already-proven")
        if self._died is not None:
            ended, ended_ms = self._died
            command += ["--predecessor", ended, "--predecessor-ended-ms", str(ended_ms)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log_file,
            stderr=self._log_file,
            pass_fds=descriptors,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in the driver's terminal must not end the child before the driver decides
        )

    def _supervise(self) -> None:
        quick_deaths = 0
        while True:
            started = time.monotonic()
            code = self._process.wait()
            if self._closing.is_set():
                return
            ended_ms = round(time.time() * 1000)
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_DEATH_S else 0
            if quick_deaths and self._died is not None:
                ended_ms = self._died[1]
            self._died = f"process {self._process.pid} {how_it_ended(code)}", ended_ms
            if quick_deaths >= _MAX_QUICK_DEATHS or code == 2:
                self._give_up(f"it {how_it_ended(code)}; last log lines:\n{self.log_tail()}")
                return
            log.warning("the coordinator process %s; starting it again", how_it_ended(code))
            if self._process.stdin is not None:
                self._process.stdin.close()
            if not self._spawn_again():
                return
            self.restarts += 1
            with self._lock:
                specs = tuple(self._specs.values())
            # On another thread: the submit waits for an answer, and the child may die before that.
            threading.Thread(target=self._resubmit, args=(specs,), name="coordinator-submit", daemon=True).start()

    def _give_up(self, why: str) -> None:
        self._error = why
        log.error("%s", why)
        self._stop_listening()  # otherwise slots would wait in the backlog forever

    def _stop_listening(self) -> None:
        for listening in (self._control, self._web):
            listening.close()

    def _resubmit(self, specs: Sequence[JobSpec]) -> None:
        for spec in specs:
            try:
                self._submit(spec)
            except (InvalidJob, Unavailable) as error:
                if not self._closing.is_set():
                    log.error("job %s could not be submitted to the restarted coordinator: %s", spec.job, error)

    def _submit(self, spec: JobSpec) -> SubmitReply:
        deadline = time.monotonic() + _SUBMIT_TIMEOUT_S
        while True:
            try:
                return self.client.submit(spec)
            except Unavailable as error:
                self._check_alive(error, deadline)
                self._closing.wait(0.02)

    def _check_alive(self, error: Unavailable, deadline: float) -> None:
        self.ensure_alive()
        if self._closing.is_set():
            raise Unavailable("the coordinator is being closed") from error
        if time.monotonic() > deadline:
            raise Unavailable(
                f"coordinator process {self.pid} did not come up in time: {error}. Its log says:\n"
                f"{self.log_tail() or 'nothing: it gets too little processor time or memory; see what else runs here'}"
            ) from error


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


def _listen(host: str, ports: PortRange, option: str) -> socket.socket:
    for port in ports:
        try:
            return listening_on(host, port, reuse=port != 0)  # ended connections may still hold a port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise InvalidJob(
                    f"the coordinator can't listen on {host} ({unheard(error)}): use an address of this host"
                ) from error
    raise InvalidJob(f"all ports {ports} of {host} are in use: give {option} more ports")


def _address(listening: socket.socket) -> tuple[str, int]:
    host, port = listening.getsockname()[:2]
    return str(host), int(port)


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
