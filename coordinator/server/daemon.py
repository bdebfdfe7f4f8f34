"""Coordinator process, `python -m barrier_runtime.coordinator.server.daemon`.

Opens two ports, runs every job on one loop, and stores everything in the object store: killing the process is always
safe. Several daemons with the same storage and token stand by for each other (`--lease`). Exit deletes nothing and ends
no job. REST modules are imported after slots can connect.

HTTP connections have limits that uvicorn lacks, before any token is checked (behaviours G5, H3):

- `MAX_CONNECTIONS` at a time; further connections are closed at once.
- A request, head and body, must arrive within `REQUEST_TIMEOUT_S` of the connection or the previous answer. The time
  for an answer is unlimited: the daemon's own work.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from uvicorn import Server
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from barrier_runtime.coordinator.client.private_directory import PrivateDirectory
from barrier_runtime.coordinator.client.rest_token import Token, daemon_key, read_token_file
from barrier_runtime.coordinator.log.lease import Holder
from barrier_runtime.coordinator.log.record_builder import Predecessor
from barrier_runtime.coordinator.option_table import DAEMON, Option, shown_value, wanted
from barrier_runtime.coordinator.own_versions import own_versions
from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.leases import Leases
from barrier_runtime.coordinator.server.logs import configure
from barrier_runtime.coordinator.server.telemetry.opentelemetry import OpenTelemetryExports
from barrier_runtime.coordinator.server.web.front import now_ms
from barrier_runtime.coordinator.wire.peers import across_hosts, never
from barrier_runtime.state.descriptors import raise_limit
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.hosts import is_every_interface, is_loopback, shown, split
from barrier_runtime.state.sockets import listening_on
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store

if TYPE_CHECKING:
    from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress

MAX_CONNECTIONS = 128
REQUEST_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 * 1024


class RestingServer(Server):
    """Server without uvicorn's ten polls a second, which would be most of an idle coordinator's work."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # makes the headers of answers, which stay the same without a date
        await self._leaving.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._leaving.set)

    def leave(self) -> None:
        """Ends `serve`, on the loop's thread, after answers under way."""
        self.should_exit = True
        self._leaving.set()


class BoundedConnection(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._request_timeout_s = request_timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self._request_timeout_s, self._overdue)

    def _overdue(self) -> None:
        being_answered = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if not being_answered:
            self.transport.abort()


log = logging.getLogger("coordinator.daemon")


@dataclass(frozen=True)
class Settings:
    storage: str
    token_file: str
    listen: str
    http: str
    advertise: str
    advertise_http: str
    control_fd: int | None
    http_fd: int | None
    exit_with_parent: bool
    parents_directory: Path | None
    insecure_network_ok: bool
    store_already_proven: bool
    predecessor: str
    predecessor_ended_ms: int
    log_format: str
    no_ui: bool
    handshake_timeout: float
    lease: float


def main(arguments: list[str] | None = None) -> int:
    settings = _parsed(arguments)
    configure(settings.log_format)
    faulthandler.enable()
    raise_limit()
    try:
        asyncio.run(_run(settings))
    except InvalidJob as error:
        log.error("%s", error)
        return 2
    except BarrierRuntimeError as error:
        log.error("%s", error)
        return 1
    return 0


# Options for programs that start a daemon for their own job (`client/embedded`), not for people.
_FOR_LAUNCHERS: dict[str, dict[str, Any]] = {
    "--control-fd": {"type": int},  # an inherited listening socket instead of --listen
    "--http-fd": {"type": int},  # the same instead of --http
    "--exit-with-parent": {"action": "store_true"},  # when standard input is closed
    "--parents-directory": {"type": Path},  # with --exit-with-parent: removed if a killed parent cannot do so
    "--store-already-proven": {"action": "store_true"},  # skip the start-up probe of the store
    "--predecessor": {"default": ""},  # end of the process that this process replaces
    "--predecessor-ended-ms": {"type": int, "default": 0},
}


def _parsed(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(
        prog="barrier-runtime coordinator", description="The checkpoint coordinator.", allow_abbrev=False
    )
    for option in DAEMON:
        if option.type is bool:
            parser.add_argument(option.flag, action="store_true", help=option.help)
            continue
        parser.add_argument(
            option.flag,
            required=option.default is None,
            default=option.default,
            type=option.plain_type if not option.choices else str,
            choices=option.choices or None,
            help=f"{option.help} (default: {shown_value(option, option.default)})",
        )
    for flag, settings in _FOR_LAUNCHERS.items():
        parser.add_argument(flag, help=argparse.SUPPRESS, **settings)
    return Settings(**vars(parser.parse_args(arguments)))


def _check_bounds(option: Option, value: Any) -> None:
    if option.low is None or option.high is None or option.low <= value <= option.high:
        return
    if option.name == "lease" and value == 0:
        return
    raise InvalidJob(f"{option.flag} {value:g}: {wanted(option)}{', or 0 for none' if option.name == 'lease' else ''}")


async def _run(settings: Settings) -> None:
    for option in DAEMON:
        _check_bounds(option, getattr(settings, option.name))
    token, key = read_token(Path(settings.token_file))
    control = _listening("--listen", settings.listen, settings.control_fd)
    web = _listening("--http", settings.http, settings.http_fd)
    if not settings.insecure_network_ok:
        _check_rest_on_loopback(web)
    for_slots = _advertised("--listen", control, "--advertise", settings.advertise)
    http_host = settings.advertise_http
    if not http_host and settings.advertise and is_every_interface(str(web.getsockname()[0])):
        http_host = for_slots.host
    for_rest = _advertised("--http", web, "--advertise-http", http_host)
    store = open_store(settings.storage)
    probe = None
    if not settings.store_already_proven:
        from barrier_runtime.state.store.probe import prove_once

        def probe() -> None:
            prove_once(store, "_probe", now_ms())

    directory = JobDirectory(
        store,
        daemon_key=key,
        leader=uuid.uuid4().hex,
        host=socket.gethostname(),
        probe=probe,
        leases=_leases(settings.lease, store, for_slots, for_rest),
    )
    directory.versions = own_versions()
    if settings.predecessor:
        directory.predecessor = Predecessor(settings.predecessor, settings.predecessor_ended_ms)
    encrypts = never if settings.insecure_network_ok else across_hosts
    server = ControlServer(directory, control, handshake_timeout_s=settings.handshake_timeout, encrypts=encrypts)
    await server.start()
    log.info("slots connect to %s; storage %s", for_slots, store.url)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if settings.exit_with_parent:
        _watch_parent(loop, stopping, settings.parents_directory)
    exports = OpenTelemetryExports(directory, now_ms)
    page = None if settings.no_ui else (f"http://{for_rest}", settings.token_file)
    request_s = 2 * settings.handshake_timeout
    serving = loop.create_task(_serve_rest(directory, for_slots, web, token, page, stopping, request_s))
    announced = contextlib.nullcontext() if settings.exit_with_parent else _announced(web, Path(settings.token_file))
    try:
        with announced:
            await stopping.wait()
    finally:
        exported = exports.end()
        await server.close()
        await directory.close()
        await exported
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@contextlib.contextmanager
def _announced(web: socket.socket, token_file: Path) -> Iterator[None]:
    """Lets commands of this user find the daemon, if this machine has a folder for temporary files."""
    host, port = web.getsockname()[:2]
    try:
        private = PrivateDirectory()
    except OSError as error:
        log.info("commands need --coordinator to find this daemon: no temporary folder can be made (%s)", error)
        yield
        return
    try:
        private.announce(
            f"http://{shown('127.0.0.1' if is_every_interface(str(host)) else str(host), port)}", token_file
        )
        yield
    finally:
        private.remove()


@dataclass(frozen=True)
class _Advertised:
    host: str
    port: int

    def __str__(self) -> str:
        return shown(self.host, self.port)


def _advertised(option: str, listening: socket.socket, flag: str, given: str) -> _Advertised:
    """Address that other processes connect to: as given, or the address of the socket."""
    bound, bound_port = listening.getsockname()[:2]
    try:
        host, port = split(given or shown(str(bound), bound_port))
    except ValueError as error:
        raise InvalidJob(f"{flag} {given!r} is not understood ({error}): use host or host:port") from error
    if is_every_interface(host):
        raise InvalidJob(
            f"nobody can connect to {host}, which means every interface of this host for {option}: name the address "
            f"that others connect to with {flag} HOST, or listen on that address"
        )
    return _Advertised(host, port or int(bound_port))


def _leases(lease_s: float, store: ObjectStore, for_slots: _Advertised, for_rest: _Advertised) -> Leases | None:
    if lease_s == 0:
        return None
    # The name stays the same after a restart at the same address, so that a daemon takes jobs back at once.
    name = f"{for_slots} on {socket.gethostname()}"
    return Leases(store, Holder(name, str(for_slots), f"http://{for_rest}", round(lease_s * 1000)))


async def _serve_rest(
    directory: JobDirectory,
    for_slots: _Advertised,
    web: socket.socket,
    token: Token,
    page: tuple[str, str] | None,
    stopping: asyncio.Event,
    request_timeout_s: float,
) -> None:
    try:
        from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress

        at = None if page is None else PageAddress(*page)
        control = ControlAddress(for_slots.host, for_slots.port)
        server = rest_server(directory, control, token, os.getpid(), at, request_timeout_s)
        log.info("REST at http://%s", shown(*web.getsockname()[:2]))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        await server.serve(sockets=[web])
    finally:
        stopping.set()


def rest_server(
    directory: JobDirectory,
    control: "ControlAddress",
    token: Token,
    pid: int,
    page: "PageAddress | None",
    request_timeout_s: float,
) -> RestingServer:
    """Server of REST and page for the running loop. `control`: address for slots. `page`: None without a page."""
    from barrier_runtime.coordinator.server.rest import application

    config = Config(
        application(directory, control, token, pid, page),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http=partial(BoundedConnection, request_timeout_s=request_timeout_s),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=5,
        server_header=False,
        date_header=False,
    )
    return RestingServer(config)


def read_token(path: Path) -> tuple[Token, bytes]:
    """Returns the bearer token and the daemon's root key from a file that only the owner may read."""
    value = read_token_file(path)
    return Token(path.stem, value.encode()), daemon_key(value)


def _listening(option: str, address: str, inherited: int | None) -> socket.socket:
    if inherited is not None:
        listening = socket.socket(fileno=inherited)
    else:
        try:
            host, port = split(address)
        except ValueError:
            port = None
        if port is None:
            raise InvalidJob(f"{option} {address!r} is not understood: use host:port")
        try:
            listening = listening_on(host, port, reuse=True)
        except OSError as error:
            raise InvalidJob(f"{option} {address}: {error.strerror}: choose another address") from error
    listening.setblocking(False)
    return listening


def _check_rest_on_loopback(web: socket.socket) -> None:
    """Refuses other addresses for REST without the operator's consent (G1): REST is not encrypted."""
    host = str(web.getsockname()[0])
    if not is_loopback(host):
        web.close()
        raise InvalidJob(
            f"--http {host} is not a loopback address, and REST is not encrypted: everybody on the network could read "
            "tokens and the jobs; use 127.0.0.1 with an SSH tunnel (browsers: or a TLS proxy), or confirm with "
            "--insecure-network-ok that the network is trusted"
        )


def _watch_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, directory: Path | None) -> None:
    descriptor = sys.stdin.fileno()
    os.set_blocking(descriptor, False)

    def readable() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                if directory is not None:
                    shutil.rmtree(directory, ignore_errors=True)  # the token and the log: nobody reads them any more
                stopping.set()

    loop.add_reader(descriptor, readable)


if __name__ == "__main__":
    sys.exit(main())
