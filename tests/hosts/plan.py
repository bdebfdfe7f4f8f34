"""Faults of hosts and links, as data. Pure."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.hosts.spark_world import WORKERS, SparkWorld
from tests.hosts.world import DAEMONS, DRIVER, SLOTS, STORE, World

DAEMON = "daemon"
_ONE, _OTHER = SLOTS


@dataclass(frozen=True)
class Fault:
    """`name`: kind of the fault, the row of the summary. `apply`: a context that breaks and heals."""

    name: str
    seconds: float
    apply: Callable[[World], AbstractContextManager[None]]
    until_noticed: bool = False  # lasts until the coordinator has noticed as well
    until_output: bool = False  # lasts until rows that are due during the fault are visible

    def __str__(self) -> str:
        return f"{self.name}, {self.seconds:g} s"


def _cut(host: str, seconds: float) -> Fault:
    return Fault(f"{_described(host)} cut off", seconds, lambda world: world.network.cut(host))


def _deaf(host: str, seconds: float) -> Fault:
    return Fault(f"{_described(host)} receives nothing", seconds, lambda world: world.network.deaf(host))


def _mute(host: str, seconds: float) -> Fault:
    return Fault(f"{_described(host)} sends nothing", seconds, lambda world: world.network.mute(host))


def _off(host: str, seconds: float) -> Fault:
    return Fault(f"{_described(host)} loses power", seconds, lambda world: world.switched_off(host))


def _apart(seconds: float) -> Fault:
    return Fault("two slots apart", seconds, lambda world: world.network.apart(_ONE, _OTHER), until_noticed=True)


def _one_way(sender: str, receiver: str, seconds: float) -> Fault:
    name = f"{receiver} does not hear {sender}"
    return Fault(name, seconds, lambda world: world.network.one_way(sender, receiver), until_noticed=True)


def _narrow(host: str, rate: str, seconds: float) -> Fault:
    return Fault(f"{rate} for {_described(host)}", seconds, lambda world: world.network.narrow(host, rate))


def _skewed(host: str, by_s: float, seconds: float) -> Fault:
    name = f"clock of {_described(host)} {abs(by_s):g} s {'ahead' if by_s > 0 else 'behind'}"
    return Fault(name, seconds, lambda world: world.skewed(host, by_s))


def _slow_store(milliseconds: float, seconds: float) -> Fault:
    return Fault(f"store slower by {milliseconds:g} ms", seconds, lambda world: world.delayed(milliseconds))


def _described(host: str) -> str:
    return "slot's host" if host in SLOTS else f"{host}'s host"


SHORT = (
    _cut(_OTHER, 5),
    _one_way(_ONE, _OTHER, 5),
    _cut(DAEMON, 5),
    _mute(STORE, 5),
    _off(DAEMON, 2),
)


_WHOLE_S = 2.0  # rows that are due later are not on their way when a fault begins
_ARTICLES = {"slot": "a", "executor": "an"}


def _killed(what: str) -> Fault:
    def apply(world: World) -> AbstractContextManager[None]:
        assert isinstance(world, SparkWorld), "only Spark starts slots by itself"
        return world.killed(what)

    return Fault(f"SIGKILL of {_ARTICLES[what]} {what}", 0, apply)


def _workers_apart() -> Fault:
    """Only a slot on another host brings output: each worker has cores for both slots."""
    name = "workers apart until output"
    return Fault(name, _WHOLE_S, lambda world: world.network.apart(*WORKERS), until_output=True)


SPARK = (
    _killed("slot"),
    _killed("executor"),
    _off(WORKERS[0], 5),
    _cut(WORKERS[1], 5),
    _workers_apart(),
    _off(DAEMONS[0], 2),
    _off(DRIVER, 1),
    _cut(WORKERS[0], 15),
    _killed("slot"),
    _off(DAEMONS[1], 2),
)


def every(seconds: Sequence[float]) -> Iterator[Fault]:
    """Yields faults of each length. Of several lengths the longest is for cuts alone: else a run takes hours."""
    for each in seconds:
        for host in (_OTHER, DAEMON, DRIVER, STORE):
            yield _cut(host, each)
    for each in seconds[:-1] or seconds:
        for host in (_ONE, DAEMON, STORE):
            yield _deaf(host, each)
            yield _mute(host, each)
        yield _apart(each)
        yield _one_way(_ONE, _OTHER, each)
        yield _one_way(_OTHER, _ONE, each)
        yield _narrow(_OTHER, "1mbit", each)
        yield _narrow(STORE, "2mbit", each)
        yield _slow_store(30, each)
        yield _slow_store(300, each)
        yield _skewed(_OTHER, -30, each)
        yield _skewed(_OTHER, 30, each)
        yield _off(_OTHER, each)
        yield _off(DAEMON, each)
