"""One job with several targets: its program is started once for all of them, and each strike meets them all. Looks at
each, a judge for each, and their servers as one."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from examples.servers import Server
from tests.integration.chaos.verdict import Figures
from tests.integration.ends.audit import Audit


class Looks:
    """A look at each target. One that cannot be read is left out: its server may be away, the others' are not.
    `seldom`: of so many looks one, for what is read whole."""

    def __init__(self, looks: Mapping[str, Callable[[], Any]], seldom: Mapping[str, int] | None = None) -> None:
        self._looks = looks
        self._seldom = seldom or {}
        self._failed: dict[str, Exception] = {}
        self._number = 0

    def __str__(self) -> str:
        told = {name: str(getattr(look, "__self__", "")) for name, look in self._looks.items()}
        return f"{self._number} looks; {told}; what failed: {self._failed}"

    def look(self) -> dict[str, Any]:
        """Raises what the last one raised when none could be read."""
        due = {name: look for name, look in self._looks.items() if self._number % self._seldom.get(name, 1) == 0}
        seen = {}
        for name, look in due.items():
            try:
                seen[name] = look()
                self._failed.pop(name, None)
            except AssertionError:  # what a reader asserts is wrong, whatever its server does
                raise
            except Exception as error:
                self._failed[name] = error
        if not seen:
            raise next(iter(self._failed.values()))
        self._number += 1
        return seen


class EachTarget:
    """Judges each target by itself. `rows`: what is visible in every one of them."""

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
    """Servers of which the next one is killed, and the next one stopped."""

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
