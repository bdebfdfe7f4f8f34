"""THE table of options, with all checks and texts.

A new option is a new row, then `make tables`, which writes `option_types.py` and `docs/options.md`. Names, and the
fields of stored options, never change.
"""

from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_args, get_origin

DAY_S = 24 * 3600
YEAR_S = 365 * DAY_S
SAME: Any = object()


@dataclass(frozen=True)
class Option:
    """`low` and `high` are in the unit. Times are seconds for users, stored as milliseconds.

    `where`: "spark": refused in a local run; "apart": also for local runs whose slots are processes of their own;
    "daemon": no option of a run. `shown`: output of `explain`; text, perhaps a secret, is printed only if the row says
    so.
    """

    name: str
    type: Any
    default: Any
    help: str  # a line, for --help, editors and docs/options.md
    low: float | None = None
    high: float | None = None
    unit: str = ""
    where: Literal["everywhere", "apart", "spark", "daemon"] = "everywhere"
    none: str = ""  # meaning of None, or of an empty default
    also: str = ""  # a further type of the keyword
    made: str = ""  # source of the function that makes the default
    # of `CheckpointOptions`, `RestartOptions` or, for other groups, `JobSpec`
    field: str = ""
    slot: bool = False  # a field of `SlotOptions`
    stored_default: Any = SAME  # meaning of an absent field, if not the default
    strategies: tuple[str, ...] = ()  # values of `restart` that use the option
    remedy: str = ""  # how to correct a value
    flags: tuple[str, ...] = ()  # of the command line, beside --name
    on_command_line: bool = True
    shown: Literal["value", "url", "whether"] = "whether"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def short_flag(self) -> str:
        return min((self.flag, *self.flags), key=len)

    @property
    def variable(self) -> str:
        return f"BARRIER_RUNTIME_{self.name.upper()}"

    @cached_property
    def optional(self) -> bool:
        return NoneType in get_args(self.type)

    @property
    def plain_type(self) -> Any:
        return next(kind for kind in get_args(self.type) if kind is not NoneType) if self.optional else self.type

    @cached_property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.plain_type) if get_origin(self.plain_type) is Literal else ()

    @property
    def in_ms(self) -> bool:
        return self.unit == "s"

    def stored(self, value: Any) -> Any:
        return round(value * 1000) if self.in_ms and value is not None else value

    def unstored(self, value: Any) -> Any:
        return value / 1000 if self.in_ms and value is not None else value


def _text(name: str, default: str | None, text: str, **more: Any) -> Option:
    return Option(name, str | None if default is None else str, default, text, **more)


def _flag(name: str, text: str, **more: Any) -> Option:
    return Option(name, bool, False, text, shown="value", **more)


def _count(name: str, default: int, low: int, high: int, unit: str, text: str, **more: Any) -> Option:
    return Option(name, int, default, text, low, high, unit, shown="value", **more)


def _number(name: str, default: float, low: float, high: float, text: str, **more: Any) -> Option:
    return Option(name, float, default, text, low, high, shown="value", **more)


def _seconds(name: str, default: float | None, low: float, high: float, text: str, **more: Any) -> Option:
    if more.get("where") != "daemon":
        more = {"also": "timedelta", **more}
    return Option(name, float | None if "none" in more else float, default, text, low, high, "s", shown="value", **more)


def _choice(name: str, default: str, choices: Any, text: str, **more: Any) -> Option:
    return Option(name, choices, default, text, shown="value", **more)


_GROWING = ("exponential_delay",)
_PAUSING = ("fixed_delay", "exponential_delay", "failure_rate")
_RATE = ("failure_rate",)

# fmt: off
JOB = (
    _text("checkpoints", None, "folder or URL (file://, s3://bucket/prefix[?endpoint=…]) of the checkpoints",
          none="a folder that lives as long as the run; required on Spark", also="os.PathLike[str]", shown="url"),
    _count("parallelism", 2, 1, 1024, "", "slots; each holds a Spark core for as long as the job runs"),
    _count("max_parallelism", 128, 1, 32_768, "key groups", "key groups; fixed for the life of the job"),
    _text("restore", "latest", "latest, none, the number of a retained checkpoint, or the folder or URL of a savepoint",
          also="int", shown="url",
          remedy="use 'latest', 'none', the number of a retained checkpoint, or a savepoint's URL or ./folder"),
    _choice("restore_mode", "no_claim", Literal["no_claim", "claim"],
            "whose a restored savepoint is: no_claim leaves it as it is, claim deletes it when the job has a copy"),
    _flag("allow_replay", "restore something older than the last completed checkpoint: sinks get rows again",
          field="allow_replay"),
    _flag("allow_non_restored", "drop state whose operator or aggregate is gone; what was decided of a sink is "
          "committed first", field="allow_non_restored"),
    _flag("allow_drained", "go on with a savepoint of a drained job: windows may fire once more, for rows that come "
          "now", field="allow_drained"),
    _flag("allow_outdated", "go on with a program that was replaced while the job ran", field="allow_outdated"),
)

CHECKPOINTS = (
    _seconds("checkpoint_interval", 1.0, 0.01, YEAR_S, "time between checkpoints; the median age of rows that become "
             "visible is half of it", field="interval_ms", flags=("--interval",)),
    _seconds("min_pause", 0.0, 0, YEAR_S, "pause after each checkpoint; above 0 there is one checkpoint at a time and "
             "the interval is at least as long", field="min_pause_ms"),
    _seconds("checkpoint_timeout", 600.0, 0.01, YEAR_S, "a checkpoint that is older is aborted", field="timeout_ms"),
    _count("max_concurrent", 1, 1, 1_000, "", "checkpoints under way at a time", field="max_concurrent"),
    _count("tolerable_failures", 0, 0, 1_000_000, "", "failed checkpoints in a row that do not restart the job",
           field="tolerable_failures"),
    _choice("mode", "exactly_once", Literal["exactly_once", "at_least_once", "at_most_once"], "at_least_once: barriers "
            "are not aligned; at_most_once: neither aligned nor replayed, sources skip to their end after a failure",
            field="mode", slot=True),
    _flag("unaligned", "barriers overtake rows, which are stored with the checkpoint", field="unaligned"),
    _seconds("aligned_timeout", 0.0, 0, YEAR_S, "with unaligned: barriers wait this long before they overtake; 0: they "
             "always overtake", none="they never overtake", field="aligned_timeout_ms"),
    _count("retained", 1, 1, 1_000, "", "completed checkpoints that are kept", field="retained"),
    _choice("on_cancel", "retain", Literal["retain", "delete"],
            "what becomes of the checkpoints of a job that is stopped", field="on_cancel"),
    _count("max_commits_behind", 10, 1, 1_000, "", "completed checkpoints that sinks may have to commit yet; at that "
           "many no more are taken until sinks come along, but those that are asked for", field="max_commits_behind",
           stored_default=64),
    _seconds("progress_timeout", None, 0.1, 10 * YEAR_S, "no completed checkpoint, or nothing committed by a sink, for "
             "this long: the status says so", none="60 s, or 10 intervals if that is longer"),
)

RESTARTS = (
    _choice("restart", "exponential_delay", Literal["none", "fixed_delay", "exponential_delay", "failure_rate"],
            "what follows a failure", field="strategy"),
    _seconds("restart_delay", None, 0, YEAR_S, "pause before a restart; exponential_delay: before the second in a row, "
             "the first comes at once", none="0.2 s for exponential_delay, 1 s for the others", field="initial_ms",
             stored_default=200, strategies=_PAUSING),
    _number("restart_multiplier", 2.0, 1, 1_000, "each pause is this many times as long as the one before",
            field="multiplier", strategies=_GROWING),
    _seconds("restart_max_delay", 30.0, 0, YEAR_S, "the longest pause", field="max_ms", strategies=_GROWING),
    _seconds("restart_reset_after", 1.0, 0, YEAR_S, "a job that ran this long and completed a checkpoint begins again "
             "with the first pause", field="reset_after_ms", strategies=_GROWING),
    Option("restart_attempts", int | None, 10, "restarts before the job fails; exponential_delay: in a row without "
           "progress, and none for what is Unavailable, which it waits for; "
           "fixed_delay: in all", 0, 1_000_000, none="no limit", field="max_attempts", stored_default=None,
           strategies=("fixed_delay", "exponential_delay"), shown="value"),
    _number("restart_jitter", 0.0, 0, 1, "each pause is up to this part of it longer or shorter", field="jitter",
            strategies=_GROWING),
    _count("restart_failures", 1, 1, 1_000_000, "", "more failures than this within restart_interval end the job",
           field="max_failures", strategies=_RATE),
    _seconds("restart_interval", 60.0, 0.001, YEAR_S, "time within which failures are counted", field="interval_ms",
             strategies=_RATE),
)

SLOTS = (
    _seconds("slot_timeout", 10.0, 0.1, DAY_S, "silence after which a slot is replaced, and a "
             "connection between slots ends", field="slot_timeout_ms", slot=True),
    _seconds("resource_wait_timeout", 60.0, 0.1, DAY_S, "how long a first start waits for all slots; five "
             "times as long once Spark reports that all have cores: processes start slowly on a busy machine. A job "
             "that has run waits as restart= says",
             field="resource_wait_timeout_ms"),
    Option("at_least", int | None, None, "fewest slots with which a job that has run goes on while others stay away "
           "for degrade_after; it returns to all slots when there are cores", 1, 1024,
           none="the job waits for all slots", field="at_least", where="spark", shown="value"),
    _seconds("degrade_after", 60.0, 0.1, DAY_S, "with at_least: how long the job waits for all slots before it goes on "
             "with those that are there", where="spark", field="degrade_after_ms"),
    Option("spare_slots", int, 0, "warm processes beside the slots, each on another core: a spare takes the place "
           "of a lost slot at once", 0, 1024, field="spare_slots", where="apart"),
    _seconds("latency_target", 0.00065, 0, 10, "most that rows of a source with a schedule wait to be processed with "
             "others, while the slot rests: four times as long as its passes take, and at least half of this, so more "
             "saves processor time; a few messages of Kafka wait as long, 1 ms at least; rows by key for 16 slots and "
             "more wait as long for others of a step, 20 ms at most; 0: rows never wait",
             slot=True),
    _seconds("max_drift", None, 0.001, 10 * YEAR_S, "most that event time of any split may be ahead of the one that is "
             "furthest behind, in all sources with event time: faster ones pause", none="no split waits for another",
             also="timedelta", slot=True),
    _choice("state_backend", "rocksdb", Literal["rocksdb", "memory"], "where keyed state is kept while the job runs",
            slot=True),
    _count("state_memory_mb", 256, 8, 1_048_576, "MiB", "memory for RocksDB, per slot", slot=True),
    _count("state_cache_mb", 64, 1, 1_048_576, "MiB", "values held decoded, per stateful step and slot",
           slot=True),
    Option("check_state", bool | None, None, "refuse state that was changed in place without update(), and one object "
           "stored for two keys: a restart would forget it; costs an encoding per value read", none="in local runs",
           shown="value", slot=True),
)

SPARK = (
    _text("master", "local[*]", "Spark master: local[N], local-cluster[…], spark://…", where="spark", shown="value"),
    Option("spark", Any, None, "a SparkSession of yours", none="one is made", on_command_line=False, where="spark"),
    Option("spark_conf", dict[str, str], {}, "settings of the Spark session that is made", made="dict", where="spark",
           none="none", flags=("--conf",)),
    _text("coordinator", None, "http(s)://host:port of a running daemon, or of several with commas", where="apart",
          none="a child process of the driver", also="Sequence[str]"),
    _text("token_file", None, "file with the daemon's bearer token", where="apart", none="there is no daemon",
          also="os.PathLike[str]"),
    _text("ca", None, "PEM file with the authorities of the daemon's https certificate", where="apart", shown="value",
          none="the certificate of the token, or the system's authorities"),
    _text("coordinator_host", None, "this host's address for executors on other hosts, or an interface or network of "
          "this host: eth0, 10.0.0.0/8", where="apart", shown="value",
          none="127.0.0.1 for a local master, spark.driver.host for others"),
    _text("coordinator_bind", None, "address that the program's coordinator listens on, such as 0.0.0.0 in a container "
          "whose host has the address coordinator_host", where="apart", shown="value", none="coordinator_host"),
    _text("coordinator_ports", "", "ports for the program's coordinator, of which it takes a free one: 7100-7109",
          where="apart", shown="value", none="any port"),
    _text("http_ports", "", "ports for REST and page of the program's coordinator, on loopback, of which the first "
          "free port is used", where="apart", shown="value", none="any port"),
    _text("https", "", "REST and page of the program's coordinator speak HTTPS: a PEM file with the certificate, or "
          "'generated'", where="apart", shown="value", none="HTTP"),
    _text("https_key", "", "PEM file with the key of https", where="apart", shown="value",
          none="the file of the certificate"),
    _text("slot_host", "", "network or interface for connections between slots, on hosts with several: 10.0.0.0/8, "
          "eth0; BARRIER_RUNTIME_SLOT_HOST on a host wins", where="apart", slot=True, shown="value",
          none="the network of the coordinator"),
    _text("slot_ports", "", "ports for connections between slots, of which each slot takes a free one: 7200-7299; a "
          "host needs a port per slot, twice as many during a replace; BARRIER_RUNTIME_SLOT_PORTS on a host wins",
          where="apart", slot=True, shown="value", none="any port"),
    _text("tls_certificate", "", "PEM file on each host for TLS between slots and with the coordinator, instead of the "
          "built-in encryption; BARRIER_RUNTIME_TLS_CERTIFICATE on a host wins, likewise for the next two",
          where="apart", slot=True, shown="value", none="no TLS"),
    _text("tls_key", "", "PEM file on each host with the key of tls_certificate", where="apart", slot=True,
          shown="value", none="the certificate's file"),
    _text("tls_ca", "", "PEM file on each host with the authorities of other processes' certificates", where="apart",
          slot=True, shown="value", none="no TLS"),
    _flag("insecure_network_ok", "trust the network: rows between slots are not encrypted, and Spark may send the "
          "job's secret unencrypted; by default connections to other addresses than loopback are encrypted",
          where="apart", slot=True),
    _seconds("coordinator_lease", 600.0, 0.1, DAY_S, "a slot leaves when the coordinator is silent for this long",
             where="apart", slot=True),
    Option("ui", bool, True, "serve the coordinator's web page, and print its address; a job in one process without "
           "Spark has a page only if ui=True is given", shown="value"),
    _choice("log_format", "plain", Literal["plain", "json"], "lines that slots log on the executors' standard error",
            where="apart", slot=True),
    _number("store_write_price", 5.0, 0, 1_000_000, "US dollars for a million PUT, COPY or LIST requests, for the "
            "costs that the page shows (S3's list price)", where="apart", field="store_write_price"),
    _number("store_read_price", 0.4, 0, 1_000_000, "US dollars for a million GET or HEAD requests, likewise",
            where="apart", field="store_read_price"),
    Option("verbose", bool, False, "print the stacks of connections that break because another process died; without "
           "it, a line", where="apart", shown="value", slot=True),
    Option("run_id", str, "", "identity of this run", made="lambda: uuid.uuid4().hex", none="made for each run",
           on_command_line=False, field="run_id", slot=True),
)

DAEMON = (
    _text("storage", None, "URL of the object store: a folder, file://… or s3://…", none="required", where="daemon"),
    _text("token_file", None, "bearer token and root key, mode 0600", none="required", where="daemon"),
    _text("listen", "127.0.0.1:0", "host:port for slots; the host may be an interface or network of this host "
          "(eth0, 10.0.0.0/8), the port a range (7100-7109); 0: any port", where="daemon"),
    _text("http", "127.0.0.1:0", "host:port for REST, likewise", where="daemon"),
    _text("advertise", "", "host or host:port that slots connect to, needed if --listen is 0.0.0.0 or ::",
          none="the address of --listen", where="daemon"),
    _text("advertise_http", "", "host or host:port of REST for programs and people",
          none="the address of --http, with the host of --advertise if --http is 0.0.0.0 or ::", where="daemon"),
    _text("https", "", "serve REST and page by HTTPS: a PEM file with the certificate, or 'generated'", where="daemon",
          none="HTTP"),
    _text("https_key", "", "PEM file with the key of --https", where="daemon", none="the file of the certificate"),
    _text("tls_certificate", "", "PEM file for TLS with slots, instead of the built-in encryption, as in the program",
          where="daemon", none="no TLS"),
    _text("tls_key", "", "PEM file with the key of --tls-certificate", where="daemon", none="the certificate's file"),
    _text("tls_ca", "", "PEM file with the authorities of the slots' certificates", where="daemon", none="no TLS"),
    _flag("insecure_network_ok", "trust the network: --http may have another address than loopback without HTTPS, so "
          "that everybody can read the jobs, and slots need not encrypt", where="daemon"),
    _seconds("lease", 5.0, 0.1, 3_600, "silence after which another daemon on the same storage may take our jobs "
             "over; 0: there is no other daemon", where="daemon"),
    _seconds("handshake_timeout", 5.0, 0.1, 3_600, "time for a connection to prove the secret; a request of REST has "
             "twice as long", where="daemon"),
    _choice("log_format", "plain", Literal["plain", "json"], "lines of the log", where="daemon"),
    _text("savepoint_roots", "", "folders or URLs, with commas, below which REST may be asked to write savepoints",
          where="daemon", none="any that the daemon can write"),
    _flag("no_ui", "serve no web page beside REST", where="daemon"),
)
# fmt: on

GROUPS = {
    "Job": JOB,
    "Checkpoints": CHECKPOINTS,
    "Restarts": RESTARTS,
    "Slots and state": SLOTS,
    "Spark and the coordinator": SPARK,
}
OPTIONS = {option.name: option for options in GROUPS.values() for option in options}
DAEMON_OPTIONS = {option.name: option for option in DAEMON}


_LONG: dict[float, str] = {DAY_S: "1 day", YEAR_S: "1 year", 10 * YEAR_S: "10 years"}
_WANTED = {
    int: "give a whole number",
    float: "give a number",
    str: "give text",
    bool: "give True or False",
    dict[str, str]: "give a dict of Spark settings, text to text",
}


def stored_in(options: tuple[Option, ...]) -> dict[str, Option]:
    return {option.field: option for option in options if option.field}


def wanted_type(option: Option) -> str:
    if option.remedy:
        return option.remedy
    text = _WANTED.get(option.plain_type, f"use {' or '.join(map(repr, option.choices))}")
    return text + (" of seconds" if option.in_ms else "") + (", or None" if option.optional else "")


def wanted(option: Option) -> str:
    what = {"s": "give seconds", "MiB": "give MiB"}.get(option.unit) or _WANTED[option.plain_type]
    or_none = f", or None: {option.none}" if option.optional else ""
    return f"{what} from {option.low:g} to {option.high:.0f}{or_none}"


def allowed(option: Option) -> str:
    """Range for help and documents; "" if the type suffices."""
    values = " or ".join(option.choices)
    if option.low is not None and option.high is not None:
        high = _LONG[option.high] if option.high in _LONG else f"{option.high:,.0f} {option.unit}".rstrip()
        values = f"{option.low:g}{' s' if option.in_ms and option.low else ''} to {high}"
    return values


def shown_value(option: Option, value: Any) -> str:
    """Value with the unit; for None and empty values their meaning."""
    if value in (None, "", {}):
        return option.none
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:g} {option.unit}".rstrip() if isinstance(value, float) else f"{value} {option.unit}".rstrip()
