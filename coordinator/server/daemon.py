"""Coordinator process, `python -m barrier_runtime.coordinator.server.daemon`.

Runs every job on one loop, and stores everything in the object store: killing the process is always safe. Several
daemons with the same storage and token stand by for each other (`--lease`).
"""

import argparse
import asyncio
import contextlib
import datetime
import errno
import faulthandler
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barrier_runtime.coordinator.client.private_directory import PrivateDirectory
from barrier_runtime.coordinator.client.rest_token import Token, daemon_key, read_token_file
from barrier_runtime.coordinator.client.trust import GENERATED, given_certificate
from barrier_runtime.coordinator.log.lease import Holder
from barrier_runtime.coordinator.log.record_builder import Predecessor
from barrier_runtime.coordinator.option_table import DAEMON, Option, shown_value, wanted
from barrier_runtime.coordinator.own_versions import own_versions
from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.leases import Leases
from barrier_runtime.coordinator.server.logs import configure
from barrier_runtime.coordinator.server.serving import ServerOptions, rest_server
from barrier_runtime.coordinator.server.telemetry.opentelemetry import OpenTelemetryExports
from barrier_runtime.coordinator.server.web.sessions import now_ms
from barrier_runtime.coordinator.wire.handshake import across_hosts, never
from barrier_runtime.state.descriptors import raise_limit
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.hosts import is_every_interface, is_loopback, shown, split
from barrier_runtime.state.sockets import ANY_PORT, PortRange, address_of, listening_on, port_range, unheard
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import lies_within, open_store
from barrier_runtime.state.store.urls import without_credentials
from barrier_runtime.state.tls import CertificateFiles, Certificates, context_of, peer_tls, server_context

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
    https: str
    https_key: str
    tls_certificate: str
    tls_key: str
    tls_ca: str
    store_already_proven: bool
    predecessor: str
    predecessor_ended_ms: int
    log_format: str
    savepoint_roots: str
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
    "--store-already-proven": {"action": "store_true"},
    "--predecessor": {"default": ""},  # end of the replaced process
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
    if not settings.insecure_network_ok and not settings.https:
        _check_rest_on_loopback(web)
    for_slots = _advertised("--listen", control, "--advertise", settings.advertise)
    http_host = settings.advertise_http
    if not http_host and settings.advertise and is_every_interface(str(web.getsockname()[0])):
        http_host = for_slots.host
    for_rest = _advertised("--http", web, "--advertise-http", http_host)
    certificates = _certificates(settings, token, for_rest.host)
    scheme = "http" if certificates is None else "https"
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
        leases=_leases(settings.lease, store, for_slots, f"{scheme}://{for_rest}"),
    )
    directory.versions = own_versions()
    if settings.predecessor:
        directory.predecessor = Predecessor(settings.predecessor, settings.predecessor_ended_ms)
    encrypts = never if settings.insecure_network_ok else across_hosts
    timeout_s, tls = settings.handshake_timeout, peer_tls(settings, os.environ)
    server = ControlServer(directory, control, handshake_timeout_s=timeout_s, encrypts=encrypts, tls=tls)
    await server.start()
    log.info("slots connect to %s; storage %s", for_slots, store.url)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if settings.exit_with_parent:
        _watch_parent(loop, stopping, settings.parents_directory)
    exports = OpenTelemetryExports(directory, now_ms)
    page = None if settings.no_ui else (f"{scheme}://{for_rest}", settings.token_file)
    roots = _savepoint_roots(settings.savepoint_roots)
    serving_options = ServerOptions(2 * settings.handshake_timeout, certificates, roots)
    of_program = settings.exit_with_parent
    serving = loop.create_task(
        _serve_rest(directory, for_slots, web, token, page, stopping, serving_options, of_program)
    )
    announced = contextlib.nullcontext() if settings.exit_with_parent else _announced(web, scheme, settings)
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


def _savepoint_roots(given: str) -> tuple[str, ...]:
    roots = tuple(root.strip() for root in given.split(",") if root.strip())
    for root in roots:
        if not lies_within(without_credentials(root, "--savepoint-roots"), root):
            raise InvalidJob(f"--savepoint-roots {root}: name the folder without . and .. as parts")
    return roots


@contextlib.contextmanager
def _announced(web: socket.socket, scheme: str, settings: Settings) -> Iterator[None]:
    """Commands of this user find the daemon, if there is a temporary folder."""
    host, port = web.getsockname()[:2]
    try:
        private = PrivateDirectory()
    except OSError as error:
        log.info("commands need --coordinator to find this daemon: no temporary folder can be made (%s)", error)
        yield
        return
    try:
        here = shown("127.0.0.1" if is_every_interface(str(host)) else str(host), port)
        private.announce(f"{scheme}://{here}", Path(settings.token_file), given_certificate(settings.https))
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
    bound, bound_port = listening.getsockname()[:2]
    try:
        host, port = split(given or shown(str(bound), bound_port))
        host = address_of(host, flag)
    except ValueError as error:
        raise InvalidJob(f"{flag} {given!r} is not understood ({error}): use host or host:port") from error
    if is_every_interface(host):
        raise InvalidJob(
            f"nobody can connect to {host}, which means every interface of this host for {option}: name the address "
            f"that others connect to with {flag} HOST, or listen on that address"
        )
    return _Advertised(host, port or int(bound_port))


def _leases(lease_s: float, store: ObjectStore, for_slots: _Advertised, http_url: str) -> Leases | None:
    if lease_s == 0:
        return None
    # The name stays the same after a restart at the same address, so that a daemon takes jobs back at once.
    name = f"{for_slots} on {socket.gethostname()}"
    return Leases(store, Holder(name, str(for_slots), http_url, round(lease_s * 1000)))


async def _serve_rest(
    directory: JobDirectory,
    for_slots: _Advertised,
    web: socket.socket,
    token: Token,
    page: tuple[str, str] | None,
    stopping: asyncio.Event,
    options: ServerOptions,
    of_program: bool,
) -> None:
    try:
        from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress

        at = None if page is None else PageAddress(*page)
        control = ControlAddress(for_slots.host, for_slots.port, of_program)
        server = rest_server(directory, control, token, os.getpid(), at, options)
        scheme = "http" if options.certificates is None else "https"
        log.info("REST at %s://%s", scheme, shown(*web.getsockname()[:2]))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        await server.serve(sockets=[web])
    finally:
        stopping.set()


def _certificates(settings: Settings, token: Token, host: str) -> Certificates | None:
    if not settings.https:
        if settings.https_key:
            raise InvalidJob("--https-key without --https: give the certificate of the key with --https FILE")
        return None
    if settings.https != GENERATED:
        files = CertificateFiles(settings.https, settings.https_key)
        said = f"the certificate --https {settings.https}"
        return Certificates(said, files.stamp, lambda: files.load_into(server_context()))
    from barrier_runtime.coordinator.client.generated_certificate import certificate_pem, pin

    value = token.value.decode()
    if not _RANDOM.fullmatch(value):
        raise InvalidJob(
            "--https generated needs a random token of 64 hex characters: everybody who connects sees a public key "
            "that is derived from the token, and could check guesses without the daemon; make a token with openssl "
            "rand -hex 32, or give a certificate with --https FILE"
        )
    hosts = [host, socket.gethostname(), "localhost", "127.0.0.1", "::1"]

    def make() -> ssl.SSLContext:
        return context_of(certificate_pem(value, hosts, datetime.datetime.now(datetime.timezone.utc)))

    log.info("HTTPS with a generated certificate; for curl: --insecure --pinnedpubkey %s", pin(value))
    return Certificates("the generated certificate", lambda: time.time() // _RENEWED_S, make)


_RENEWED_S = 30 * 24 * 3600
_RANDOM = re.compile("[0-9a-fA-F]{64,}")


def read_token(path: Path) -> tuple[Token, bytes]:
    value = read_token_file(path)
    return Token(path.stem, value.encode()), daemon_key(value)


def _listening(option: str, address: str, inherited: int | None) -> socket.socket:
    if inherited is not None:
        listening = socket.socket(fileno=inherited)
    else:
        host, _, text = address.rpartition(":")
        if not host or address.endswith("]") or not re.fullmatch(r"\d+(-\d+)?", text):
            raise InvalidJob(f"{option} {address!r} is not understood: use host:port")
        ports = ANY_PORT if text == "0" else port_range(text, option)
        listening = _on_one_of(option, address_of(host, option), ports)
    listening.setblocking(False)
    return listening


def _on_one_of(option: str, host: str, ports: PortRange) -> socket.socket:
    for port in ports:
        try:
            return listening_on(host, port, reuse=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == ports.last:
                place = shown(host, str(ports))
                raise InvalidJob(f"{option} {place}: {unheard(error)}: choose another address") from error
    raise AssertionError("a range has a port")


def _check_rest_on_loopback(web: socket.socket) -> None:
    """Other addresses need HTTPS or the operator's consent (G1)."""
    host = str(web.getsockname()[0])
    if not is_loopback(host):
        web.close()
        raise InvalidJob(
            f"--http {host} is not a loopback address, and REST is not encrypted: everybody on the network could read "
            "tokens and the jobs; add --https generated or a certificate, or use 127.0.0.1 with an SSH tunnel, or "
            "confirm with --insecure-network-ok that the network is trusted"
        )


def _watch_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, directory: Path | None) -> None:
    descriptor = sys.stdin.fileno()
    os.set_blocking(descriptor, False)

    def readable() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                if directory is not None:
                    shutil.rmtree(directory, ignore_errors=True)
                stopping.set()

    loop.add_reader(descriptor, readable)


if __name__ == "__main__":
    sys.exit(main())
