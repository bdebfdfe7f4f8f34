"""Slots of a job that cannot work with the coordinator, by their versions."""

from collections.abc import Mapping

from barrier_runtime.coordinator.wire.messages import Register
from barrier_runtime.coordinator.wire.versions import differing_build, why_incompatible


class Compatibility:
    """`versions`: of the coordinator's process; empty: nothing is compared."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        self._versions = versions
        self._refused: dict[tuple[str, int], str] = {}  # (program, slot) -> why the last process was refused

    def why_refused(self, register: Register) -> str:
        """Returns why the slot must leave; "" if the slot may stay. Remembers the answer for the slot's place."""
        why = why_incompatible(register, self._versions)
        place = register.program, register.slot
        if why:
            self._refused[place] = why
        else:
            self._refused.pop(place, None)
        return why

    def differs(self, register: Register) -> str:
        return differing_build(register, self._versions)

    def refused(self, program: str) -> str:
        """Returns why a slot of `program` was refused; "" if none is missing for that reason."""
        return next((why for (of, _), why in sorted(self._refused.items()) if of == program), "")
