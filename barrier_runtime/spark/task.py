"""Content of a Spark task: a slot on an event loop.

The slot owns the process. A slot's identity is (run, slot index, process uuid, Spark task attempt), never the partition
number alone.
"""

import asyncio
import contextlib
import faulthandler
import fcntl
import functools
import glob
import importlib
import logging
import os
import pickle
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from barrier_runtime.coordinator.json_lines import JsonLines, Masked
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.coordinator.own_versions import own_versions
from barrier_runtime.coordinator.wire.handshake import across_hosts, never
from barrier_runtime.coordinator.wire.messages import Register, Shutdown, SlotClaims, SlotFacts
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.runtime.host.inspection import OWN_LOG
from barrier_runtime.runtime.host.process import PROCESS_HEAP, tune_interpreter
from barrier_runtime.runtime.host.watchdog import Watchdog, inherited_sockets, starved_s
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.runtime.network.channels import PeerLost
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.slot import PEER_LOST, Slot, SlotIdentity
from barrier_runtime.spark.deaths import died_lately
from barrier_runtime.state.descriptors import open_files, raise_limit
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation, Unavailable
from barrier_runtime.state.hosts import is_every_interface
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.kv.rocksdb_files import remove_all
from barrier_runtime.state.scratch import kept_from_cleaners
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.sockets import PortRange, address_of, own_address_towards, port_range
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.tls import peer_tls

HOST, BIND = OPTIONS["slot_host"].variable, "BARRIER_RUNTIME_SLOT_BIND"
PORTS = OPTIONS["slot_ports"].variable


@dataclass(frozen=True)
class SlotPlace:
    """`host`: other slots connect there. `bind`: the slot listens there, on a port of `ports`."""

    host: str
    bind: str
    ports: PortRange


def slot_place(options: SlotOptions, environment: Mapping[str, str], own_address: Callable[[], str]) -> SlotPlace:
    """Returns where the slot listens and others connect.

    `own_address()`: the host's address on the network of the coordinator. `environment`: of the executor's host;
    overrides the job's options.
    """
    said = HOST if environment.get(HOST) else "slot_host"
    host = address_of(environment.get(HOST) or options.slot_host, said)
    if host and is_every_interface(host):
        raise InvalidJob(
            f"{said}={host} means every interface of the host, and nobody can connect there: name in {HOST} the "
            f"address that other executors reach, and set {BIND}={host} to listen on every interface"
        )
    host = host or own_address()
    if PORTS in environment:
        ports = port_range(environment[PORTS], PORTS)
    else:
        ports = port_range(options.slot_ports, "slot_ports")
    return SlotPlace(host, address_of(environment.get(BIND, ""), BIND) or host, ports)


log = logging.getLogger("barrier_runtime.slot")

_LIFE = "life.lock"
_LEAVE_S = 10.0


@dataclass(frozen=True)
class SlotSettings:
    """Sent in Spark's closure. The secret is as safe as Spark's RPC, see docs/security.md."""

    graph: JobGraph | bytes  # bytes: a replacing program, from `closure.pickled`
    options: SlotOptions
    secret: bytes = field(repr=False)
    control_addresses: tuple[tuple[str, int], ...]  # of all daemons, first the daemon that accepted the job
    storage_url: str
    # object store endpoint and region; never credentials
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    job: str = ""
    program: str = ""
    succeeds: bool = False  # waits beside the process that has the slot

    @property
    def name(self) -> str:
        return self.job if isinstance(self.graph, bytes) else self.graph.name


def run_slot(slot: int, task_attempt: int, settings: SlotSettings) -> tuple[int, str, str]:
    """Returns (slot, outcome, reason) when the coordinator has ended the slot."""
    _check_encryption(settings.control_addresses)
    sockets = _sockets_of_spark(os.getpid())
    if not faulthandler.is_enabled():  # Spark's own handler stays: its reports name the fault
        faulthandler.enable()
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s slot {slot} %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        if settings.options.log_format == "json":
            handler.setFormatter(Masked(JsonLines({"job": settings.job, "slot": slot})))
        elif not isinstance(handler.formatter, Masked):  # Spark may reuse a process
            handler.setFormatter(Masked(handler.formatter or logging.Formatter()))
    if not settings.options.verbose:
        for handler in logging.getLogger().handlers:
            handler.addFilter(without_expected_stacks)
            if settings.options.log_format != "json":
                handler.addFilter(without_lost_peers)
    tune_interpreter()
    raise_limit()
    slot_uuid = uuid.uuid4().hex
    directory = local_root(settings.options.run_id) / f"{slot}-{os.getpid()}-{slot_uuid}"
    pa.array([0])  # the first conversion imports pandas, for seconds on a busy machine: not in the loop
    PROCESS_HEAP.begin()
    directory.mkdir(mode=0o700, parents=True)
    kept = kept_from_cleaners(directory)
    with lent_environment(settings.environment), living_in(directory), kept, OWN_LOG.kept():
        try:
            shutdown = _run_on_new_loop(_run(slot, task_attempt, slot_uuid, directory, sockets, settings))
        finally:
            remove_local(directory)
    return result_of(slot, shutdown)


def _check_encryption(coordinators: tuple[tuple[str, int], ...]) -> None:
    """Raises `ImportError`, which Spark shows to the driver, if this host lacks the encryption library.
    Each later handshake would fail.
    """
    if any(across_hosts(address) for address in coordinators):
        importlib.import_module("barrier_runtime.coordinator.wire.sealing")


def expected(error: BaseException | None) -> bool:
    """True for errors caused by another process's death: their stack shows only our own code."""
    return isinstance(error, (Unavailable, PeerLost))


def without_expected_stacks(record: logging.LogRecord) -> bool:
    if record.exc_info and expected(record.exc_info[1]):
        record.exc_info = record.exc_text = None
    return True


def without_lost_peers(record: logging.LogRecord) -> bool:
    """Log filter for lost peers: the driver logs the death and the recovery."""
    return not getattr(record, PEER_LOST, False)


@functools.cache
def _sockets_of_spark(pid: int) -> list[int]:
    """Sockets of the process before its first slot, for the watchdog. `pid`: cache key."""
    return inherited_sockets()


def result_of(slot: int, shutdown: Shutdown) -> tuple[int, str, str]:
    """Raises for a slot that must leave while the job continues: Spark never restarts a task that returns."""
    if shutdown.outcome == "replaced":
        raise Unavailable(f"slot {slot} leaves its job to another process: {shutdown.reason}")
    return slot, shutdown.outcome, shutdown.reason


def local_root(run_id: str) -> Path:
    """Refuses a folder that is not private."""
    base = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    root = Path(base) / f"barrier-runtime-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(root)
    return root / check_job_id(run_id, "run id")


def _check_private(root: Path) -> None:
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidJob(
            f"{root} is to hold the state of jobs and is not a folder of user {os.getuid()} alone "
            f"(owner {found.st_uid}, mode {stat.filemode(found.st_mode)}): remove it, or set SPARK_LOCAL_DIRS to a "
            "folder of your own"
        )


def remove_local(directory: Path) -> None:
    remove_all()
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directory.parent.rmdir()


def _run_on_new_loop(main: Coroutine[Any, Any, Shutdown]) -> Shutdown:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return cast(Shutdown, loop.run_until_complete(main))
    finally:
        loop.run_until_complete(_end_what_is_left())
        loop.close()


async def _end_what_is_left() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_LEAVE_S)


async def _run(
    slot: int, task_attempt: int, slot_uuid: str, directory: Path, sockets: list[int], settings: SlotSettings
) -> Shutdown:
    loop = asyncio.get_running_loop()
    try:
        graph = loaded_graph(settings)
    except Exception as error:  # a user's module may raise anything during its import
        return await _cannot_run(slot, task_attempt, slot_uuid, settings, f"{type(error).__name__}: {error}")
    workers = Workers(loop)
    copies = LocalCopies()
    own_address = partial(own_address_towards, *settings.control_addresses[0])
    place = await loop.run_in_executor(None, slot_place, settings.options, os.environ, own_address)
    timeout_s = settings.options.slot_timeout
    encrypts = never if settings.options.insecure_network_ok else across_hosts
    tls = peer_tls(settings.options, os.environ)
    secret, run_id = settings.secret, settings.options.run_id
    plane = TcpDataPlane(secret, graph.name, run_id, place.bind, timeout_s, place.ports, encrypts, tls)
    _, port = await plane.listen()
    resources = SlotResources(
        loop=loop,
        workers=workers,
        store=open_store(settings.storage_url),
        make_store=open_store,
        paths=Paths(graph.name),
        slot=slot,
        uuid=slot_uuid,
        local_dir=directory,
        copies=copies,
        memory=SlotMemory(settings.options.state_memory_mb << 20),
        options=settings.options,
        new_uuid=lambda: uuid.uuid4().hex,
        starved_s=starved_s,
    )
    identity = SlotIdentity(
        slot,
        slot_uuid,
        os.getpid(),
        socket.gethostname(),
        task_attempt,
        place.host,
        port,
        died_lately(),
        settings.program,
        dict(own_versions()),
        await loop.run_in_executor(None, slot_facts, directory),
        settings.succeeds,
    )
    this = Slot(graph, settings.options.mode, identity, resources, plane)
    link = TcpControlLink(
        settings.control_addresses,
        settings.secret,
        graph.name,
        settings.options.run_id,
        msgspec.msgpack.encode(SlotClaims(slot, slot_uuid)),
        this.connected,
        this.handle,
        timeout_s=settings.options.slot_timeout,
    )
    this.link = link
    link.tls = tls
    watchdog = Watchdog(
        sockets,
        lambda: time.monotonic() - link.last_contact,
        settings.options.coordinator_lease,
        lambda: remove_local(directory),
    )
    watchdog.start()
    unheard = on_notice(loop, this.leave_host)
    linking = loop.create_task(link.run())
    workers.submit(partial(remove_what_the_dead_left, directory.parent.parent), _removed)
    try:
        linking.add_done_callback(partial(_link_broke, this.left))
        shutdown = await this.left
        # Spark may reuse the process, so operators first close what they hold.
        await asyncio.wait([loop.create_task(this.closed())], timeout=_LEAVE_S)
        return shutdown
    finally:
        watchdog.stop()
        unheard()
        link.close()
        linking.cancel()
        plane.close()
        workers.close()
        copies.drop_all()


def on_notice(loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> Callable[[], object]:
    """Calls `leave` on SIGPWR. Returns the reverse. Only Linux has the signal, only a main thread gets signals."""
    number = getattr(signal, "SIGPWR", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop.add_signal_handler(number, leave)
    return partial(loop.remove_signal_handler, number)


def loaded_graph(settings: SlotSettings) -> JobGraph:
    """A replacing program is unpickled here, so that the slot can report errors."""
    if isinstance(settings.graph, JobGraph):
        return settings.graph
    return cast(JobGraph, pickle.loads(settings.graph))  # from Spark's closure, like any other function


async def _cannot_run(slot: int, task_attempt: int, slot_uuid: str, settings: SlotSettings, why: str) -> Shutdown:
    """Reports `why`, and leaves: the job continues without this program."""
    left: asyncio.Future[Shutdown] = asyncio.get_running_loop().create_future()

    def handle(message: object) -> None:
        if isinstance(message, Shutdown) and not left.done():
            left.set_result(message)

    def connected() -> None:
        link.send(
            Register(
                slot=slot,
                uuid=slot_uuid,
                pid=os.getpid(),
                host=socket.gethostname(),
                task_attempt=task_attempt,
                data_host="",
                data_port=0,
                token=0,
                phase="idle",
                program=settings.program,
                broken=why,
                versions=dict(own_versions()),
            )
        )

    claims = msgspec.msgpack.encode(SlotClaims(slot, slot_uuid))
    link = TcpControlLink(
        settings.control_addresses, settings.secret, settings.name, settings.options.run_id, claims, connected, handle
    )
    link.tls = peer_tls(settings.options, os.environ)
    linking = asyncio.get_running_loop().create_task(link.run())
    try:
        return await asyncio.wait_for(left, settings.options.coordinator_lease)
    except asyncio.TimeoutError:
        return Shutdown("left", why)
    finally:
        link.close()
        linking.cancel()


def slot_facts(directory: Path) -> SlotFacts | None:
    """Facts of this host for the coordinator's preflight; None if the disk is inaccessible."""
    try:
        free_bytes = shutil.disk_usage(directory).free
    except OSError as error:
        log.warning("free space in %s is unknown to the preflight: %s", directory, error)
        return None
    return SlotFacts(time.time_ns() // 1_000_000, open_files(), free_bytes, str(directory.parent))


def _removed(result: None, error: BaseException | None) -> None:
    if error is not None:
        log.warning("what dead slots left on this host stays for now: %s", error)


def _link_broke(left: "asyncio.Future[Shutdown]", linking: "asyncio.Task[None]") -> None:
    """Ends the slot if the link's loop ended by itself, a bug that must not hang the slot."""
    if not linking.cancelled() and not left.done():
        left.set_exception(linking.exception() or ProtocolViolation("the control link ended by itself: report this"))


@contextlib.contextmanager
def lent_environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets unset variables while the slot runs."""
    lent = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(lent)
    try:
        yield
    finally:
        for name in lent:
            os.environ.pop(name, None)


@contextlib.contextmanager
def living_in(directory: Path) -> Iterator[None]:
    """Holds a lock in `directory` while this process lives.

    Process ids do not suffice: several containers may share the folder. The lock file gets the final name when locked,
    because others may remove a folder with an unlocked file.
    """
    made = directory / f"{_LIFE}.new"
    with made.open("w") as life:
        fcntl.flock(life, fcntl.LOCK_EX)
        made.rename(directory / _LIFE)
        yield


def remove_what_the_dead_left(root: Path) -> None:
    """Of all runs: no slot of a killed program comes back."""
    for name in glob.glob("*/*", root_dir=root):
        if is_alive(root / name) is False:
            shutil.rmtree(root / name, ignore_errors=True)
            with contextlib.suppress(OSError):  # others are there
                (root / name).parent.rmdir()


def is_alive(directory: Path) -> bool | None:
    """Whether the process of a slot's folder lives; None: it is making the folder."""
    try:
        with (directory / _LIFE).open() as life:
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:
        return True
    return False
