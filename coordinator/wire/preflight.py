"""Findings about slots' hosts before a job's first start. Pure.

Facts come with registrations and answers to `Probe`; slots of earlier releases bring none.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from barrier_runtime.coordinator.wire.messages import Probed, Register
from barrier_runtime.state.texts import counted, shortened

CLOCK_MS = 15_000  # larger differences exceed a message's delay on a busy host
LEAST_FREE_BYTES = 1 << 30
_OF_A_SLOT = 256  # open files besides the connections to other slots
_MOST = 20
_LONGEST = 300
_OPEN_PORTS = (
    "open the ports between these hosts (slot_ports= gives a fixed range), or set BARRIER_RUNTIME_SLOT_HOST there to "
    "an address that others reach"
)

_SILENT = "see the executors' logs, and whether these hosts are overloaded or lose their connection to the coordinator"


class Finding(msgspec.Struct, frozen=True):
    """`error`: the job cannot work, or not for long."""

    severity: Literal["error", "warning"]
    text: str
    remedy: str

    @property
    def line(self) -> str:
        return f"{self.text}: {self.remedy}"


class HostFacts(msgspec.Struct, frozen=True):
    """None, and empty versions: unknown."""

    host: str
    address: str
    slots: tuple[int, ...]
    versions: dict[str, str] = {}
    clock_ms: int | None = None  # ahead of the coordinator's
    open_files: int | None = None
    free_bytes: int | None = None
    store: str | None = None  # "": reached, else error
    store_ms: int | None = None
    unreached: tuple[int, ...] | None = None  # slots to which a slot of this host cannot connect


class Preflight(msgspec.Struct, frozen=True):
    """`complete`: all slots have registered, and all that can have probed."""

    complete: bool
    hosts: tuple[HostFacts, ...] = ()
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[int, ...] = ()

    def given_up(self, missing: Sequence[int], waited_s: float) -> "Preflight":
        silent = ", ".join(map(str, sorted({*self.unanswered, *missing})))
        finding = Finding("error", f"no answer for {waited_s:g} s from slots: {silent}", _SILENT)
        return msgspec.structs.replace(self, findings=(finding, *self.findings))


@dataclass(frozen=True)
class SlotFound:
    """`clock_ms`: ahead of the coordinator's, at the registration."""

    register: Register
    clock_ms: int | None = None
    probed: Probed | None = None


def preflight(slots: Sequence[SlotFound], parallelism: int, refused: Sequence[tuple[Register, str]] = ()) -> Preflight:
    """`refused`: slots of other versions, and why."""
    waits = tuple(each.register.slot for each in slots if each.register.facts is not None and each.probed is None)
    places = {register.slot for register, _ in refused}
    everybody = sorted(
        [*(each for each in slots if each.register.slot not in places), *(SlotFound(each) for each, _ in refused)],
        key=lambda each: each.register.slot,
    )
    hosts = tuple(_host(each) for each in _by_host(everybody))
    found = (*_other_versions(refused), *findings(slots, parallelism))
    return Preflight(len(everybody) >= parallelism and not waits, hosts, found, waits)


def _other_versions(refused: Sequence[tuple[Register, str]]) -> list[Finding]:
    hosts = {(register.host, register.data_host): why for register, why in reversed(refused)}
    return [Finding("error", *why.rsplit(": ", 1)) for why in reversed(hosts.values())][:_MOST]


def findings(slots: Sequence[SlotFound], parallelism: int) -> tuple[Finding, ...]:
    found = [*_unreached_store(slots), *_unreached_slots(slots)]
    for host in _by_host(slots):
        facts = host[0].register.facts
        if facts is None:
            continue
        name = _named(host[0].register)
        needed = _OF_A_SLOT + 2 * (parallelism - 1)
        if facts.open_files < needed:
            found.append(_too_few_files(name, facts.open_files, parallelism, needed))
        if facts.free_bytes < LEAST_FREE_BYTES:
            found.append(_too_little_space(name, facts.free_bytes, facts.folder))
        ahead_ms = min((each.clock_ms for each in host if each.clock_ms is not None), key=abs, default=0)
        if abs(ahead_ms) >= CLOCK_MS:
            found.append(_other_time(name, ahead_ms))
    return tuple(sorted(found, key=lambda each: each.severity))


def _unreached_store(slots: Sequence[SlotFound]) -> list[Finding]:
    return [
        Finding(
            "error",
            f"{_named(host[0].register)} cannot use the checkpoint store: {_short(error)}",
            "give that host the network, the credentials (AWS_… variables, roles) and the mounts of the driver's host",
        )
        for host in _by_host(slots)
        if (error := next((each.probed.store for each in host if each.probed is not None and each.probed.store), ""))
    ][:_MOST]


def _unreached_slots(slots: Sequence[SlotFound]) -> list[Finding]:
    """A line per host that several cannot connect to, else per host that cannot connect."""
    places = {each.register.slot: each.register for each in slots}
    pairs: dict[tuple[str, str], tuple[Register, Register, str]] = {}
    for each in slots:
        for index, error in sorted(each.probed.unreached.items()) if each.probed is not None else ():
            peer = places.get(index)
            if peer is not None:
                pairs.setdefault((_named(each.register), _named(peer)), (each.register, peer, error))
    dialling = Counter(host for _, host in pairs)
    to: dict[str, list[tuple[Register, Register, str]]] = {}
    by: dict[str, list[tuple[Register, Register, str]]] = {}
    for (host, target), pair in pairs.items():
        lines, key = (to, target) if dialling[target] > 1 else (by, host)
        lines.setdefault(key, []).append(pair)
    found = [*(_no_way(each, others=0) for each in to.values()), *(_no_way(each) for each in by.values())]
    return found[:_MOST]


def _no_way(pairs: Sequence[tuple[Register, Register, str]], others: int | None = None) -> Finding:
    """`others`: further hosts that cannot be reached; None: those of `pairs`."""
    slot, peer, error = pairs[0]
    targets = len(pairs) - 1 if others is None else others
    sources = len(pairs) - 1 - targets
    too = f" and slots on {counted(sources, 'other host')}" if sources else ""
    more = f", or to slots on {counted(targets, 'other host')}" if targets else ""
    return Finding(
        "error",
        f"slot {slot.slot} on {_named(slot)}{too} cannot connect to slot {peer.slot} on {_named(peer)}, port "
        f"{peer.data_port}{more}: {_short(error)}",
        _OPEN_PORTS,
    )


def _too_few_files(name: str, open_files: int, parallelism: int, needed: int) -> Finding:
    return Finding(
        "error",
        f"{name} allows {open_files:,} open files per process, and a slot of {parallelism} needs {needed:,}",
        "raise the hard limit where the executor starts (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of the "
        "container)",
    )


def _too_little_space(name: str, free_bytes: int, folder: str) -> Finding:
    return Finding(
        "error" if free_bytes == 0 else "warning",
        f"{name} has {free_bytes >> 20:,} MiB free in {folder}, where slots keep state",
        "free space there, or set SPARK_LOCAL_DIRS to another disk",
    )


def _other_time(name: str, ahead_ms: int) -> Finding:
    than = "ahead of" if ahead_ms > 0 else "behind"
    return Finding(
        "warning",
        f"the clock of {name} is {abs(ahead_ms) / 1000:.0f} s {than} the coordinator's",
        "synchronise the clocks (NTP), else latencies and processing time of this host are wrong",
    )


def _by_host(slots: Iterable[SlotFound]) -> list[list[SlotFound]]:
    """Containers may share a name, hosts behind a proxy an address."""
    found: dict[tuple[str, str], list[SlotFound]] = {}
    for each in slots:
        found.setdefault((each.register.host, each.register.data_host), []).append(each)
    return list(found.values())


def _host(slots: Sequence[SlotFound]) -> HostFacts:
    register, facts = slots[0].register, slots[0].register.facts
    probed = [each.probed for each in slots if each.probed is not None]
    ahead = [each.clock_ms for each in slots if each.clock_ms is not None]
    return HostFacts(
        host=register.host,
        address=register.data_host,
        slots=tuple(each.register.slot for each in slots),
        versions=register.versions,
        clock_ms=min(ahead, key=abs, default=None),
        open_files=None if facts is None else facts.open_files,
        free_bytes=None if facts is None else facts.free_bytes,
        store=next((each.store for each in probed if each.store), "" if probed else None),
        store_ms=max((each.store_ms for each in probed), default=None),
        unreached=tuple(sorted({slot for each in probed for slot in each.unreached})) if probed else None,
    )


def _named(register: Register) -> str:
    return f"host {register.host} ({register.data_host})"


def _short(error: str) -> str:
    return shortened(" ".join(error.split()), _LONGEST)
