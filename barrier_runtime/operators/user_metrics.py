"""Metrics that a user's function counts itself: `ctx.metrics`. They go out with the step's own, as `user_<name>`, so
that no name of ours is ever taken.
"""

import re
from typing import TypeVar

from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.errors import InvalidJob

PREFIX = "user_"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MOST = 100  # of a step: each is sent with every heartbeat


class UserCounter:
    """How often something happened; it only rises."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: dict[str, float], name: str) -> None:
        self._counts = counts
        self._name = name
        counts.setdefault(name, 0.0)

    def inc(self, amount: float = 1) -> None:
        if amount < 0:
            raise InvalidJob(f"counter {self._name[len(PREFIX) :]!r}: inc({amount!r}) would lower it: use a gauge")
        self._counts[self._name] += amount


class UserGauge:
    """A figure of this moment."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: dict[str, float], name: str) -> None:
        self._counts = counts
        self._name = name

    def set(self, value: float) -> None:
        self._counts[self._name] = float(value)


_Made = TypeVar("_Made", UserCounter, UserGauge)


class UserMetrics:
    """`ctx.metrics`: of one step, in one slot, over all keys. A name is a counter or a gauge for good."""

    def __init__(self, where: str, group: MetricGroup) -> None:
        self._where = where
        self._counts = group.counts
        self._made: dict[str, UserCounter | UserGauge] = {}

    def counter(self, name: str) -> UserCounter:
        """The counter `name`. A row that is processed again after a failure counts again."""
        found = self._made.get(name)
        return found if type(found) is UserCounter else self._new(name, UserCounter)

    def gauge(self, name: str) -> UserGauge:
        """The gauge `name`; it is there once it was set."""
        found = self._made.get(name)
        return found if type(found) is UserGauge else self._new(name, UserGauge)

    def _new(self, name: str, kind: type[_Made]) -> _Made:
        if name in self._made:
            raise InvalidJob(f"{self._where}: metric {name!r} is a counter in one place and a gauge in another")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidJob(
                f"{self._where}: metric {name!r}: use 1 to 64 small letters, digits and '_', beginning with a letter"
            )
        if len(self._made) == _MOST:
            raise InvalidJob(
                f"{self._where}: metric {name!r} would be number {_MOST + 1}: count fewer things; what differs by key "
                "belongs in state"
            )
        made = self._made[name] = kind(self._counts, PREFIX + name)
        return made
