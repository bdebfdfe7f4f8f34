"""Reports of fsck about stores written by real coordinators: intact, damaged, with unreferenced objects."""

import hashlib
import time

import msgspec
import pytest
from coordinator_world import FILE, Coordinator, checkpoint, keys_of, kinds, new_generation, options, spec, started

from barrier_runtime.coordinator.log.lease import Lease, encode_lease
from barrier_runtime.coordinator.log.records import decode_record, encode_record
from barrier_runtime.coordinator.maintenance.fsck import FileRange, inline_damage
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, delete_orphans, no_progress, report_of
from barrier_runtime.coordinator.pins import CheckpointPin
from barrier_runtime.coordinator.status.history import History, encode_history
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("flights")
MIN_AGE_MS = 600_000
NOW_MS = 10 * MIN_AGE_MS


def successor(store, a, b, job=None, leader="leader-b"):
    """Returns a restarted coordinator with both slots reconnected."""
    coordinator = Coordinator(store, job, leader=leader, now_ms=2_000_000).begin().settle()
    for slot in (a, b):
        slot.coordinator = coordinator
        slot.connect()
    return coordinator.settle()


def new_run(store, name, **changes):
    coordinator = Coordinator(store, spec(run_id=name, **changes), leader=f"leader-{name}", now_ms=5_000_000).begin()
    slots = coordinator.slot(0, f"{name}-0"), coordinator.slot(1, f"{name}-1")
    coordinator.run_with(*slots)
    return coordinator, *slots


def checked(store, min_age_ms=MIN_AGE_MS, job=None, progress=no_progress):
    (found,) = check_store(store, job, min_age_ms, NOW_MS, progress)
    return found


def reasons(report, state):
    return {each.key: each.reason for each in report.unreferenced if each.state == state}


def exit_code(store, *found):
    return report_of(store, found).exit_code


# ---------------------------------------------------------------- whole


def lived_through_everything(retained):
    """Checkpoints, failures, a restarted coordinator, a second run, a replay from an older checkpoint, a last run."""
    store = MemoryStore()
    kept = options(retained=retained)
    coordinator, a, b = started(store, spec(checkpoints=kept))
    for number in (1, 2, 3):
        checkpoint(coordinator, a, b, files=f"f1 f{number}")
    new_generation(coordinator, a, b)
    checkpoint(coordinator, a, b, files="g1")
    coordinator = successor(store, a, b, spec(checkpoints=kept))
    checkpoint(coordinator, a, b, files="g1 g2")
    new_generation(coordinator, a, b)
    yield store
    coordinator, a, b = new_run(store, "run-2", checkpoints=kept)
    for number in (1, 2, 3):
        checkpoint(coordinator, a, b, files=f"h{number}")
    yield store
    before = coordinator.status.checkpoints.last_completed.checkpoint - min(1, retained - 1)
    coordinator, a, b = new_run(store, "run-3", checkpoints=kept, restore=str(before), allow_replay=True)
    yield store
    coordinator = successor(store, a, b, spec(run_id="run-3", checkpoints=kept), leader="leader-d")
    yield store
    checkpoint(coordinator, a, b, files="i1")
    new_generation(coordinator, a, b)
    yield store
    coordinator, a, b = new_run(store, "run-4", checkpoints=options(retained=5, on_cancel="delete"))
    yield store
    checkpoint(coordinator, a, b, files="j1")
    yield store
    coordinator.stop("now")
    coordinator.settle()
    yield store
    coordinator, a, b = new_run(store, "run-5", checkpoints=kept)
    yield store
    for number in (1, 2, 3):
        checkpoint(coordinator, a, b, files=f"k{number}")
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("retained", [1, 2, 3])
def test_what_coordinators_write_is_whole_at_every_point(retained):
    """I1, I2, I3, I7: after failures, restarts, new runs, replays and a discard, deleting included."""
    for moment, store in enumerate(lived_through_everything(retained)):
        found = checked(store)
        assert found.report.damage == (), f"moment {moment}"
        assert found.report.records == len([key for key in keys_of(store) if "/log/" in key])


def test_as_many_checkpoints_are_verified_as_the_job_retains(store):
    coordinator, a, b = started(store, spec(checkpoints=options(retained=2)))
    for number in range(1, 6):
        checkpoint(coordinator, a, b, files=f"f{number}")
    report = checked(store).report
    assert report.verified == (4, 5)
    assert (report.generation, report.checkpoint, report.records) == (1, 5, 6)
    assert (report.files, report.bytes) == (4, 4 * len(FILE))


def test_a_job_without_a_checkpoint_yet_is_clean(store):
    started(store)
    found = checked(store)
    assert (found.report.checkpoint, found.report.damage, exit_code(store, found)) == (0, (), 0)


def test_what_the_job_writes_beside_its_checkpoints_is_known_and_read(store):
    started(store)
    lease = Lease(job="flights", run_id="r", leader="l", control="c", http="h", position=1, sequence=1, lease_ms=5)
    store.put(PATHS.lease, encode_lease(lease))
    store.put(PATHS.history, encode_history(History(job="flights", run_id="r")))
    store.put(f"{PATHS.probe_prefix}/0123-twice-0", b"first")
    report = checked(store).report
    assert (report.damage, report.unreferenced) == ((), ())
    for key in (PATHS.lease, PATHS.history):
        store.put(key, b"{}")
    damage = checked(store).report.damage
    assert [harm.object for harm in damage] == [PATHS.lease, PATHS.history]
    assert all(harm.remedy.startswith("delete it") for harm in damage)


# ---------------------------------------------------------------- damage of the log


def three_checkpoints(retained=1):
    """FENCE, COMPLETE 1, COMPLETE 2, FENCE, COMPLETE 3."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(checkpoints=options(retained=retained)))
    checkpoint(coordinator, a, b, files="f1")
    checkpoint(coordinator, a, b, files="f2")
    new_generation(coordinator, a, b)
    checkpoint(coordinator, a, b, files="f3")
    assert checked(store).report.damage == ()
    return store


def rewritten(store, position, **changes):
    """Changes the record, and the hashes in all later records, so that only the change itself is wrong."""
    key = PATHS.log_record(position)
    record = msgspec.structs.replace(decode_record(key, store.get(key)), **changes)
    store.damage(key, encode_record(record))
    while (key := PATHS.log_record(position := position + 1)) in keys_of(store):
        before = hashlib.sha256(store.get(PATHS.log_record(position - 1))).hexdigest()
        follower = decode_record(key, store.get(key))
        store.damage(key, encode_record(msgspec.structs.replace(follower, parent_sha256=before)))


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_a_missing_record_is_found_wherever_it_is(position):
    """I1."""
    store = three_checkpoints()
    store.delete([PATHS.log_record(position)])
    found = checked(store)
    assert found.report.damage[0].object == PATHS.log_record(position)
    assert found.report.damage[0].found == "nothing"
    assert (exit_code(store, found), found.sweep.keys) == (2, ())


@pytest.mark.parametrize("position", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("data", [b"", b"not a record", b'{"kind":"FENCE"}', b"\x80\x04pickle."])
def test_an_unreadable_record_is_found_and_named_once(position, data):
    """B4, C15."""
    store = three_checkpoints()
    store.damage(PATHS.log_record(position), data)
    named = [harm.object for harm in checked(store).report.damage]
    assert named.count(PATHS.log_record(position)) == 1
    assert not {PATHS.log_record(other) for other in range(1, 6) if other != position} & set(named)


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_a_record_that_is_readable_but_not_what_its_successor_follows_is_found(position):
    store = three_checkpoints()
    key = PATHS.log_record(position)
    record = decode_record(key, store.get(key))
    store.damage(key, encode_record(msgspec.structs.replace(record, writer="somebody else")))
    (harm,) = checked(store).report.damage
    assert harm.object == key
    assert "sha256" in harm.expected
    assert "sha256" in harm.found


@pytest.mark.parametrize(
    ("position", "changes", "said"),
    [
        (4, {"token": 3}, "token = 4"),
        (5, {"token": 1}, "token = 4"),
        (3, {"prior_complete": 1}, "prior_complete = 2"),
        (5, {"prior_complete": 2}, "prior_complete = 3"),
        (4, {"prior_run": 1}, "prior_run = -1"),
        (4, {"restored_checkpoint": 1}, "restored_checkpoint = 2"),
        (4, {"restored_position": 5}, "an earlier record"),
        (4, {"checkpoint_floor": 0}, "checkpoint_floor of 2 or more"),
        (3, {"checkpoint": 1}, "a checkpoint id above 1"),
        (5, {"lineage": "another"}, "lineage = "),
        (5, {"manifest": "flights/checkpoints/2-1/manifest.json"}, "a manifest key of checkpoint 3, generation 4"),
    ],
)
def test_a_record_that_breaks_a_law_of_the_log_is_found(position, changes, said):
    """I3, Z4."""
    store = three_checkpoints()
    rewritten(store, position, **changes)
    damage = checked(store).report.damage
    assert any(harm.object == PATHS.log_record(position) and harm.expected.startswith(said) for harm in damage), damage


def test_an_end_that_names_an_undecided_checkpoint_is_found():
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.stop("checkpoint")
    for slot in (a, b):
        slot.ack(1)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(1)
    coordinator.settle()
    assert kinds(store) == ["FENCE", "COMPLETE", "FINISH"]
    assert checked(store).report.damage == ()
    rewritten(store, 3, visible=2)
    (harm,) = checked(store).report.damage
    assert (harm.object, harm.expected, harm.found) == (PATHS.log_record(3), "visible of 1 or less", "2")


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_job_whose_log_is_gone_is_damage_and_not_an_empty_job():
    """C15, F11."""
    store = three_checkpoints()
    store.delete([key for key in keys_of(store) if "/log/" in key])
    found = checked(store)
    assert [harm.object for harm in found.report.damage] == [PATHS.log_record(1)]
    assert "the whole log is gone" in found.report.damage[0].remedy
    assert found.sweep.keys == ()


# ---------------------------------------------------------------- damage of checkpoints


@pytest.mark.parametrize("retained", [1, 3])
@pytest.mark.usefixtures("manifests_are_objects")
def test_one_flipped_byte_in_any_object_of_a_retained_checkpoint_is_found(retained):
    """O8: names the object, the expected and the found hash."""
    store = three_checkpoints(retained)
    log = [key for key in keys_of(store) if "/log/" in key]
    expected = {key for number in (3, 2, 1)[:retained] for key in keys_of(store) if names_of(key, number)}
    assert len(expected) == 3 * retained
    for key in sorted(expected):
        data = store.get(key)
        store.damage(key, bytes([data[0] ^ 1]) + data[1:])
        found = checked(store)
        (harm,) = found.report.damage
        assert harm.object == key
        assert hashlib.sha256(data).hexdigest() in harm.expected
        assert hashlib.sha256(store.get(key)).hexdigest() in harm.found
        assert "restore the object from a backup" in harm.remedy
        store.damage(key, data)
    assert log == [key for key in keys_of(store) if "/log/" in key]


def names_of(key, number):
    return key.startswith(f"flights/checkpoints/{number}-") or key.endswith(f"/f{number}")


@pytest.mark.parametrize("retained", [1, 3])
def test_a_missing_object_of_a_retained_checkpoint_is_found(retained):
    """I2, C14."""
    store = three_checkpoints(retained)
    for key in [key for number in (3, 2, 1)[:retained] for key in keys_of(store) if names_of(key, number)]:
        data = store.get(key)
        store.delete([key])
        (harm,) = checked(store).report.damage
        assert (harm.object, harm.found[:7]) == (key, "nothing")
        store.put(key, data)


def test_a_truncated_file_is_found():
    """O4."""
    store = three_checkpoints()
    (key, _) = [key for key in keys_of(store) if key.endswith("/f3")]
    store.damage(key, FILE[:1])
    (harm,) = checked(store).report.damage
    assert harm.expected.startswith("3 bytes with sha256")
    assert harm.found.startswith("1 bytes with sha256")


@pytest.mark.usefixtures("manifests_are_objects")
def test_damage_of_what_no_retained_checkpoint_needs_is_no_damage():
    store = three_checkpoints()
    key = PATHS.manifest(2, 1)
    assert key in keys_of(store), "dropped, and not yet deleted"
    store.damage(key, b"rubbish")
    found = checked(store)
    assert found.report.damage == ()
    assert any(key in note for note in found.report.notes)


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_retained_manifest_of_another_job_is_found():
    store = three_checkpoints()
    other = MemoryStore()
    coordinator, a, b = started(other, spec(job="trains"))
    coordinator.checkpoint(a, b)
    data = other.get("trains/checkpoints/1-1/manifest.json")
    store.damage(PATHS.manifest(3, 4), data)
    rewritten(store, 5, sha256=hashlib.sha256(data).hexdigest())
    (harm,) = checked(store).report.damage
    assert harm.object == PATHS.manifest(3, 4)
    assert "trains" in harm.found


@pytest.mark.slow
def test_files_are_read_in_pieces_and_packed_ones_at_their_offset(store):
    """S12."""
    data = bytes(range(256)) * 40_000  # 10 MB
    coordinator, a, b = started(store)
    key = a.data_key("packed")
    store.put(key, data)
    whole = FileRef("000001.sst", len(data), hashlib.sha256(data).hexdigest(), key)
    part = FileRef("000002.sst", 5, hashlib.sha256(data[7:12]).hexdigest(), key, offset=7)
    inside = FileRef("CURRENT", 3, hashlib.sha256(b"abc").hexdigest(), inline=b"abc")
    a.snapshots = with_files(a.snapshots, whole, part, inside)
    b.snapshots = with_files(b.snapshots)
    coordinator.checkpoint(a, b, files="x")
    before = store.calls["get"]
    report = checked(store).report
    assert (report.damage, report.files, report.bytes) == ((), 3, len(data) + 8)
    assert store.calls["get"] - before >= 4
    store.damage(key, data[:8] + b"x" + data[9:])
    assert [harm.expected[:21] for harm in checked(store).report.damage] == [
        f"{len(data)} bytes with s"[:21],
        "5 bytes from byte 7 with"[:21],
    ]


def with_files(snapshots, *refs):
    """Wraps `snapshots` of a slot, so that keyed snapshots name these files."""

    def changed(chain, checkpoint, files=""):
        found = snapshots(chain, checkpoint, files)
        keyed = [each for each in found if each.keyed is not None]
        return (
            tuple(
                msgspec.structs.replace(each, keyed=msgspec.structs.replace(each.keyed, files=refs)) for each in keyed
            )
            or found
        )

    return changed


def test_a_file_inside_a_manifest_is_hashed_too():
    good = FileRef("CURRENT", 3, hashlib.sha256(b"abc").hexdigest(), inline=b"abc")
    assert inline_damage("m", good) is None
    harm = inline_damage("m", msgspec.structs.replace(good, inline=b"abd"))
    assert harm is not None
    assert harm.object == "m (file CURRENT inside)"


def test_a_range_is_what_was_written_or_says_what_was_found():
    wanted = FileRange("k", 7, 3, "aa")
    assert wanted.damage(3, "aa") is None
    harm = wanted.damage(2, "bb")
    assert (harm.expected, harm.found) == ("3 bytes from byte 7 with sha256 aa", "2 bytes with sha256 bb")


# ---------------------------------------------------------------- unreferenced


def littered():
    """A store with one object of every kind that can be left over. The newest generation is 5."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    checkpoint(coordinator, a, b, files="f1")
    for slot in (a, b):
        slot.upload("lost")
    coordinator.trigger()
    for slot in (a, b):
        slot.upload("f2")
        slot.ack(2, files="f2")
    coordinator.step()  # writes the manifest, without the decision
    coordinator.todo.clear()
    first = {name: a.data_key(name) for name in ("f1", "f2", "lost")}
    second, c, d = new_run(store, "run-2")
    second.trigger()
    for slot in (c, d):
        slot.upload("g1")
        slot.ack(slot.highest, files="g1")
    while "COMPLETE" not in second.step().__repr__():
        assert second.todo
    second.todo.clear()  # the process dies before the sweep
    c.upload("in-progress")
    store.put("flights/data/notes.txt", b"mine")
    return store, first, c.data_key("in-progress")


@pytest.mark.usefixtures("manifests_are_objects")
def test_every_leftover_is_listed_with_its_reason():
    """S9, S10."""
    store, first, in_progress = littered()
    found = checked(store)
    orphans = reasons(found.report, "orphan")
    assert orphans[PATHS.manifest(2, 1)] == "manifest of checkpoint 2 of generation 1, which was never decided"
    assert orphans[first["f2"]] == "upload for checkpoint 2 of generation 1, which was never decided"
    assert orphans[first["lost"]] == "upload of generation 1 that no retained checkpoint names"
    dropped = "which was complete and is dropped (the job retains 1)"
    assert orphans[PATHS.manifest(1, 1)] == f"manifest of checkpoint 1 of generation 1, {dropped}"
    assert orphans[first["f1"]] == f"file of checkpoint 1 of generation 1, {dropped}"
    assert set(orphans) == set(found.sweep.keys)
    assert len(orphans) == 8
    assert reasons(found.report, "kept") == {
        in_progress: "upload of generation 3 that no retained checkpoint names; "
        "of the newest generation: who leads it may need it, and sweeps it if not"
    }
    assert list(reasons(found.report, "unknown")) == ["flights/data/notes.txt"]
    assert exit_code(store, found) == 1


def test_young_orphans_are_kept():
    """S9."""
    store, first, _ = littered()
    found = checked(store, min_age_ms=NOW_MS + 1)
    assert found.sweep.keys == ()
    assert reasons(found.report, "kept")[first["lost"]].endswith("younger than the minimum age")
    assert exit_code(store, found) == 0


def test_nothing_is_deleted_unless_asked():
    store, *_ = littered()
    before = keys_of(store)
    checked(store)
    assert keys_of(store) == before


@pytest.mark.usefixtures("manifests_are_objects")
def test_delete_takes_exactly_the_orphans_manifests_first():
    """S1, S9, I7."""
    store, *_ = littered()
    before = set(keys_of(store))
    found = checked(store)
    (done,) = delete_orphans(store, [found])
    assert before - set(keys_of(store)) == set(found.sweep.keys)
    assert found.sweep.keys[:2] == (PATHS.manifest(1, 1), PATHS.manifest(2, 1))
    assert set(reasons(done.report, "deleted")) == set(found.sweep.keys)
    again = checked(store)
    assert (again.report.damage, exit_code(store, again)) == ((), 0)


def test_nothing_is_deleted_while_a_reader_has_pinned_anything():
    store, *_ = littered()
    with CheckpointPin(store, PATHS, 1, seconds=900_000):
        before = set(keys_of(store))
        store.now_ms = lambda: time.time_ns() // 1_000_000
        found = checked(store)
        assert not [key for key in found.sweep.keys if key.startswith(PATHS.pins_prefix)]
        with CheckpointPin(store, PATHS, 1):
            (done,) = delete_orphans(store, [found])
            assert before <= set(keys_of(store))
            assert any("pinned" in note for note in done.report.notes)


def test_delete_takes_no_more_than_the_jobs_own_sweep():
    """S9: the two are compared on equal stores."""
    by_hand, *_ = littered()
    delete_orphans(by_hand, [checked(by_hand)])
    by_job, *_ = littered()
    coordinator, a, b = new_run(by_job, "run-3")
    checkpoint(coordinator, a, b, files="z")
    assert set(keys_of(by_job)) - set(keys_of(by_hand)) <= {
        key for key in keys_of(by_job) if f"data/{a.token}/" in key or f"-{a.token}/" in key or "/log/" in key
    }
    assert {key for key in keys_of(by_hand) if "/log/" not in key} - set(keys_of(by_job)) <= {
        key for key in keys_of(by_hand) if key.endswith("in-progress")
    }


def test_delete_refuses_when_the_log_has_moved_since():
    """I7."""
    store, *_ = littered()
    found = checked(store)
    new_run(store, "run-3")
    before = keys_of(store)
    (refused,) = delete_orphans(store, [found])
    assert keys_of(store) == before
    assert "it runs, and sweeps for itself" in refused.report.notes[-1]
    assert exit_code(store, refused) == 1


@pytest.mark.usefixtures("manifests_are_objects")
def test_delete_refuses_when_anything_is_damaged():
    """S10."""
    store, *_ = littered()
    other, a, b = started(store, spec(job="trains"))
    other.checkpoint(a, b)
    store.damage("trains/checkpoints/1-1/manifest.json", b"rubbish")
    before = keys_of(store)
    found = delete_orphans(store, check_store(store, None, MIN_AGE_MS, NOW_MS))
    assert keys_of(store) == before
    assert [each.report.job for each in found] == ["flights", "trains"]
    assert all("nothing was deleted" in each.report.notes[-1] for each in found)


@pytest.mark.parametrize("nth", range(8))
@pytest.mark.usefixtures("manifests_are_objects")
def test_a_delete_that_fails_midway_says_what_is_left_and_can_be_repeated(nth):
    """S9."""
    store, *_ = littered()
    found = checked(store)
    store.inject(Fault.FAIL_BEFORE, "delete", found.sweep.keys[nth], times=5)
    (done,) = delete_orphans(store, [found], sleep=lambda seconds: None)
    assert found.sweep.keys[nth] in reasons(done.report, "orphan")
    assert set(reasons(done.report, "orphan")) == set(found.sweep.keys) & set(keys_of(store))
    again = checked(store)
    assert again.report.damage == ()
    delete_orphans(store, [again])
    assert exit_code(store, checked(store)) == 0


# ---------------------------------------------------------------- a job that runs meanwhile


def test_a_checkpoint_that_is_dropped_while_it_is_verified_is_no_damage(store):
    coordinator, a, b = started(store)
    checkpoint(coordinator, a, b, files="f1")
    todo = [2, 3, 4]

    def meanwhile(what, done, total):
        if "files" in what and todo:
            for number in todo:
                checkpoint(coordinator, a, b, files=f"f{number}")
            todo.clear()

    store.damage(a.data_key("f1"), b"as if it had been deleted half way")
    report = checked(store, progress=meanwhile).report
    assert (report.damage, report.checkpoint, report.verified) == ((), 4, (4,))
    assert "was dropped while it was being verified" in report.notes[0]


def test_a_job_that_never_stands_still_is_said_to_run(store):
    coordinator, a, b = started(store)
    checkpoint(coordinator, a, b, files="f1")
    numbers = iter(range(2, 1_000))

    def meanwhile(what, done, total):
        if "files" in what and done == total:
            checkpoint(coordinator, a, b, files=f"f{next(numbers)}")

    found = checked(store, progress=meanwhile)
    assert (found.report.damage, found.sweep.keys) == ((), ())
    assert "faster than they can be verified" in found.report.notes[-1]


# ---------------------------------------------------------------- where there is nothing to check


def test_a_store_that_does_not_answer_is_said_so_and_judged_not_at_all():
    """O5."""
    store = three_checkpoints()
    store.inject(Fault.FAIL_BEFORE, "get", "/f3", times=None)
    with pytest.raises(Unavailable):
        checked(store)


def test_a_wrong_place_and_a_wrong_name_are_explained():
    store = three_checkpoints()
    store.put("lake/readings/2024.parquet", b"not ours")
    assert [each.report.job for each in check_store(store, None, 0, NOW_MS)] == ["flights"]
    with pytest.raises(InvalidJob, match="there is no job trains below memory://memory"):
        check_store(store, "trains", 0, NOW_MS)
    with pytest.raises(InvalidJob, match="there is no job below"):
        check_store(MemoryStore(), None, 0, NOW_MS)
    with pytest.raises(InvalidJob):
        check_store(store, "../etc", 0, NOW_MS)
    inner = MemoryStore()
    for key in keys_of(store):
        inner.put(key.removeprefix("flights/"), store.get(key))
    with pytest.raises(InvalidJob, match="is the folder of one job"):
        check_store(inner, None, 0, NOW_MS)
