"""The probe at the start: accepts stores with correct conditional puts, refuses others with the reason."""

from pathlib import Path

import pytest

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome
from barrier_runtime.state.store.probe import probe_conditional_put, prove_once


@pytest.mark.slow
def test_a_good_store_passes_and_nothing_is_left_behind(any_store: ObjectStore) -> None:
    """O9"""
    probe_conditional_put(any_store, "job/probe")
    probe_conditional_put(any_store, "job/probe")
    assert list(any_store.list("")) == []


def test_a_store_that_ignores_the_condition_is_refused_with_the_reason(store: MemoryStore) -> None:
    """O9"""
    store.inject(Fault.IGNORE_CONDITIONS, "put_if_absent", times=None)
    with pytest.raises(InvalidJob, match="ignores If-None-Match"):
        probe_conditional_put(store, "job/probe")
    assert store.keys() == ()


def test_store_that_checks_but_lets_two_racing_writers_win_is_refused_with_reason(store: MemoryStore) -> None:
    """O9"""
    store.inject(Fault.IGNORE_CONDITIONS, "put_if_absent", "parallel", times=None)
    with pytest.raises(InvalidJob, match="8 of 8 parallel writers"):
        probe_conditional_put(store, "job/probe")


def test_a_store_that_answers_late_now_and_then_passes(store: MemoryStore) -> None:
    """O9"""
    store.inject(Fault.CONFLICT, "put_if_absent")
    store.inject(Fault.APPLY_THEN_FAIL, "put_if_absent")
    probe_conditional_put(store, "job/probe")


def test_a_store_that_does_not_answer_is_unavailable_not_refused(store: MemoryStore) -> None:
    store.inject(Fault.CONFLICT, "put_if_absent", times=None)
    with pytest.raises(Unavailable, match="check the network"):
        probe_conditional_put(store, "job/probe")


def test_a_location_that_cannot_be_written_is_refused_with_its_url(tmp_path: Path) -> None:
    """O9"""
    store = LocalStore(tmp_path)
    store.put("job", b"an object where a folder must be")
    with pytest.raises(InvalidJob, match=f"{tmp_path.as_uri()} cannot hold checkpoints"):
        probe_conditional_put(store, "job/probe")


def test_two_probes_at_once_do_not_meet(store: MemoryStore) -> None:
    store.put_if_absent("job/probe-twice-0", b"left by somebody")
    probe_conditional_put(store, "job/probe")
    assert store.put_if_absent("job/probe-twice-0", b"") is PutOutcome.EXISTS


DAY_MS = 24 * 3_600_000


def requests_of(store: MemoryStore, now_ms: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the number of conditional puts of a start at `now_ms`."""
    asked: list[str] = []
    put = store.put_if_absent
    monkeypatch.setattr(store, "put_if_absent", lambda key, data: asked.append(key) or put(key, data))
    prove_once(store, "job/probe", now_ms)
    monkeypatch.undo()
    return len(asked)


def test_a_store_that_has_passed_is_not_asked_again_for_a_month(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert requests_of(store, DAY_MS, monkeypatch) > 0
    assert requests_of(store, 2 * DAY_MS, monkeypatch) == 0
    assert requests_of(store, 30 * DAY_MS, monkeypatch) == 0
    assert requests_of(store, 31 * DAY_MS, monkeypatch) > 0


def test_a_note_of_another_place_or_of_the_future_or_damaged_does_not_count(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove_once(store, "job/probe", 10 * DAY_MS)
    assert requests_of(store, 9 * DAY_MS, monkeypatch) > 0, "a clock has jumped"
    copied = MemoryStore("elsewhere")
    copied.put("job/probe/proven.json", store.get("job/probe/proven.json"))
    assert requests_of(copied, 11 * DAY_MS, monkeypatch) > 0
    for data in (b"", b"{}", b"[", b'{"probe": 0}'):
        store.put("job/probe/proven.json", data)
        assert requests_of(store, 11 * DAY_MS, monkeypatch) > 0


def test_a_store_that_fails_leaves_no_note(store: MemoryStore) -> None:
    store.inject(Fault.IGNORE_CONDITIONS, "put_if_absent", times=None)
    with pytest.raises(InvalidJob, match="ignores If-None-Match"):
        prove_once(store, "job/probe", DAY_MS)
    assert store.keys() == ()
