"""Coordinator of a job with slots in other processes: a child process or running daemons."""

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from barrier_runtime.coordinator.client.client import CoordinatorClient, FailoverClient, addresses
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator, WebOptions
from barrier_runtime.coordinator.client.rest_token import read_token_file
from barrier_runtime.coordinator.client.rest_types import SubmitReply
from barrier_runtime.coordinator.client.trust import Trust
from barrier_runtime.coordinator.option_types import OptionValues
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.closure import fingerprint
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.hosts import bare, is_every_interface, is_loopback
from barrier_runtime.state.sockets import address_of, check_known, port_range
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.tls import peer_tls

LOOPBACK = "127.0.0.1"
_REMEDY = "give coordinator_host= an address of this host that the executors reach, or leave coordinator_host= out"
_LOCAL = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
_OF_STANDALONE = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d+)?")


@dataclass(frozen=True)
class CoordinatorPlace:
    """`host`: slots connect there. `bind`: the coordinator listens there."""

    host: str
    bind: str

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.host) and is_loopback(self.bind)


def is_one_host(master: str) -> bool:
    """True for masters that start their executors on the driver's host."""
    return _LOCAL.fullmatch(master.strip()) is not None


def is_local(master: str) -> bool:
    """True if the URL shows that all executors are on the driver's host."""
    scheme, _, hosts = master.strip().partition("://")
    if is_one_host(master):
        return True
    found = [_OF_STANDALONE.fullmatch(each.strip()) for each in hosts.split(",")]
    return scheme == "spark" and all(each is not None and is_loopback(each[1]) for each in found)


def place_of_coordinator(options: OptionValues, master: str, conf: Mapping[str, str]) -> CoordinatorPlace:
    """Returns addresses of the program's own coordinator. `conf`: Spark's settings.

    Raises `InvalidJob` for addresses that the executors of `master` cannot connect to.
    """
    host, said = options.coordinator_host, "coordinator_host"
    if host is not None:
        host = address_of(host, said)
    bind = None if options.coordinator_bind is None else address_of(options.coordinator_bind, "coordinator_bind")
    if host is None and is_local(master):
        host = LOOPBACK
    elif host is None:
        host, said = conf.get("spark.driver.host", ""), "spark.driver.host"
        bind = bind or conf.get("spark.driver.bindAddress")
    host = bare(host)
    if is_every_interface(host):
        raise InvalidJob(
            f"{said}={host!r} means every interface of this host, and nobody can connect there: name in "
            f"coordinator_host= the address that the executors reach, and give coordinator_bind={host!r} to listen on "
            "every interface"
        )
    if is_loopback(host) and not is_local(master):
        raise InvalidJob(
            f"{said}={host!r} is a loopback address, and executors of the Spark master {master} on other hosts would "
            f"look for the coordinator on their own host: {_REMEDY}"
        )
    return CoordinatorPlace(host, bare(bind or host))


def check_before_session(options: OptionValues, master: str) -> None:
    given = "spark.driver.host" in options.spark_conf
    if options.coordinator_host is not None or given or is_local(master):
        place = place_of_coordinator(options, master, options.spark_conf)
        said = "spark.driver.host" if options.coordinator_host is None else "coordinator_host"
        check_known(place.bind, said, "give coordinator_bind= if only the executors know this name")


def check_daemon(url: str, control_host: str, master: str) -> None:
    if is_loopback(control_host) and not is_local(master):
        raise InvalidJob(
            f"the coordinator at {url} tells slots to connect to {control_host}, a loopback address, and executors of "
            f"the Spark master {master} on other hosts would look for the coordinator on their own host: start the "
            "daemon with --listen HOST:PORT, an address that the executors reach, or with --advertise HOST"
        )


def check_bound(place: CoordinatorPlace, bound: str, master: str) -> None:
    """Refuses a host name that is loopback on that host, as in many /etc/hosts."""
    if place.host == place.bind and is_loopback(bound) and not is_local(master):
        raise InvalidJob(
            f"the coordinator's host {place.host!r} is {bound} on this host, a loopback address, and executors of the "
            f"Spark master {master} on other hosts would not reach the coordinator: give coordinator_host= an address "
            "of this host, or give coordinator_bind='0.0.0.0' if the executors know the name by another address"
        )


_CLOSURE_ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def check_closures_encrypted(options: OptionValues, master: str, conf: Mapping[str, str], *, on_loopback: bool) -> None:
    """Raises `InvalidJob` if Spark would send the closure, with the secret, unencrypted to other hosts.

    `on_loopback`: slots connect to the coordinator at a loopback address. Other hosts' workers can register even at a
    loopback `spark://` master, and could use the secret at a coordinator that they reach.
    """
    if options.insecure_network_ok or is_one_host(master) or (on_loopback and is_local(master)):
        return
    authenticates = _is_on(conf, "spark.authenticate")
    crypto, tls = (_is_on(conf, name) for name in _CLOSURE_ENCRYPTED)
    if tls or (crypto and authenticates):
        return
    remedy = (
        "set spark.authenticate too: Spark encrypts only connections that are authenticated"
        if crypto
        else f"set {_CLOSURE_ENCRYPTED[0]} (with spark.authenticate) or {_CLOSURE_ENCRYPTED[1]}"
    )
    raise InvalidJob(
        f"Spark at {master} sends the job's code and secret unencrypted to executors on other hosts: {remedy}, in "
        "spark_conf= or spark-defaults.conf, or confirm with insecure_network_ok=True that the network is trusted"
    )


def _is_on(conf: Mapping[str, str], name: str) -> bool:
    return conf.get(name, "false").strip().lower() == "true"


log = logging.getLogger("barrier_runtime.job")


def check_addresses(options: JobOptions) -> None:
    master = options.master if options.spark is None else options.spark.sparkContext.master
    if options.coordinator is None:
        check_before_session(options, master)
    elif not is_local(master):
        client = _of_daemons(options)
        for daemon in client.daemons():
            check_daemon(client.url, daemon.control_host, master)


def _of_daemons(options: JobOptions) -> FailoverClient:
    assert options.coordinator is not None
    assert options.token_file is not None
    token = read_token_file(Path(options.token_file))
    return FailoverClient(addresses(options.coordinator), token, Trust(options.ca or ""))


def _are_on_loopback(client: FailoverClient, master: str) -> bool:
    asked = is_local(master) and not is_one_host(master)
    return asked and all(is_loopback(daemon.control_host) for daemon in client.daemons())


class CoordinatorOfJob:
    def __init__(self, spec: JobSpec, options: JobOptions, spark: Any = None) -> None:
        self._spec = spec
        self._options = options
        self._embedded: EmbeddedCoordinator | None = None
        master = options.master if spark is None else spark.sparkContext.master
        conf = options.spark_conf if spark is None else dict(spark.sparkContext.getConf().getAll())
        if options.coordinator is None:
            assert options.checkpoints is not None
            place = place_of_coordinator(options, master, conf)
            tls = peer_tls(options, os.environ)
            check_closures_encrypted(options, master, conf, on_loopback=place.on_loopback)
            self._embedded = embedded = EmbeddedCoordinator(
                options.checkpoints,
                host=place.bind,
                advertise="" if place.on_loopback else place.host,
                ports=port_range(options.coordinator_ports, "coordinator_ports"),
                tls=None if tls is None else tls.files,
                web=WebOptions(
                    options.ui, port_range(options.http_ports, "http_ports"), options.https, options.https_key
                ),
            )
            try:
                check_bound(place, embedded.control_address[0], master)
                self.submitted: SubmitReply = embedded.submit(spec)
            except BaseException:
                embedded.close()
                raise
            self.client: CoordinatorClient | FailoverClient = embedded.client
        else:
            self.client = client = _of_daemons(options)
            check_closures_encrypted(options, master, conf, on_loopback=_are_on_loopback(client, master))
            self.submitted = self._submit()

    def _submit(self) -> SubmitReply:
        assert self._options.checkpoints is not None
        return self.client.submit(self._spec, open_store(self._options.checkpoints).url)

    def control_addresses(self) -> tuple[tuple[str, int], ...]:
        first = (self.submitted.control_host, self.submitted.control_port)
        if not isinstance(self.client, FailoverClient):
            return (first,)
        storage = open_store(self._options.checkpoints or "").url
        others = []
        for daemon in self.client.daemons():
            if daemon.storage == storage:
                others.append((daemon.control_host, daemon.control_port))
            else:
                log.warning("a coordinator keeps checkpoints in %s, not in %s: not used", daemon.storage, storage)
        return tuple(dict.fromkeys([first, *others]))

    def status(self) -> JobStatus | None:
        """None while the coordinator restarts. Raises if the coordinator is lost or refuses."""
        return self.next_status(None, 0.0)

    def next_status(self, last: JobStatus | None, wait_s: float, *, brief: bool = False) -> JobStatus | None:
        """Waits until the status differs from `last`, at most `wait_s`. See `status`, and the client for `brief`."""
        try:
            return self.client.next_status(self._spec.job, self._spec.run_id, last, wait_s, brief=brief)
        except Unavailable:
            if self._embedded is not None:
                self._embedded.ensure_alive()
        except InvalidJob:  # the coordinator restarted before the first record of this run
            with contextlib.suppress(Unavailable):
                self._submit()  # no effect on a known run
        return None

    @property
    def pid(self) -> int | None:
        return self._embedded.pid if self._embedded is not None else None

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()


_PREFLIGHT_MS = 20_000  # an earlier run may hold the cores of the slots, until a FENCE ends that run


def submitted(job: PreparedJob, options: JobOptions, store: ObjectStore, spark: Any = None) -> CoordinatorOfJob:
    assert options.checkpoints is not None
    job.resolve_in_doubt(store)
    job.begin_with_savepoint(store)
    job.stage(options.checkpoints)
    job.spec = msgspec.structs.replace(
        job.spec,
        fingerprint=fingerprint(job.graph, job.spec),
        carrier="processes" if spark is None else "spark",
        preflight_ms=0 if spark is None or is_one_host(spark.sparkContext.master) else _PREFLIGHT_MS,
    )
    return CoordinatorOfJob(job.spec, options, spark)
