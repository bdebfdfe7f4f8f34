"""`ctx.metrics`: users' metrics, exported with the step's own as `user_<name>`."""

import re
from collections.abc import Callable
from math import inf, isfinite
from typing import TypeAlias, TypeVar

from barrier_runtime.operators.metrics import LatencyRecorder, MetricGroup
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.undo import Undo

PREFIX = "user_"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MOST = 100  # of a step: every heartbeat carries all
_MOST_HISTOGRAMS = 20
_NS = 1_000_000  # ns per recorded unit: a histogram of ns shows ms
_GREATEST = 3_600_000.0
Recorded: TypeAlias = tuple[LatencyRecorder, int, int]  # with the value, and how many times


class UserCounter:
    """Count that only rises."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: dict[str, float], name: str) -> None:
        self._counts = counts
        self._name = name
        counts.setdefault(name, 0.0)

    def inc(self, amount: float = 1) -> None:
        if not 0 <= amount < inf:
            raise InvalidJob(
                f"counter {self._name[len(PREFIX) :]!r}: inc({amount!r}) does not raise it by a figure: use a gauge"
            )
        self._counts[self._name] += amount


class UserGauge:
    """A current value. NaN and infinite values are omitted, since JSON has no such numbers."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: dict[str, float], name: str) -> None:
        self._counts = counts
        self._name = name

    def set(self, value: float) -> None:
        value = float(value)
        if isfinite(value):
            self._counts[self._name] = value
        else:
            self._counts.pop(self._name, None)


class UserHistogram:
    """Distribution of values: number, median, 99th percentile and maximum.
    Over all slots, since the start of the processes and over the last minute.
    """

    __slots__ = ("_latencies", "_name", "_recorded")

    def __init__(self, group: MetricGroup, name: str, recorded: list[Recorded] | None) -> None:
        self._latencies = group.latencies
        self._name = name
        self._recorded = recorded

    def record(self, value: float, count: int = 1) -> None:
        """Records `value`, `count` times, to three digits.
        The range is 0.001 to 3,600,000; values beyond count as the bound. Record durations in milliseconds.
        """
        if not value >= 0 or count < 0:
            raise InvalidJob(
                f"histogram {self._name[len(PREFIX) :]!r}: record({value!r}, {count!r}): record figures from 0 on, any "
                "number of times; a difference that may be negative is two histograms, or a gauge"
            )
        recorder = self._latencies.get(self._name)
        if recorder is None:
            recorder = self._latencies[self._name] = LatencyRecorder()
        ns = int(min(value, _GREATEST) * _NS)
        recorder.record(ns, count)
        if self._recorded is not None:
            self._recorded.append((recorder, ns, count))


_Made = TypeVar("_Made", UserCounter, UserGauge, UserHistogram)


class UserMetrics:
    """`ctx.metrics` of a step in a slot, over all keys."""

    def __init__(self, where: str, group: MetricGroup, undo: Undo | None = None) -> None:
        self._where = where
        self._group = group
        self._counts = group.counts
        self._made: dict[str, UserCounter | UserGauge | UserHistogram] = {}
        self._before: dict[str, float] = {}
        self._recorded: list[Recorded] | None = None
        if undo is not None:
            self._recorded = []
            undo.add(self)

    def begin(self) -> None:
        counts = self._counts
        self._before = {name: counts[name] for made in self._made if (name := PREFIX + made) in counts}
        if self._recorded:
            self._recorded.clear()

    def put_back(self) -> None:
        before, counts = self._before, self._counts
        for name, made in self._made.items():
            if type(made) is UserCounter or PREFIX + name in before:
                counts[PREFIX + name] = before.get(PREFIX + name, 0.0)
            else:
                counts.pop(PREFIX + name, None)
        for recorder, ns, count in self._recorded or ():
            recorder.record(ns, -count)

    def counter(self, name: str) -> UserCounter:
        """Returns the counter `name`. A row that is processed again after a failure counts again."""
        found = self._made.get(name)
        return found if type(found) is UserCounter else self._new(name, lambda key: UserCounter(self._counts, key))

    def gauge(self, name: str) -> UserGauge:
        """Returns the gauge `name`, which exists once it is set."""
        found = self._made.get(name)
        return found if type(found) is UserGauge else self._new(name, lambda key: UserGauge(self._counts, key))

    def histogram(self, name: str) -> UserHistogram:
        """Returns the histogram `name`, which exists once a value is recorded. At most twenty per step."""
        found = self._made.get(name)
        if type(found) is UserHistogram:
            return found
        made = sum(type(each) is UserHistogram for each in self._made.values())
        if made == _MOST_HISTOGRAMS and name not in self._made:
            raise InvalidJob(
                f"{self._where}: histogram {name!r} would be number {made + 1}, and each is sent whole with every "
                "heartbeat: take fewer, or gauges"
            )
        return self._new(name, lambda key: UserHistogram(self._group, key, self._recorded))

    def _new(self, name: str, make: Callable[[str], _Made]) -> _Made:
        if name in self._made:
            before = type(self._made[name]).__name__[len("User") :].lower()
            raise InvalidJob(
                f"{self._where}: metric {name!r} is a {before} in one place and something else in another: give one of "
                "them another name"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidJob(
                f"{self._where}: metric {name!r}: use 1 to 64 small letters, digits and '_', beginning with a letter"
            )
        if len(self._made) == _MOST:
            raise InvalidJob(
                f"{self._where}: metric {name!r} would be number {_MOST + 1}: count fewer things; what differs by key "
                "belongs in state"
            )
        made = self._made[name] = make(PREFIX + name)
        return made
