"""Versions compared at a registration. Pure."""

from collections.abc import Mapping

from barrier_runtime.coordinator.wire.messages import ACCEPTED_PROTOCOLS, Register

PROTOCOL, PYTHON, PROJECT, BUILD = "the protocol", "Python", "barrier-runtime", "the build of barrier-runtime"

# parts of the version that must be equal: they decide about closures, Arrow, messages and files of state
_COMPARED = {PYTHON: 2, "pyarrow": 1, "msgspec": 1, "rocksdict": 1}
_SHOWN = (PROJECT, BUILD)
_LONGEST = 40
_ONE_ENVIRONMENT = (
    "give the executors the driver's environment (PYSPARK_PYTHON with the same packages on each host, or "
    "spark.archives), and coordinator daemons the same release"
)


def why_incompatible(register: Register, own: Mapping[str, str]) -> str:
    """Returns why the slot cannot work with a coordinator of versions `own`; else "".

    Unknown versions are not compared: a daemon needs no rocksdict. Deployed slots are not compared: an upgraded
    coordinator keeps them."""
    slots = register.versions
    found = [
        (name, slots[name], own[name])
        for name, parts in _COMPARED.items()
        if register.token == 0
        and slots.get(name)
        and own.get(name)
        and _first(slots[name], parts) != _first(own[name], parts)
    ]
    if PROTOCOL in slots and slots[PROTOCOL] not in map(str, ACCEPTED_PROTOCOLS):
        found.insert(0, (PROTOCOL, slots[PROTOCOL], " or ".join(map(str, ACCEPTED_PROTOCOLS))))
    return _differs(register, found, _ONE_ENVIRONMENT) if found else ""


def differing_build(register: Register, own: Mapping[str, str]) -> str:
    slots = register.versions
    found = [(name, slots[name], own[name]) for name in _SHOWN if slots.get(name) and own.get(name, "") != slots[name]]
    return _differs(register, found, "install the same build on all hosts") if found and own else ""


def _first(version: str, parts: int) -> list[str]:
    return version.split(".")[:parts]


def _differs(register: Register, found: list[tuple[str, str, str]], remedy: str) -> str:
    differences = " and ".join(f"{name} {slots[:_LONGEST]}, the coordinator has {own}" for name, slots, own in found)
    return f"slot {register.slot} on host {register.host} has {differences}: {remedy}"


class Compatibility:
    """`versions`: of the coordinator's process; empty: nothing is compared."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        self._versions = versions
        self._refused: dict[tuple[str, int], tuple[Register, str]] = {}  # (program, slot) -> last process, and why

    def why_refused(self, register: Register) -> str:
        """Returns "" if the slot may stay. The answer is remembered."""
        why = why_incompatible(register, self._versions)
        place = register.program, register.slot
        if why:
            self._refused[place] = register, why
        else:
            self._refused.pop(place, None)
        return why

    def differs(self, register: Register) -> str:
        return differing_build(register, self._versions)

    def refused(self, program: str) -> str:
        """Why a slot of `program` was refused; else ""."""
        return next((why for _, why in self.refused_slots(program)), "")

    def refused_slots(self, program: str) -> tuple[tuple[Register, str], ...]:
        return tuple(self._refused[place] for place in sorted(self._refused) if place[0] == program)
