"""The options as types: what is stored of them, the keywords of `run` and `run_local`, and their values.

Written by `tests/options_table.py` from `coordinator/option_table.py`: change an option there, then `make tables`.
"""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict

import msgspec


class CheckpointOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored with a job; they mean what Flink's do. Times are milliseconds. See `coordinator.options.validated`."""

    interval_ms: int = 1000
    min_pause_ms: int = 0
    timeout_ms: int = 600000
    max_concurrent: int = 1
    tolerable_failures: int = 0
    mode: Literal["exactly_once", "at_least_once", "at_most_once"] = "exactly_once"
    unaligned: bool = False
    aligned_timeout_ms: int | None = 0
    retained: int = 1
    on_cancel: Literal["retain", "delete"] = "retain"
    max_commits_behind: int = 64


class RestartOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored with a job: when it restarts. Times are milliseconds. See `coordinator.options.validated_restart`."""

    strategy: Literal["none", "fixed_delay", "exponential_delay", "failure_rate"] = "exponential_delay"
    initial_ms: int = 200
    multiplier: float = 2.0
    max_ms: int = 30000
    reset_after_ms: int = 1000
    max_attempts: int | None = None
    jitter: float = 0.0
    max_failures: int = 1
    interval_ms: int = 60000


class LocalRunOptions(TypedDict, total=False):
    """Keywords of `Dataflow.run_local`."""

    checkpoints: str | os.PathLike[str] | None
    """folder or URL (file://, s3://bucket/prefix[?endpoint=…]) of the checkpoints. Default: a folder that lives as long
    as the run; required on Spark."""
    parallelism: int
    """slots; each holds a Spark core for as long as the job runs. 1 to 1,024. Default: 2."""
    max_parallelism: int
    """key groups; fixed for the life of the job. 1 to 32,768 key groups. Default: 128 key groups."""
    restore: str | int
    """latest, none, the number of a retained checkpoint, or the folder or URL of a savepoint. Default: latest."""
    restore_mode: Literal["no_claim", "claim"]
    """whose a restored savepoint is: no_claim leaves it as it is, claim deletes it when the job has a copy. no_claim or
    claim. Default: no_claim."""
    allow_replay: bool
    """restore something older than the last completed checkpoint: sinks get rows again. Default: False."""
    allow_non_restored: bool
    """drop state whose operator or aggregate is gone; what was decided of a sink is committed first. Default: False."""
    allow_drained: bool
    """go on with a savepoint of a drained job: windows may fire once more, for rows that come now. Default: False."""
    allow_outdated: bool
    """go on with a program that was replaced while the job ran. Default: False."""
    checkpoint_interval: float | timedelta
    """time between checkpoints; the median age of rows that become visible is half of it. 0.01 s to 1 year. Default: 1
    s."""
    min_pause: float | timedelta
    """pause after each checkpoint; above 0 there is one checkpoint at a time and the interval is at least as long. 0 to
    1 year. Default: 0 s."""
    checkpoint_timeout: float | timedelta
    """a checkpoint that is older is aborted. 0.01 s to 1 year. Default: 600 s."""
    max_concurrent: int
    """checkpoints under way at a time. 1 to 1,000. Default: 1."""
    tolerable_failures: int
    """failed checkpoints in a row that do not restart the job. 0 to 1,000,000. Default: 0."""
    mode: Literal["exactly_once", "at_least_once", "at_most_once"]
    """at_least_once: barriers are not aligned; at_most_once: neither aligned nor replayed, sources skip to their end
    after a failure. exactly_once or at_least_once or at_most_once. Default: exactly_once."""
    unaligned: bool
    """barriers overtake rows, which are stored with the checkpoint. Default: False."""
    aligned_timeout: float | timedelta | None
    """with unaligned: barriers wait this long before they overtake; 0: they always overtake. 0 to 1 year. Default: 0
    s."""
    retained: int
    """completed checkpoints that are kept. 1 to 1,000. Default: 1."""
    on_cancel: Literal["retain", "delete"]
    """what becomes of the checkpoints of a job that is stopped. retain or delete. Default: retain."""
    max_commits_behind: int
    """completed checkpoints that sinks may have to commit yet; at that many no more are taken until sinks come along,
    but those that are asked for. 1 to 1,000. Default: 10."""
    progress_timeout: float | timedelta | None
    """no completed checkpoint, or nothing committed by a sink, for this long: the status says so. 0.1 s to 10 years.
    Default: 60 s, or 10 intervals if that is longer."""
    restart: Literal["none", "fixed_delay", "exponential_delay", "failure_rate"]
    """what follows a failure. none or fixed_delay or exponential_delay or failure_rate. Default: exponential_delay."""
    restart_delay: float | timedelta | None
    """pause before a restart; exponential_delay: before the second in a row, the first comes at once. 0 to 1 year.
    Default: 0.2 s for exponential_delay, 1 s for the others."""
    restart_multiplier: float
    """each pause is this many times as long as the one before. 1 to 1,000. Default: 2."""
    restart_max_delay: float | timedelta
    """the longest pause. 0 to 1 year. Default: 30 s."""
    restart_reset_after: float | timedelta
    """a job that ran this long and completed a checkpoint begins again with the first pause. 0 to 1 year. Default: 1
    s."""
    restart_attempts: int | None
    """restarts before the job fails; exponential_delay: in a row without progress, and none for what is Unavailable,
    which it waits for; fixed_delay: in all. 0 to 1,000,000. Default: 10."""
    restart_jitter: float
    """each pause is up to this part of it longer or shorter. 0 to 1. Default: 0."""
    restart_failures: int
    """more failures than this within restart_interval end the job. 1 to 1,000,000. Default: 1."""
    restart_interval: float | timedelta
    """time within which failures are counted. 0.001 s to 1 year. Default: 60 s."""
    slot_timeout: float | timedelta
    """silence after which a slot is replaced, and a connection between slots ends. 0.1 s to 1 day. Default: 10 s."""
    resource_wait_timeout: float | timedelta
    """how long a first start waits for all slots; five times as long once Spark reports that all have cores: processes
    start slowly on a busy machine. A job that has run waits as restart= says. 0.1 s to 1 day. Default: 60 s."""
    spare_slots: int
    """warm processes beside the slots, each on another core: a spare takes the place of a lost slot at once. 0 to
    1,024. Default: 0."""
    latency_target: float | timedelta
    """most that rows of a source with a schedule wait to be processed with others, while the slot rests: four times as
    long as its passes take, and at least half of this, so more saves processor time; a few messages of Kafka wait as
    long, 1 ms at least; rows by key for 16 slots and more wait as long for others of a step, 20 ms at most; 0: rows
    never wait. 0 to 10 s. Default: 0.00065 s."""
    max_drift: float | timedelta | None
    """most that event time of any split may be ahead of the one that is furthest behind, in all sources with event
    time: faster ones pause. 0.001 s to 10 years. Default: no split waits for another."""
    state_backend: Literal["rocksdb", "memory"]
    """where keyed state is kept while the job runs. rocksdb or memory. Default: rocksdb."""
    state_memory_mb: int
    """memory for RocksDB, per slot. 8 to 1,048,576 MiB. Default: 256 MiB."""
    state_cache_mb: int
    """values held decoded, per stateful step and slot. 1 to 1,048,576 MiB. Default: 64 MiB."""
    check_state: bool | None
    """refuse state that was changed in place without update(), and one object stored for two keys: a restart would
    forget it; costs an encoding per value read. Default: in local runs."""
    coordinator: str | Sequence[str] | None
    """http(s)://host:port of a running daemon, or of several with commas. Default: a child process of the driver."""
    token_file: str | os.PathLike[str] | None
    """file with the daemon's bearer token. Default: there is no daemon."""
    ca: str | None
    """PEM file with the authorities of the daemon's https certificate. Default: the certificate of the token, or the
    system's authorities."""
    coordinator_host: str | None
    """this host's address for executors on other hosts, or an interface or network of this host: eth0, 10.0.0.0/8.
    Default: 127.0.0.1 for a local master, spark.driver.host for others."""
    coordinator_bind: str | None
    """address that the program's coordinator listens on, such as 0.0.0.0 in a container whose host has the address
    coordinator_host. Default: coordinator_host."""
    coordinator_ports: str
    """ports for the program's coordinator, of which it takes a free one: 7100-7109. Default: any port."""
    http_ports: str
    """ports for REST and page of the program's coordinator, on loopback, of which the first free port is used. Default:
    any port."""
    https: str
    """REST and page of the program's coordinator speak HTTPS: a PEM file with the certificate, or 'generated'. Default:
    HTTP."""
    https_key: str
    """PEM file with the key of https. Default: the file of the certificate."""
    slot_host: str
    """network or interface for connections between slots, on hosts with several: 10.0.0.0/8, eth0;
    BARRIER_RUNTIME_SLOT_HOST on a host wins. Default: the network of the coordinator."""
    slot_ports: str
    """ports for connections between slots, of which each slot takes a free one: 7200-7299; a host needs a port per
    slot, twice as many during a replace; BARRIER_RUNTIME_SLOT_PORTS on a host wins. Default: any port."""
    tls_certificate: str
    """PEM file on each host for TLS between slots and with the coordinator, instead of the built-in encryption;
    BARRIER_RUNTIME_TLS_CERTIFICATE on a host wins, likewise for the next two. Default: no TLS."""
    tls_key: str
    """PEM file on each host with the key of tls_certificate. Default: the certificate's file."""
    tls_ca: str
    """PEM file on each host with the authorities of other processes' certificates. Default: no TLS."""
    insecure_network_ok: bool
    """trust the network: rows between slots are not encrypted, and Spark may send the job's secret unencrypted; by
    default connections to other addresses than loopback are encrypted. Default: False."""
    coordinator_lease: float | timedelta
    """a slot leaves when the coordinator is silent for this long. 0.1 s to 1 day. Default: 600 s."""
    ui: bool
    """serve the coordinator's web page, and print its address; a job in one process without Spark has a page only if
    ui=True is given. Default: True."""
    log_format: Literal["plain", "json"]
    """lines that slots log on the executors' standard error. plain or json. Default: plain."""
    store_write_price: float
    """US dollars for a million PUT, COPY or LIST requests, for the costs that the page shows (S3's list price). 0 to
    1,000,000. Default: 5."""
    store_read_price: float
    """US dollars for a million GET or HEAD requests, likewise. 0 to 1,000,000. Default: 0.4."""
    verbose: bool
    """print the stacks of connections that break because another process died; without it, a line. Default: False."""
    run_id: str
    """identity of this run. Default: made for each run."""


class RunOptions(LocalRunOptions, total=False):
    """Keywords of `Dataflow`, its `run`, `start` and `explain`."""

    at_least: int | None
    """fewest slots with which a job that has run goes on while others stay away for degrade_after; it returns to all
    slots when there are cores. 1 to 1,024. Default: the job waits for all slots."""
    degrade_after: float | timedelta
    """with at_least: how long the job waits for all slots before it goes on with those that are there. 0.1 s to 1 day.
    Default: 60 s."""
    master: str
    """Spark master: local[N], local-cluster[…], spark://…. Default: local[*]."""
    spark: Any
    """a SparkSession of yours. Default: one is made."""
    spark_conf: dict[str, str]
    """settings of the Spark session that is made. Default: none."""


@dataclass(frozen=True)
class SlotOptions:
    """The options that every slot gets, as the user gave them."""

    mode: Literal["exactly_once", "at_least_once", "at_most_once"] = "exactly_once"
    slot_timeout: float = 10.0
    latency_target: float = 0.00065
    max_drift: float | None = None
    state_backend: Literal["rocksdb", "memory"] = "rocksdb"
    state_memory_mb: int = 256
    state_cache_mb: int = 64
    check_state: bool | None = None
    slot_host: str = ""
    slot_ports: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    insecure_network_ok: bool = False
    coordinator_lease: float = 600.0
    log_format: Literal["plain", "json"] = "plain"
    verbose: bool = False
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class OptionValues(SlotOptions):
    """The value of each option; checked by `barrier_runtime.launch.options.JobOptions`."""

    checkpoints: str | None = None
    parallelism: int = 2
    max_parallelism: int = 128
    restore: str = "latest"
    restore_mode: Literal["no_claim", "claim"] = "no_claim"
    allow_replay: bool = False
    allow_non_restored: bool = False
    allow_drained: bool = False
    allow_outdated: bool = False
    checkpoint_interval: float = 1.0
    min_pause: float = 0.0
    checkpoint_timeout: float = 600.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    unaligned: bool = False
    aligned_timeout: float | None = 0.0
    retained: int = 1
    on_cancel: Literal["retain", "delete"] = "retain"
    max_commits_behind: int = 10
    progress_timeout: float | None = None
    restart: Literal["none", "fixed_delay", "exponential_delay", "failure_rate"] = "exponential_delay"
    restart_delay: float | None = None
    restart_multiplier: float = 2.0
    restart_max_delay: float = 30.0
    restart_reset_after: float = 1.0
    restart_attempts: int | None = 10
    restart_jitter: float = 0.0
    restart_failures: int = 1
    restart_interval: float = 60.0
    resource_wait_timeout: float = 60.0
    at_least: int | None = None
    degrade_after: float = 60.0
    spare_slots: int = 0
    master: str = "local[*]"
    spark: Any = None
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    coordinator: str | None = None
    token_file: str | None = None
    ca: str | None = None
    coordinator_host: str | None = None
    coordinator_bind: str | None = None
    coordinator_ports: str = ""
    http_ports: str = ""
    https: str = ""
    https_key: str = ""
    ui: bool = True
    store_write_price: float = 5.0
    store_read_price: float = 0.4
