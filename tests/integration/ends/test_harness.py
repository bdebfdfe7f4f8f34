"""Tests of the harness: audits detect every kind of fault, and plans are reproducible."""

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.integration.chaos.verdict import told
from tests.integration.ends.audit import Audit, Latest, Numbers, Seen
from tests.integration.ends.plan import plan
from tests.integration.ends.several import EachTarget, InTurn, Looks

Observed = Callable[[], Audit]


def numbers(*looks: Seen, together: bool = False, ordered: bool = True) -> Observed:
    return lambda: looked_at(Numbers(4, together=together, splits=2, ordered=ordered), looks)


def latest(*looks: dict[int, tuple[int, int]], together: bool = False) -> Observed:
    return lambda: looked_at(Latest(4, together=together), looks)


def looked_at(audit: Audit, looks: Sequence[Any]) -> Audit:
    for number, seen in enumerate(looks):
        audit.observe(f"look {number}", seen)
    return audit


def new(*values: int) -> Seen:
    """The new rows since the last look."""
    return Seen(values, whole=False)


WHOLE = Seen([]), Seen([0, 1, 4]), Seen([0, 1, 4, 2, 5, 8])
NEW = new(0, 1, 4), new(), new(2, 5, 8)
ALL_KEYS = {0: (4, 2), 2: (2, 1), 1: (5, 2), 3: (3, 1)}
FIRST = {0: (4, 2), 1: (1, 1)}
VERDICTS: dict[str, tuple[Observed, int, str]] = {  # looks, rows of the source, counted faults and their first place
    "in order, in whole looks": (numbers(*WHOLE), 6, ""),
    "in order, in looks at what is new": (numbers(*NEW), 6, ""),
    "missing below a later one of its key": (numbers(Seen([0, 1, 8])), 3, "lost 1, wrong 1: look 0"),
    "for a moment": (numbers(Seen([0, 8]), Seen([0, 8, 4]), ordered=False), 3, "late 1, wrong 1: look 0"),
    "twice in a whole look": (numbers(Seen([0, 1, 1])), 2, "twice 1, wrong 1: look 0"),
    "twice in a look at what is new": (numbers(new(0, 1, 1)), 2, "twice 1, wrong 1: look 0"),
    "again in a whole look": (numbers(Seen([0, 1]), Seen([0, 1, 0])), 2, "twice 1, wrong 1: look 1"),
    "again in a look at what is new": (numbers(new(0, 1), new(0)), 2, "twice 1, wrong 1: look 1"),
    "vanished": (numbers(Seen([0, 4]), Seen([0])), 1, "torn 1: look 1"),
    "out of order": (numbers(Seen([4, 0])), 2, "late 1: look 0"),
    "where the reader knows no order": (numbers(Seen([4, 0]), ordered=False), 2, ""),
    "with their counts": (numbers(Seen([0, 4], n=[1, 2])), 2, ""),
    "with another count": (numbers(Seen([0, 4], n=[1, 3])), 2, "state 1: look 0"),
    "of one key": (numbers(Seen([0, 4])), 2, ""),
    "of one key, together: 2 is of their split": (numbers(Seen([0, 4]), together=True), 2, "lost 1, wrong 1: look 0"),
    "together": (numbers(Seen([0, 2, 4, 1]), together=True), 4, ""),
    "one per key": (latest(FIRST), 3, ""),
    "one per key: it goes back": (latest(FIRST, {0: (0, 1), 1: (1, 1)}), 2, "late 1, wrong 1: look 1"),
    "one per key: another count": (latest(FIRST, {0: (4, 3), 1: (1, 1)}), 3, "state 1, wrong 1: look 1"),
    "one per key: vanished": (latest(FIRST, {0: (4, 2)}), 3, "wrong 1: look 1"),
    "one per key: of another key": (latest(FIRST, {0: (5, 2), 1: (1, 1)}), 3, "wrong 1: look 1"),
    "one per key, together": (latest({0: (4, 2), 2: (2, 1)}, together=True), 3, ""),
    "one per key, all together": (latest(ALL_KEYS, together=True), 6, ""),
    "one per key, together: 2 is before 4": (latest({0: (4, 2)}, together=True), 2, "wrong 1: look 0"),
    "one per key, together: 4 is missing": (latest({0: (0, 1), 2: (6, 2)}, together=True), 3, "wrong 1: look 0"),
}


@pytest.mark.parametrize(("observed", "rows", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_rows_that_are_seen_get_their_verdict(observed: Observed, rows: int, verdict: str) -> None:
    """Each kind of fault is counted under its name, in the look that shows the fault, and no other figure rises."""
    audit = observed()
    figures = audit.figures
    first = figures.examples[0].partition(":")[0] if figures.examples else ""
    assert f"{told(figures)}: {first}".strip(": ") == verdict
    assert figures.right is not bool(verdict)
    assert audit.rows == rows


def test_every_look_is_counted() -> None:
    assert [numbers(*looks)().figures.observations for looks in (WHOLE, NEW)] == [3, 3]


@pytest.mark.parametrize(("kills", "of_a_kind"), [(20, 2), (8, 1), (5, 1)])
@pytest.mark.parametrize("seed", range(30))
def test_a_plan_comes_from_its_seed_and_strikes_everything(seed: int, kills: int, of_a_kind: int) -> None:
    actions = plan(seed, kills, 1, 7.0)
    assert actions == plan(seed, kills, 1, 7.0)
    kinds = collections.Counter(kind for each in actions for kind in (each.kind, each.then) if kind)
    assert kinds.total() >= kills
    assert min(kinds[kind] for kind in ("slot", "coordinator")) >= 2
    assert min(kinds[kind] for kind in ("program", "server kill", "server stop")) >= of_a_kind
    assert actions[-1].kind == "program"
    assert sum(each.hold_s == 7.0 for each in actions) == 1
    assert any(each.then and each.kind.startswith("server") for each in actions)


def test_every_server_of_several_is_killed_and_stopped() -> None:
    kinds = collections.Counter(each.kind for each in plan(177, 14, 4, 8.0))
    assert kinds["server kill"] == kinds["server stop"] == 4


class Recorded:
    """A server, as far as strikes use servers."""

    def __init__(self, name: str, happened: list[str]) -> None:
        self._name, self._happened = name, happened
        self.running = True

    def kill(self) -> None:
        self.running = False
        self._happened.append(f"{self._name} killed")

    def stop(self) -> None:
        self.running = False
        self._happened.append(f"{self._name} stopped")

    def start(self) -> None:
        self.running = True
        self._happened.append(f"{self._name} started")


def test_of_several_servers_the_next_one_is_struck_and_comes_back() -> None:
    happened: list[str] = []
    servers = InTurn(*(Recorded(name, happened) for name in "ab"))
    for strike in (servers.kill, servers.kill, servers.stop):
        strike()
        assert not servers.running
        servers.start()
        assert servers.running
    assert happened == ["a killed", "a started", "b killed", "b started", "a stopped", "a started"]


def test_a_target_that_cannot_be_read_is_left_out_and_none_that_can_is_an_error() -> None:
    away: set[str] = set()

    def look(name: str) -> str:
        if name in away:
            raise ConnectionError(f"{name} is away")
        return name

    looks = Looks({name: partial(look, name) for name in "ab"}, seldom={"b": 2})
    assert [looks.look() for _ in range(3)] == [{"a": "a", "b": "b"}, {"a": "a"}, {"a": "a", "b": "b"}]
    away.add("a")
    with pytest.raises(ConnectionError, match="a is away"):
        looks.look()
    away.discard("a")
    assert looks.look() == {"a": "a"}
    away.add("b")
    assert looks.look() == {"a": "a"}
    assert "b is away" in str(looks)


def test_each_of_several_targets_is_judged_by_itself() -> None:
    judge = EachTarget({"table": Numbers(4), "topic": Numbers(4)})
    judge.observe("look 1", {"table": new(0, 1, 4), "topic": new(0, 1)})
    assert (judge.rows, told(judge.figures)) == (2, "")
    judge.observe("look 2", {"topic": new(1)})
    assert [name for name, figures in judge.by_target.items() if not figures.right] == ["topic"]
    assert judge.figures.examples[0].startswith("look 2 at topic: ")
    assert told(judge.figures) == "twice 1, wrong 1"
