"""A job with several targets: one program start serves all targets, and each strike hits all of them. Has a look and a
judge for each target, and the servers as one server.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from examples.servers import Server
from tests.integration.chaos.verdict import Figures
from tests.integration.ends.audit import Audit


class Looks:
    """A look at each target. Unreadable targets are left out: one server may be away while the others run. `seldom`: a
    target that is read whole takes part in every n-th look only.
    """

    def __init__(self, looks: Mapping[str, Callable[[], Any]], seldom: Mapping[str, int] | None = None) -> None:
        self._looks = looks
        self._seldom = seldom or {}
        self._failed: dict[str, Exception] = {}
        self._number = 0

    def __str__(self) -> str:
        told = {name: str(getattr(look, "__self__", "")) for name, look in self._looks.items()}
        return f"{self._number} looks; {told}; what failed: {self._failed}"

    def look(self) -> dict[str, Any]:
        """A look at all due targets. Raises a target's error if no target was readable."""
        due = {name: look for name, look in self._looks.items() if self._number % self._seldom.get(name, 1) == 0}
        seen = {}
        for name, look in due.items():
            try:
                seen[name] = look()
                self._failed.pop(name, None)
            except AssertionError:  # a reader's assertion is a verdict, even if the server is away
                raise
            except Exception as error:
                self._failed[name] = error
        if not seen:
            raise next(iter(self._failed.values()))
        self._number += 1
        return seen


class EachTarget:
    """Judges each target by itself. `rows`: the number of rows visible in every target."""

    def __init__(self, audits: Mapping[str, Audit]) -> None:
        self._audits = audits

    def observe(self, where: str, seen: Mapping[str, Any]) -> None:
        for name, each in seen.items():
            self._audits[name].observe(f"{where} at {name}", each)

    def __str__(self) -> str:
        return ", ".join(f"{each.rows} rows of {name}" for name, each in self._audits.items())

    @property
    def rows(self) -> int:
        return min(each.rows for each in self._audits.values())

    @property
    def figures(self) -> Figures:
        total = Figures()
        for audit in self._audits.values():
            each = audit.figures
            for name in ("rows", "observations", "wrong_observations", "lost", "duplicated", "out_of_order", "torn"):
                setattr(total, name, getattr(total, name) + getattr(each, name))
            total.wrong_state += each.wrong_state
            for example in each.examples:
                total.example(example)
        return total

    @property
    def by_target(self) -> dict[str, Figures]:
        return {name: audit.figures for name, audit in self._audits.items()}


class InTurn:
    """Servers that are killed and stopped in turn."""

    def __init__(self, *servers: Server) -> None:
        self._servers = servers
        self._killed, self._stopped = itertools.cycle(servers), itertools.cycle(servers)
        self._away = servers[0]

    @property
    def running(self) -> bool:
        return all(server.running for server in self._servers)

    def kill(self) -> None:
        self._away = next(self._killed)
        self._away.kill()

    def stop(self) -> None:
        self._away = next(self._stopped)
        self._away.stop()

    def start(self) -> None:
        self._away.start()
