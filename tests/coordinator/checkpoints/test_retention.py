"""Deletion of unused files: mark and sweep over decided manifests."""

from barrier_runtime.coordinator.checkpoints.retention import MIN_AGE_MS, Kept, Retention, SweepPlan, kept_after_restore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("flights")
NOW = 10 * MIN_AGE_MS


def kept(checkpoint, *files):
    return Kept(checkpoint, PATHS.manifest(checkpoint, 5), frozenset(files))


def old(key, age=MIN_AGE_MS):
    return ObjectInfo(key, 1, NOW - age)


def test_a_dropped_checkpoint_goes_when_a_later_triggered_one_has_completed():
    """S1: exactly what no kept checkpoint uses."""
    retention = Retention(1)
    assert retention.completed(kept(1, "a", "b"), [], 1) == SweepPlan()
    assert retention.completed(kept(2, "b", "c"), [], 2) == SweepPlan(), "slots may not have heard of 2 yet"
    plan = retention.completed(kept(3, "c", "d"), [], 3)
    assert plan == SweepPlan((PATHS.manifest(1, 5),), ("a",), 1), "b is still needed by 2, which is not gone yet"
    assert retention.completed(kept(4, "d"), [], 4).files == ("b",)


def test_a_file_shared_with_a_kept_checkpoint_is_protected():
    """S9."""
    retention = Retention(1)
    for number in range(1, 20):
        plan = retention.completed(kept(number, "base", f"own{number}"), [], number)
        assert "base" not in plan.files


def test_a_checkpoint_in_flight_that_may_reuse_the_files_keeps_them():
    """C13, S4: 3 was triggered before 2 completed, and may build on 1."""
    retention = Retention(1)
    retention.completed(kept(1, "a"), [], 1)
    assert retention.completed(kept(2, "b"), [3], 3) == SweepPlan()
    assert retention.completed(kept(4, "d"), [3], 4) == SweepPlan(), "3 is still under way"
    plan = retention.resolved([])
    assert plan.files == ("a",), "3 ended without a decision"


def test_what_the_late_one_took_over_stays_with_it():
    """C13, S3."""
    retention = Retention(1)
    retention.completed(kept(1, "a", "x"), [], 1)
    retention.completed(kept(2, "b"), [3], 3)
    retention.completed(kept(3, "a", "c"), [], 3)
    plan = retention.completed(kept(4, "a", "d"), [], 4)
    assert plan == SweepPlan((PATHS.manifest(1, 5), PATHS.manifest(2, 5)), ("b", "x"), 2), "a lives on in 4"


def test_a_checkpoint_that_names_deleted_files_is_known():
    retention = Retention(1)
    for number, name in enumerate("abcd", start=1):
        retention.completed(kept(number, name), [], number)
    assert retention.condemned(["a", "d", "new"]) == ("a",)


def test_as_many_are_kept_as_asked_for():
    """C14."""
    retention = Retention(3)
    plans = [retention.completed(kept(number, f"f{number}"), [], number) for number in range(1, 8)]
    assert [plan.files for plan in plans] == [(), (), (), (), ("f1",), ("f2",), ("f3",)]
    assert [item.checkpoint for item in retention.kept] == [5, 6, 7]


def test_manifests_go_oldest_first_and_before_their_files():
    """S9."""
    retention = Retention(1)
    retention.completed(kept(1, "a"), [], 1)
    retention.completed(kept(2, "b"), [9], 9)
    retention.completed(kept(3, "c"), [9], 9)
    retention.completed(kept(10, "d"), [9], 10)
    plan = retention.resolved([])
    assert plan.manifests == (PATHS.manifest(1, 5), PATHS.manifest(2, 5))
    assert plan.keys[:2] == plan.manifests


def test_the_restored_checkpoint_stays_until_it_is_dropped_and_then_goes():
    """S2."""
    restored = kept(7, "r", "s")
    retention = Retention(1, kept_after_restore((), restored, 1))
    assert retention.completed(kept(8, "s", "t"), [], 8) == SweepPlan()
    assert retention.completed(kept(9, "t"), [], 9) == SweepPlan((PATHS.manifest(7, 5),), ("r",), 7)


def test_what_was_dropped_and_is_held_outlives_its_generation():
    """A savepoint's copy and a slow global commit continue without the generation's slots."""
    before = Retention(1)
    for number, name in enumerate("abcd", start=1):
        before.completed(kept(number, name), [], number, held=[1, 2])
    retention = before.after_restore(kept(4, "d"), [2])
    objects = [old(PATHS.manifest(2, 5)), old(PATHS.manifest(3, 5)), old(PATHS.manifest(1, 5))]
    assert retention.sweep(PATHS, objects, 9, NOW).manifests == (PATHS.manifest(1, 5), PATHS.manifest(3, 5))
    assert retention.completed(kept(5, "d", "e"), [], 5, held=[2]) == SweepPlan()
    assert retention.resolved([6], held=[]) == SweepPlan((PATHS.manifest(2, 5),), ("b",), 2), "6 does not build on it"


def test_a_restored_older_checkpoint_counts_as_the_newest():
    keep = kept_after_restore((kept(20, "x"), kept(19, "y"), kept(10, "z")), kept(10, "z"), 2)
    assert [item.checkpoint for item in keep] == [20, 10]


# ---------------------------------------------------------------- the sweep


def test_the_sweep_takes_what_older_generations_left_and_nobody_can_reach():
    """S9: orphans of undecided checkpoints."""
    needed, orphan = PATHS.data_file(4, "u", "needed"), PATHS.data_file(4, "u", "orphan")
    retention = Retention(1, [Kept(3, PATHS.manifest(3, 4), frozenset((needed,)))])
    objects = [
        old(needed),
        old(orphan),
        old(PATHS.manifest(3, 4)),
        old(PATHS.manifest(2, 4)),
        old(PATHS.manifest(10, 3)),
    ]
    plan = retention.sweep(PATHS, objects, token=5, wall_ms=NOW)
    assert plan == SweepPlan((PATHS.manifest(2, 4), PATHS.manifest(10, 3)), (orphan,))


def test_the_sweep_never_touches_the_current_or_a_newer_generation():
    """S9, I7: an upload in progress."""
    objects = [old(PATHS.data_file(token, "u", "f")) for token in (5, 6)]
    objects += [old(PATHS.manifest(9, token)) for token in (5, 6)]
    assert Retention(1).sweep(PATHS, objects, token=5, wall_ms=NOW) == SweepPlan()


def test_the_sweep_never_touches_young_objects():
    """S9."""
    young = old(PATHS.data_file(1, "u", "f"), age=MIN_AGE_MS - 1)
    assert Retention(1).sweep(PATHS, [young], token=5, wall_ms=NOW) == SweepPlan()


def test_the_sweep_leaves_alone_what_it_does_not_know():
    """S10, S2: malformed names, the log, savepoints, another job's files."""
    strange = [
        "flights/log/00000000000000000001.json",
        "flights/savepoints/mine/manifest.json",
        "flights/data/notes.txt",
        "flights/data/x1/u/f",
        "flights/checkpoints/readme",
        "flights/checkpoints/3-x/manifest.json",
        "other/data/1/u/f",
        "other/checkpoints/1-1/manifest.json",
    ]
    assert Retention(1).sweep(PATHS, [old(key) for key in strange], token=5, wall_ms=NOW) == SweepPlan()


def test_the_sweep_protects_what_waits_to_be_dropped():
    """S5: no counts are stored: each sweep marks files from manifests."""
    a = PATHS.data_file(4, "u", "a")
    retention = Retention(1, [Kept(1, PATHS.manifest(1, 4), frozenset((a,)))])
    retention.completed(kept(2, "b"), [], 2)
    assert retention.sweep(PATHS, [old(a), old(PATHS.manifest(1, 4))], token=5, wall_ms=NOW) == SweepPlan()


def test_the_newest_decision_is_kept_beside_what_a_replay_restores():
    newest_first = (kept(4, "d"), kept(3, "c"), kept(2, "b"))
    assert kept_after_restore(newest_first, kept(2, "b"), 1) == [kept(4, "d"), kept(2, "b")]
    assert kept_after_restore(newest_first, kept(4, "d"), 1) == [kept(4, "d")]
