"""The timers of a keyed operator: their heap against the table that is the truth, and how long it gets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.operators.timers import StateKey, Timers
from tests.drawn import examples


class Table:
    """A state table that counts what is asked of it."""

    def __init__(self) -> None:
        self.entries: dict[StateKey, Any] = {}
        self.calls = 0

    def get(self, key: StateKey) -> Any:
        self.calls += 1
        return self.entries.get(key)

    def put(self, key: StateKey, value: Any) -> None:
        self.calls += 1
        self.entries[key] = value

    def delete(self, key: StateKey) -> None:
        self.calls += 1
        self.entries.pop(key, None)

    def scan(self) -> Any:
        return iter(list(self.entries.items()))


def made() -> tuple[Timers, Table, CurrentKey]:
    table, current = Table(), CurrentKey()
    return Timers(table, current), table, current


@pytest.mark.parametrize("events", [30_000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_timers_that_are_moved_with_every_event_take_no_memory_and_no_look_at_other_timers(events: int) -> None:
    """The pattern of session timeouts: (delete, register) with every event, on 1,000 keys."""
    timers, table, current = made()
    longest = 0
    for event in range(events):
        current.key = (event % 1_000,)
        timers.delete(event - 1_000 + 10**9)
        timers.register(event + 10**9)
        longest = max(longest, len(timers))
    assert len(table.entries) == 1_000
    assert longest <= 2 * 1_000 + 2
    assert table.calls <= 4 * events
    assert [at for _, at in timers.due(WATERMARK_MAX)] == [events - 1_000 + n + 10**9 for n in range(1_000)]


ACTION = st.tuples(
    st.sampled_from(["register", "delete", "watermark", "restart"]), st.integers(0, 3), st.integers(0, 30)
)


@examples(300)
@given(st.lists(ACTION, max_size=200), st.integers(1, 5))
def test_timers_fire_as_a_plain_set_of_them_would(actions: list[tuple[str, int, int]], repeated: int) -> None:
    timers, table, current = made()
    model: set[tuple[int, StateKey]] = set()
    watermark = -1
    for action, key, number in actions * repeated:
        current.key, at = (key,), watermark + 1 + number
        if action == "register":
            timers.register(at)
            model.add((at, (key,)))
        elif action == "delete":
            timers.delete(at)
            model.discard((at, (key,)))
        elif action == "watermark":
            watermark += number % 7
            due = sorted(each for each in model if each[0] <= watermark)
            model -= set(due)
            assert [(at, key) for key, at in timers.due(watermark)] == due
        else:
            timers = Timers(table, current)
        assert {(entry[-1], entry[:-1]) for entry in table.entries} == model
        assert len(timers) <= 2 * len(model) + 2 * 64 + 2
    assert [(at, key) for key, at in timers.due(WATERMARK_MAX)] == sorted(model)


def test_timers_deleted_and_registered_again_while_the_last_ones_fire() -> None:
    timers, table, current = made()
    current.key = (1,)
    for at in range(200):
        timers.register(at)
    fired = []
    for key, at in timers.due(WATERMARK_MAX):
        current.key = key
        fired.append(at)
        if at == 0:
            for other in range(50, 200):
                timers.delete(other)
            timers.register(60)
    assert fired == [*range(50), 60]
    assert not table.entries
