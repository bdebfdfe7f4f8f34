"""Options of a run, checked when given, and the job's description made from them.

Times are seconds, as users write them; inside the runtime they are milliseconds.
"""

import datetime
import difflib
import getpass
import math
import os
import socket
from collections.abc import Iterable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import msgspec

from barrier_runtime.coordinator.option_table import (
    CHECKPOINTS,
    JOB,
    OPTIONS,
    RESTARTS,
    SLOTS,
    SPARK,
    Option,
    shown_value,
    wanted,
    wanted_type,
)
from barrier_runtime.coordinator.option_types import OptionValues, SlotOptions
from barrier_runtime.coordinator.options import (
    MAX_CHECKPOINT_DIGITS,
    MAX_PARALLELISM,
    describe_restart,
    progress_timeout_ms,
    validated,
    validated_restart,
)
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec, RestartOptions
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.sockets import port_range
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.urls import shown, without_credentials

NOTHING: Mapping[str, object] = MappingProxyType({})
_OF_HOST = {"slot_host", "slot_ports", "tls_certificate", "tls_key", "tls_ca", "insecure_network_ok"}  # may differ


@dataclass(frozen=True)
class JobOptions(OptionValues):
    """Made from the table `coordinator.option_table`."""

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, object], of_flow: Mapping[str, object] = NOTHING) -> "JobOptions":
        """Makes options from `keywords`, which win over the flow's, `of_flow`."""
        given = {**of_flow, **keywords}
        options = cls(**typed(given))
        options.check()
        refuse_idle(options, given.keys() if "restart" not in keywords else keywords.keys())
        if "aligned_timeout" in (given if "unaligned" not in keywords else keywords) and not options.unaligned:
            raise InvalidJob(
                f"aligned_timeout={options.aligned_timeout!r} has no meaning without unaligned=True: give both, or "
                "leave it out"
            )
        if "degrade_after" in (given if "at_least" not in keywords else keywords) and options.at_least is None:
            raise InvalidJob(
                f"degrade_after={options.degrade_after:g} has no meaning without at_least=: give both, or leave it out"
            )
        said = given if "spark" not in keywords else keywords
        ignored = [name for name in ("master", "spark_conf") if name in said]
        if options.spark is not None and ignored:
            raise InvalidJob(
                f"{ignored[0]} says how to make a Spark session, and spark= is one that is made: leave one of them out"
            )
        return options

    @classmethod
    def for_local_run(
        cls,
        keywords: Mapping[str, object],
        of_flow: Mapping[str, object] = NOTHING,
        *,
        processes: int | None = None,
    ) -> "JobOptions":
        """Refuses Spark's keywords, except in the flow.

        `processes`: number of slots in processes of their own; None: all slots are in this process.
        """
        apart = processes is not None
        refuse_for_spark({name: name for name in keywords}, "use run()", apart=apart)
        usable = usable_locally(of_flow, apart=apart)
        if processes is None:
            return cls.from_keywords(keywords, {"check_state": True, "ui": False, **usable})
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
            raise InvalidJob(f"processes={processes!r}: give a whole number of slots; 0: other machines have all slots")
        options = cls.from_keywords(keywords, {**({"parallelism": processes} if processes else {}), **usable})
        if processes > options.parallelism:
            raise InvalidJob(
                f"processes={processes} is more than parallelism={options.parallelism}, the number of slots: leave out "
                "parallelism=, or raise it; slots beyond processes= are started by `barrier-runtime slot`"
            )
        return options

    @classmethod
    def of_run(cls, keywords: Mapping[str, object], of_flow: Mapping[str, object], *, local: bool) -> "JobOptions":
        return (cls.for_local_run if local else cls.from_keywords)(keywords, of_flow)

    def check(self) -> None:
        for option in OPTIONS.values():
            _check_bounds(option, getattr(self, option.name))
        if self.max_parallelism < self.parallelism:
            raise InvalidJob(
                f"max_parallelism={self.max_parallelism}: give a whole number from parallelism "
                f"({self.parallelism}) to {MAX_PARALLELISM}; it is fixed for the life of the job"
            )
        if self.at_least is not None and self.at_least > self.parallelism:
            raise InvalidJob(
                f"at_least={self.at_least}: give at most parallelism ({self.parallelism}), the slots that the job has "
                "when no core is away"
            )
        savepoint = is_savepoint_url(self.restore)
        id_like = self.restore.isascii() and self.restore.isdigit()
        if self.restore not in ("latest", "none") and not id_like and not savepoint:
            raise InvalidJob(f"restore={self.restore!r}: {OPTIONS['restore'].remedy}")
        if savepoint and self.checkpoints is None:
            raise InvalidJob("restore= names a savepoint, and the job has no folder of its own: give checkpoints=")
        if self.restore_mode == "claim" and not savepoint:
            raise InvalidJob(
                f"restore_mode='claim' gives the job the savepoint that it restores, and restore={self.restore!r} "
                "names none: name one in restore=, as its folder or URL, or leave restore_mode out"
            )
        if not savepoint and len(self.restore) > MAX_CHECKPOINT_DIGITS:
            raise InvalidJob(f"restore has {len(self.restore)} characters: {OPTIONS['restore'].remedy}")
        check_job_id(self.run_id, "run_id")
        if savepoint:
            without_credentials(self.restore, "restore")
        for name in ("checkpoints", "coordinator"):
            for url in (getattr(self, name) or "").split(","):
                without_credentials(url.strip(), name)
        if self.coordinator is not None and self.token_file is None:
            raise InvalidJob("coordinator= needs token_file=, the file with the daemon's bearer token")
        if self.ca is not None and self.coordinator is None:
            raise InvalidJob("ca= is for a daemon: give coordinator= with its https address, or leave ca= out")
        if self.https_key and not self.https:
            raise InvalidJob("https_key= without https=: give the certificate of the key in https=")
        for name in ("coordinator_ports", "http_ports", "slot_ports"):
            port_range(getattr(self, name), name)
        self.checkpoint_options()
        restart_options(self)
        self.progress_timeout_ms()

    def progress_timeout_ms(self) -> int:
        checkpoints = self.checkpoint_options()
        given = self.progress_timeout
        if given is None:
            return progress_timeout_ms(0, checkpoints)
        if given * 1000 <= checkpoints.interval_ms:
            raise InvalidJob(
                f"progress_timeout={given:g}: give more than the time between two checkpoints, "
                f"{checkpoints.interval_ms / 1000:g} s, or every job would seem to stand still"
            )
        return progress_timeout_ms(round(given * 1000), checkpoints)

    def checkpoint_options(self) -> CheckpointOptions:
        return validated(CheckpointOptions(**_stored(self, CHECKPOINTS)))

    def for_slots(self) -> SlotOptions:
        return SlotOptions(**{each.name: getattr(self, each.name) for each in fields(SlotOptions)})

    def for_joining_slots(self) -> dict[str, Any]:
        """Leaves out options that other fields of `JobSpec` hold."""
        rows = (row for row in OPTIONS.values() if row.slot and not row.field and row.name not in _OF_HOST)
        return {row.name: getattr(self, row.name) for row in rows}


def is_savepoint_url(restore: str) -> bool:
    return "/" in restore


def typed(given: Mapping[str, object]) -> dict[str, Any]:
    unknown = sorted(set(given) - OPTIONS.keys())
    if unknown:
        meant = difflib.get_close_matches(unknown[0], OPTIONS, 1)
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        raise InvalidJob(f"unknown option {', '.join(unknown)}{hint}: the options are {', '.join(sorted(OPTIONS))}")
    return {name: _typed(OPTIONS[name], value) for name, value in given.items()}


def refuse_for_spark(
    given: Mapping[str, str], remedy: str, *, processes: str = "processes=", apart: bool = False
) -> None:
    """`given`: option -> the user's name. `processes`: the user's name of that option. `apart`: slots run
    in processes of their own.
    """
    idle = {name: said for name, said in given.items() if not is_usable_locally(name, apart=apart)}
    if idle:
        with_processes = f", or let slots run in processes ({processes})" if any(map(_needs_processes, idle)) else ""
        raise InvalidJob(
            f"{', '.join(idle.values())} {'has' if len(idle) == 1 else 'have'} no meaning in a local run, which has "
            f"neither Spark nor a daemon: leave it out, or {remedy}{with_processes}"
        )


def is_usable_locally(name: str, *, apart: bool) -> bool:
    """Unknown names are refused later. `apart`: see `refuse_for_spark`."""
    where = OPTIONS[name].where if name in OPTIONS else "everywhere"
    return where == "everywhere" or (apart and where == "apart")


def _needs_processes(name: str) -> bool:
    return OPTIONS[name].where == "apart"


def usable_locally(of_flow: Mapping[str, object], *, apart: bool = False) -> dict[str, object]:
    return {name: value for name, value in of_flow.items() if is_usable_locally(name, apart=apart)}


def _typed(option: Option, value: object) -> Any:
    if "PathLike" in option.also and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if option.also == "timedelta" and isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if option.also == "int" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if "Sequence" in option.also and isinstance(value, list | tuple) and all(isinstance(url, str) for url in value):
        value = ",".join(value)
    harmless = option.shown == "value" or isinstance(value, int | float)  # other text may hold a secret
    said = repr(value) if harmless else f"a {type(value).__name__}"
    try:
        typed = msgspec.convert(value, option.type)
    except msgspec.ValidationError as error:
        raise InvalidJob(f"{option.name}={said}: {wanted_type(option)}") from error
    if isinstance(typed, float) and not math.isfinite(typed):
        raise InvalidJob(f"{option.name}={value!r}: {wanted_type(option)}")
    return typed


def _check_bounds(option: Option, value: Any) -> None:
    if value is None or option.low is None or option.high is None:
        return
    if not option.low <= value <= option.high:
        raise InvalidJob(f"{option.name}={value}: {wanted(option)}")


def _stored(options: OptionValues, rows: Iterable[Option]) -> dict[str, Any]:
    return {row.field: row.stored(getattr(options, row.name)) for row in rows if row.field}


def job_spec(graph: JobGraph, options: JobOptions) -> JobSpec:
    aligned = next((graph.chains[edge.target_chain] for edge in graph.edges if edge.aligned), None)
    if aligned is not None and options.mode != "exactly_once":
        raise InvalidJob(
            f'connect {aligned.operators[0].name!r}: broadcast(switch="barrier") needs barriers that are aligned, and '
            f"with mode={options.mode!r} none is: leave out mode=, or switch="
        )
    return JobSpec(
        job=check_job_id(graph.name),
        submitter=f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}",
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        chains=graph.chain_specs(),
        checkpoints=options.checkpoint_options(),
        restore="latest" if is_savepoint_url(options.restore) else options.restore,  # the savepoint is imported before
        restart=restart_options(options),
        progress_timeout_ms=options.progress_timeout_ms(),
        **_stored(options, (*JOB, *SLOTS, *SPARK)),
    )


class StorageOfRun:
    def __init__(self, options: JobOptions) -> None:
        self._given = options.checkpoints
        self._temporary = ExitStack()

    def __enter__(self) -> str:
        if self._given is not None:
            return self._given
        return str(self._temporary.enter_context(scratch_folder("barrier-runtime-checkpoints-local-")))

    def __exit__(self, *exception: object) -> None:
        self._temporary.close()


_FIRST_BACKOFF_S = 0.2  # the first restart in a row has no delay
_FIXED_DELAY_S = 1.0


def restart_options(options: OptionValues) -> RestartOptions:
    exponential = options.restart == "exponential_delay"
    delay_s = options.restart_delay
    if delay_s is None:
        delay_s = min(_FIRST_BACKOFF_S, options.restart_max_delay) if exponential else _FIXED_DELAY_S
    if exponential and delay_s > options.restart_max_delay:
        raise InvalidJob(
            f"restart_delay={delay_s:g} is above restart_max_delay={options.restart_max_delay:g}: lower the one or "
            "raise the other"
        )
    return validated_restart(RestartOptions(**{**_stored(options, RESTARTS), "initial_ms": round(delay_s * 1000)}))


def refuse_idle(options: OptionValues, given: Set[str]) -> None:
    for name in sorted(given):
        strategies = OPTIONS[name].strategies
        if strategies and options.restart not in strategies:
            raise InvalidJob(
                f"{name}={getattr(options, name)!r} has no meaning with restart={options.restart!r}: leave it out, "
                f"or use restart={' or '.join(map(repr, strategies))}"
            )


_MADE = ("run_id",)  # random unless given: nothing to show
_CHANGED_BY = {"checkpoint_interval": "min_pause", "max_concurrent": "min_pause"}


def effective(options: JobOptions, sources: Mapping[str, str], *, local: bool = False) -> dict[str, str]:
    """Each value in force, with the source in brackets. `sources`: of the given options."""
    values = _in_force(options) | {name: "" for name in _MADE if name not in sources}
    told = {}
    for name, option in OPTIONS.items():
        if local and not is_usable_locally(name, apart=False):
            continue
        given = getattr(options, name)
        source = sources.get(name, "default")
        if values[name] != given and name in _CHANGED_BY:
            source = f"follows from {_CHANGED_BY[name]}; {source}: {shown_value(option, given)}"
        told[name] = f"{_text(option, values[name], options)} [{source}]"
    told["restart"] = f"{describe_restart(restart_options(options))} [{sources.get('restart', 'default')}]"
    return told


def _in_force(options: JobOptions) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(options, name) for name in OPTIONS}
    checkpoints = msgspec.structs.asdict(options.checkpoint_options())
    values |= {option.name: option.unstored(checkpoints[option.field]) for option in CHECKPOINTS if option.field}
    restart = msgspec.structs.asdict(restart_options(options))
    values |= {option.name: option.unstored(restart[option.field]) for option in RESTARTS if _used(option, options)}
    values["progress_timeout"] = options.progress_timeout_ms() / 1000
    return values


def _used(option: Option, options: JobOptions) -> bool:
    if option.name == "aligned_timeout":
        return options.unaligned
    return not option.strategies or options.restart in option.strategies


def _text(option: Option, value: Any, options: JobOptions) -> str:
    if not _used(option, options):
        return (
            f"not used with {'unaligned=False' if option.name == 'aligned_timeout' else f'restart={options.restart}'}"
        )
    if not value or option.shown == "value":
        return shown_value(option, value)
    return shown(value) if option.shown == "url" else "given, not shown"


def shared_store(url: str) -> ObjectStore:
    """Opens a store; refuses memory, which other processes cannot read."""
    if url.startswith("memory://"):
        raise InvalidJob(
            f"checkpoints={shown(url)!r} is the memory of one process, a Spark job runs in several: "
            "use a folder or s3://, or run_local()"
        )
    return open_store(url)


def url_for_slots(url: str) -> str:
    """URL of the same place for processes with another working directory.

    S3 URLs stay as given: without their endpoint, slots would write to another S3.
    """
    return url if url.startswith(("s3://", "s3a://")) else open_store(url).url
