"""Plans of restores from p to q subtasks, without reading a snapshot or file."""

import itertools

import pytest
from msgspec.structs import replace

from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.snapshots.plan import merge_state_ids, plan_restore
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot, StateDescription
from barrier_runtime.state.values.expiry import StoredTtl


def snapshots(parallelism: int, max_parallelism: int = 10, **changes: object) -> list[OperatorSnapshot]:
    found = []
    for subtask in range(parallelism):
        first, last = key_group_range(subtask, parallelism, max_parallelism)
        fields = {
            "backend": "rocksdb", "max_parallelism": max_parallelism, "key_group_first": first, "key_group_last": last,
            "states": {"value": 0}, "files": (), "full_bytes": 0, "new_bytes": 0,
        } | changes  # fmt: skip
        found.append(OperatorSnapshot("counts", subtask, parallelism, keyed=KeyedSnapshot(**fields)))  # type: ignore[arg-type]
    return found


def parts(
    parallelism: int, restored: list[OperatorSnapshot], max_parallelism: int = 10
) -> list[list[tuple[int, int, int]]]:
    plans = [plan_restore("counts", subtask, parallelism, max_parallelism, restored) for subtask in range(parallelism)]
    return [[(part.subtask, part.first, part.last) for part in plan.parts] for plan in plans]


def test_without_snapshots_there_is_nothing_to_restore() -> None:
    plan = plan_restore("counts", 0, 1, 10, [])
    assert (plan.parts, plan.states, plan.adopts("rocksdb")) == ((), {}, None)


def test_at_the_same_parallelism_each_subtask_opens_its_own_snapshot_as_it_is() -> None:
    restored = snapshots(3)
    for subtask in range(3):
        plan = plan_restore("counts", subtask, 3, 10, restored)
        assert plan.adopts("rocksdb") is restored[subtask].keyed
        assert plan.adopts("memory") is None
        assert plan_restore("counts", subtask, 3, 10, [restored[subtask]]).adopts("rocksdb") is restored[subtask].keyed


def test_scaling_up_and_down_moves_whole_ranges_and_clips_what_is_foreign() -> None:
    """R1"""
    assert parts(3, snapshots(1)) == [[(0, 0, 3)], [(0, 4, 6)], [(0, 7, 9)]]
    assert parts(2, snapshots(3)) == [[(0, 0, 3), (1, 4, 4)], [(1, 5, 6), (2, 7, 9)]]
    assert parts(1, snapshots(3)) == [[(0, 0, 3), (1, 4, 6), (2, 7, 9)]]
    assert plan_restore("counts", 0, 3, 10, snapshots(1)).adopts("rocksdb") is None


@pytest.mark.parametrize(
    ("old", "new"), [(1, 2), (2, 3), (2, 5), (3, 5), (5, 6), (6, 5), (5, 2), (5, 3), (3, 2), (2, 1)]
)
def test_every_key_group_is_restored_exactly_once(old: int, new: int) -> None:
    """R2"""
    groups = [
        group
        for subtask in parts(new, snapshots(old))
        for _, first, last in subtask
        for group in range(first, last + 1)
    ]
    assert groups == list(range(10))


def test_another_max_parallelism_is_refused_with_both_numbers() -> None:
    """R5"""
    with pytest.raises(InvalidJob, match=r"max_parallelism 128.*max_parallelism 256"):
        plan_restore("counts", 0, 1, 256, snapshots(1, 128))


def test_a_missing_or_doubled_snapshot_is_noticed_before_anything_is_read() -> None:
    complete = snapshots(3)
    with pytest.raises(ProtocolViolation, match="end before key group 7"):
        plan_restore("counts", 0, 1, 10, complete[:2])
    with pytest.raises(ProtocolViolation, match="from key group 0 on"):
        plan_restore("counts", 0, 1, 10, complete[1:])
    with pytest.raises(ProtocolViolation, match="from key group 4 on"):
        plan_restore("counts", 0, 1, 10, [complete[0], complete[0], complete[1], complete[2]])


def test_other_operators_and_subtasks_without_keyed_state_do_not_matter() -> None:
    others = [
        OperatorSnapshot("windows", 0, 1, keyed=snapshots(1)[0].keyed),
        OperatorSnapshot("counts", 0, 1, values={"splits": b""}),
    ]
    assert plan_restore("counts", 0, 1, 10, others).parts == ()


@pytest.mark.parametrize("name", ["rocksdict-config.json", "../000001.sst", "/etc/passwd", "LOCK", "", "000001.sst/x"])
def test_a_file_that_no_snapshot_contains_is_corrupt_before_anything_is_read(name: str) -> None:
    """J4, B1"""
    with pytest.raises(Corrupt, match="which no snapshot contains"):
        plan_restore("counts", 0, 1, 10, snapshots(1, files=(FileRef(name, 0, "", inline=b""),)))
    twice = (FileRef("CURRENT", 0, "", inline=b""), FileRef("CURRENT", 1, "", inline=b"x"))
    with pytest.raises(Corrupt, match="twice"):
        plan_restore("counts", 0, 1, 10, snapshots(1, files=twice))


def test_state_ids_of_merged_snapshots_are_renumbered_only_where_they_clash() -> None:
    states, renumberings = merge_state_ids([{"a": 0, "b": 1}, {"b": 0, "a": 1}, {"c": 0, "a": 7}])
    assert states == {"a": 0, "b": 1, "c": 2}
    assert renumberings == [{0: 0, 1: 1}, {0: 1, 1: 0}, {0: 2, 7: 0}]
    assert merge_state_ids([]) == ({}, [])


def test_undated_entries_count_from_the_earlier_restore_when_subtasks_are_merged() -> None:
    """An entry that was expired in one subtask stays expired."""
    known = [StateDescription("list", ttl=StoredTtl(50, since_ms=since_ms)) for since_ms in (120, 100, None)]
    for order in itertools.permutations([*known, StateDescription("list")]):
        merging = [
            replace(each, keyed=replace(each.keyed, described={"l": what}))
            for each, what in zip(snapshots(4), order, strict=True)
        ]
        assert plan_restore("counts", 0, 1, 10, merging).described == {"l": known[1]}
