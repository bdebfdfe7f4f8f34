"""Ranges of ports, such as 7200-7299: a process listens on the first free port of the range."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from barrier_runtime.state.errors import InvalidJob

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_MOST = 65_535


@dataclass(frozen=True)
class PortRange:
    """Ports from `first` to `last`. 0: the system chooses."""

    first: int = 0
    last: int = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else f"{self.first}"


ANY_PORT = PortRange()


def port_range(text: str, said: str) -> PortRange:
    """Range of "7200-7299" or "7200"; "" is any port. `said`: the option, for messages."""
    if not text.strip():
        return ANY_PORT
    found = _RANGE.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= _MOST:
        raise InvalidJob(f"{said}={text!r} is no range of ports: give two ports from 1 to {_MOST}, such as 7200-7299")
    return PortRange(first, last)
