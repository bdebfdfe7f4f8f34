"""Coordinator of a job with slots in other processes: a child process of the program, or daemons that run already."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.failover import FailoverClient, addresses
from barrier_runtime.coordinator.client.rest_token import read_token_file
from barrier_runtime.coordinator.client.rest_types import SubmitReply
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.coordinator_place import (
    check_before_session,
    check_bound,
    check_closures_encrypted,
    check_daemon,
    is_local,
    is_one_host,
    place_of_coordinator,
)
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.closure import fingerprint
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.hosts import is_loopback
from barrier_runtime.state.ports import port_range
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store

log = logging.getLogger("barrier_runtime.job")


def check_addresses(options: JobOptions) -> None:
    """Raises `InvalidJob`, before anything starts, for addresses that the executors cannot connect to."""
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
    return FailoverClient(addresses(options.coordinator), read_token_file(Path(options.token_file)))


def _are_on_loopback(client: FailoverClient, master: str) -> bool:
    """True if slots connect to every daemon at a loopback address; asked only where the answer counts."""
    asked = is_local(master) and not is_one_host(master)
    return asked and all(is_loopback(daemon.control_host) for daemon in client.daemons())


class CoordinatorOfJob:
    """Coordinator of one job. Raises `InvalidJob` if executors of `spark` cannot connect to the address."""

    def __init__(self, spec: JobSpec, options: JobOptions, spark: Any = None) -> None:
        self._spec = spec
        self._options = options
        self._embedded: EmbeddedCoordinator | None = None
        master = options.master if spark is None else spark.sparkContext.master
        conf = options.spark_conf if spark is None else dict(spark.sparkContext.getConf().getAll())
        if options.coordinator is None:
            assert options.checkpoints is not None
            place = place_of_coordinator(options, master, conf)
            check_closures_encrypted(options, master, conf, on_loopback=place.on_loopback)
            self._embedded = embedded = EmbeddedCoordinator(
                options.checkpoints,
                host=place.bind,
                advertise="" if place.on_loopback else place.host,
                ports=port_range(options.coordinator_ports, "coordinator_ports"),
                ui=options.ui,
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
        """Control addresses of daemons: first the daemon that accepted the job, then others that answer."""
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
        """Status of the job; None while the coordinator restarts.

        Raises if the coordinator is lost or refuses this run."""
        return self.next_status(None, 0.0)

    def next_status(self, last: JobStatus | None, wait_s: float) -> JobStatus | None:
        """Status as soon as the status differs from `last`, at the latest after `wait_s`. See `status`."""
        try:
            return self.client.next_status(self._spec.job, self._spec.run_id, last, wait_s)
        except Unavailable:
            if self._embedded is not None:
                self._embedded.ensure_alive()
        except InvalidJob:  # the coordinator restarted before the first record of this run was in the log
            with contextlib.suppress(Unavailable):
                self._submit()  # has no effect on a run that the coordinator knows
        return None

    @property
    def pid(self) -> int | None:
        """Process id of the child process; None for a daemon that somebody else started."""
        return self._embedded.pid if self._embedded is not None else None

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()


def submitted(job: PreparedJob, options: JobOptions, store: ObjectStore, spark: Any = None) -> CoordinatorOfJob:
    """Finishes the preparation of a job with slots in other processes, and submits the job to a coordinator."""
    assert options.checkpoints is not None
    job.resolve_in_doubt(store)
    job.begin_with_savepoint(store)
    job.stage(options.checkpoints)
    job.spec = msgspec.structs.replace(
        job.spec,
        fingerprint=fingerprint(job.graph, job.spec),
        carrier="processes" if spark is None else "spark",
    )
    return CoordinatorOfJob(job.spec, options, spark)
