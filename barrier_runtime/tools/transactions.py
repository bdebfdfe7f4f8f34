"""The command `transactions`."""

import copy
import getpass
import importlib.util
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.coordinator.maintenance.in_doubt import InDoubtResolution
from barrier_runtime.runtime.sinks.pending_set import PendingEntry
from barrier_runtime.runtime.sinks.pending_transactions import (
    InDoubtResolver,
    PendingJob,
    PendingSink,
    read_pending,
    rows_told,
    running,
)
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.texts import counted

_STATE = "decided, not known to be visible"


def transactions(
    job: str,
    action: str,
    url: str,
    *,
    sinks: Sequence[str] = (),
    settings: Sequence[str] = (),
    accept_loss: bool = False,
    force: bool = False,
    form: str = "text",
) -> int:
    """Returns the exit code: 1 if a transaction could not be resolved. Raises `InvalidJob` for wrong use."""
    if action not in ("list", "commit", "abort"):
        raise InvalidJob(f"transactions {action!r} is not known: use list, commit or abort")
    if form not in ("text", "json"):
        raise InvalidJob(f"--format {form!r} is not known: use text or json")
    if accept_loss and action != "abort":
        raise InvalidJob("--accept-loss belongs to abort: nothing is lost by the others")
    factories = dict(_factory(each) for each in sinks)
    overrides = _overrides(settings)
    store = open_existing_store(url)
    pending = read_pending(store, check_job_id(job))
    unknown = sorted((set(factories) | set(overrides)) - {sink.name for sink in pending.sinks})
    if unknown:
        have = ", ".join(sink.name for sink in pending.sinks) or "none"
        raise InvalidJob(f"job {job} has no sink {', '.join(unknown)} in its last checkpoint; it has: {have}")
    if action == "list":
        _print_list(pending, form)
        return 0
    if not force:
        leader = running(store, pending)
        if leader:
            raise InvalidJob(
                f"job {job} runs, led by {leader}: it settles its transactions itself. Stop it first, or use --force "
                "if it is known to be gone"
            )
    resolution = _resolution(store, pending) if action == "abort" and pending.sinks else None
    token = pending.token if resolution is None else resolution.begin()
    resolver = InDoubtResolver(store, pending, factories, overrides)
    outcomes = [_settled(resolver, sink, token, action, accept_loss) for sink in pending.sinks]
    _print_outcomes(pending, action, accept_loss, outcomes, form)
    if resolution is not None:
        resolution.finish("its transactions were settled by barrier-runtime transactions abort")
    return 0 if all(outcome.error == "" for outcome in outcomes) else 1


class Outcome(msgspec.Struct):
    sink: str
    done: list[PendingEntry]
    error: str = ""


def _resolution(store: ObjectStore, pending: PendingJob) -> InDoubtResolution:
    host = socket.gethostname()
    return InDoubtResolution(
        store,
        pending.log,
        leader=f"settled-{uuid.uuid4().hex}",
        host=host,
        submitter=f"{getpass.getuser()}@{host} pid {os.getpid()} (transactions abort)",
    )


def _settled(resolver: InDoubtResolver, sink: PendingSink, token: int, action: str, accept_loss: bool) -> Outcome:
    outcome = Outcome(sink.name, [])
    try:
        if action == "commit":
            if sink.entries:
                resolver.commit(sink, outcome.done.append)
        elif accept_loss:
            resolver.drop(sink, token, outcome.done.append)
        else:
            resolver.clean_up(sink, token)
            outcome.done.extend(sink.entries)
    except Exception as error:
        outcome.error = str(error) if isinstance(error, BarrierRuntimeError) else f"{type(error).__name__}: {error}"
    return outcome


def _print_list(pending: PendingJob, form: str) -> None:
    if form == "json":
        _print_json({**_head(pending), "transactions": [_row(sink, e) for sink in pending.sinks for e in sink.entries]})
        return
    print(_headline(pending))
    for sink in pending.sinks:
        print(f"sink {sink.name} ({sink.kind}): {_count(len(sink.entries))} {_STATE if sink.entries else 'pending'}")
        for entry in sink.entries:
            print(f"  {_line(entry)}")


def _print_outcomes(
    pending: PendingJob, action: str, accept_loss: bool, outcomes: Sequence[Outcome], form: str
) -> None:
    verb = "committed" if action == "commit" or not accept_loss else "dropped"
    if form == "json":
        kinds = {sink.name: sink for sink in pending.sinks}
        done = [_row(kinds[each.sink], entry, verb) for each in outcomes for entry in each.done]
        errors = {each.sink: each.error for each in outcomes if each.error}
        _print_json({**_head(pending), "transactions": done, "errors": errors})
        return
    print(_headline(pending))
    for each in outcomes:
        for entry in each.done:
            print(f"sink {each.sink}: {verb} {_line(entry)}")
        if each.error:
            print(f"sink {each.sink}: {each.error}", file=sys.stderr)
        elif action == "abort" and not accept_loss:
            print(f"sink {each.sink}: what was not decided is dropped")
        elif not each.done:
            print(f"sink {each.sink}: nothing was pending")
    if accept_loss and any(each.done for each in outcomes):
        print(
            f"What was dropped and was not visible is lost. Checkpoint {pending.checkpoint} still names it: a start "
            "from it tries to commit it and fails: a loss must not pass for success. Go on from an older checkpoint "
            "(run --restore <number> --allow-replay, which writes again what came after it) or from nothing "
            "(run --restore none --allow-replay)."
        )


def _headline(pending: PendingJob) -> str:
    checkpoint = f"checkpoint {pending.checkpoint}" if pending.checkpoint else "no decided checkpoint"
    how = pending.ended or "not ended: it runs, or was killed"
    return f"job {pending.job}: {checkpoint}, generation {pending.token}, last run {how}"


def _head(pending: PendingJob) -> dict[str, Any]:
    return {
        "job": pending.job,
        "checkpoint": pending.checkpoint,
        "generation": pending.token,
        "lineage": pending.lineage,
        "last_run": pending.ended or None,
    }


def _row(sink: PendingSink, entry: PendingEntry, state: str = _STATE) -> dict[str, Any]:
    return {
        "sink": sink.name,
        "kind": sink.kind,
        "checkpoint": entry.checkpoint,
        "subtask": entry.subtask,
        "rows": rows_told(entry.committable),
        "bytes": len(entry.committable),
        "state": state,
    }


def _line(entry: PendingEntry) -> str:
    rows = rows_told(entry.committable)
    told = counted(rows, "row") if rows is not None else f"committable of {counted(len(entry.committable), 'byte')}"
    return f"checkpoint {entry.checkpoint}, subtask {entry.subtask}: {told}"


def _count(number: int) -> str:
    return counted(number, "transaction")


def _print_json(answer: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def _overrides(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings from texts `sink.key=value`; a value that is not JSON is text."""
    found: dict[str, dict[str, Any]] = {}
    for entry in settings:
        name, separator, value = entry.partition("=")
        sink, dot, key = name.rpartition(".")
        if not separator or not dot or not sink or not key.isidentifier():
            raise InvalidJob(f"--set {name}: write sink.key=value")
        try:
            found.setdefault(sink, {})[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found.setdefault(sink, {})[key] = value
    return found


def _factory(entry: str) -> tuple[str, Callable[[], TwoPhaseCommitSink]]:
    """Factory from `name=file.py:factory`: a sink, a subclass of a sink, or a function without arguments."""
    name, _, target = entry.partition("=")
    file, _, attribute = target.rpartition(":")
    path = Path(file)
    if not name or not file or not attribute.isidentifier():
        raise InvalidJob(f"--sink {entry}: write name=file.py:factory, for example out=app.py:make_sink")
    if not path.is_file():
        raise InvalidJob(f"--sink {entry}: there is no file {file!r} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location("barrier_runtime_user_sink", path)
    if spec is None or spec.loader is None:
        raise InvalidJob(f"--sink {entry}: {file!r} is not a Python file: give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    factory = getattr(module, attribute, None)
    if isinstance(factory, TwoPhaseCommitSink):
        return name, lambda: copy.copy(factory)
    if not callable(factory):
        raise InvalidJob(f"--sink {entry}: {file} has no sink, and no function that makes one, called {attribute!r}")

    def made() -> TwoPhaseCommitSink:
        sink = factory()
        if not isinstance(sink, TwoPhaseCommitSink):
            raise InvalidJob(f"--sink {entry}: {attribute}() returned {type(sink).__name__}, which is not a sink")
        return sink

    return name, made
