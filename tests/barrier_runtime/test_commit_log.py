"""The commit log of file sinks: each file is named once, whoever writes, repeats, stalls or comes back."""

import msgspec
import pytest

from barrier_runtime.sinks.commit_log import CommitLog, CommittedFile, read_commit_log
from state.errors import Corrupt, Unavailable
from state.memory_store import Fault, MemoryStore


def file(name: str) -> CommittedFile:
    """`name` is "<token>-<anything>"."""
    return CommittedFile(name, "00", 1)


def append(log: CommitLog, checkpoint: int, token: int, *names: str, closed_by: int = 0) -> None:
    """`closed_by`: the oldest checkpoint that any of the files belongs to."""
    log.append(
        checkpoint, token, [file(name) for name in names], lambda each: (int(each.name.split("-")[0]), closed_by)
    )


def logged(store: MemoryStore) -> list[list[str]]:
    return [[each.name for each in record.files] for record in read_commit_log(store, "job", "out")]


def log_on(store: MemoryStore) -> CommitLog:
    return CommitLog(store, "job", "out")


def test_each_commit_is_one_record_and_repeating_it_adds_nothing() -> None:
    """T6: commit after commit is success."""
    store = MemoryStore()
    log = log_on(store)
    for _ in range(2):
        append(log, 1, 1, "1-a", "1-b")
    for _ in range(2):
        append(log, 2, 1, "1-b", "1-c")
    append(log_on(store), 2, 2, "1-b", "1-c")  # another process repeats it
    append(log_on(store), 3, 2)
    assert logged(store) == [["1-a", "1-b"], ["1-c"]]


def test_a_zombie_and_its_successor_name_every_file_once_whoever_is_faster() -> None:
    store = MemoryStore()
    zombie, successor = log_on(store), log_on(store)
    append(zombie, 1, 1, "1-a")
    append(successor, 2, 5, "1-a", "1-b")  # restored checkpoint 2
    append(zombie, 2, 1, "1-a", "1-b")  # wakes up and finishes what was decided
    append(successor, 3, 5, "5-c")
    append(zombie, 2, 1, "1-b")
    assert logged(store) == [["1-a"], ["1-b"], ["5-c"]]


def test_a_zombie_that_is_far_behind_does_not_forget_what_its_successor_named() -> None:
    """Found by the simulation: it lost the put to a record that names also what only its later commits ask for."""
    store = MemoryStore()
    zombie, successor = log_on(store), log_on(store)
    append(successor, 4, 1, "1-a", "1-b", "1-c", "1-d")  # restored checkpoint 4
    append(zombie, 1, 1, "1-a")
    append(zombie, 2, 1, "1-b")
    append(zombie, 4, 1, "1-c", "1-d")
    assert logged(store) == [["1-a", "1-b", "1-c", "1-d"]]


def test_a_zombie_that_was_faster_costs_the_successor_nothing() -> None:
    store = MemoryStore()
    zombie, successor = log_on(store), log_on(store)
    append(zombie, 1, 1, "1-a")
    append(successor, 1, 5, "1-a")
    append(zombie, 2, 1, "1-b")
    append(successor, 2, 5, "1-b", "5-c")
    assert logged(store) == [["1-a"], ["1-b"], ["5-c"]]


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE, Fault.CONFLICT])
def test_a_put_of_unknown_outcome_is_repeated_until_it_is_known(fault: Fault) -> None:
    """O2, O3: however the lost answer turns out, there is one record."""
    store = MemoryStore()
    log = log_on(store)
    store.inject(fault, "put_if_absent")
    with pytest.raises(Unavailable):
        append(log, 1, 1, "1-a")
    append(log, 2, 1, "1-a", "1-b")  # by now there is more to commit
    store.land_late()
    append(log, 3, 1, "1-c")
    assert [name for names in logged(store) for name in names] == ["1-a", "1-b", "1-c"]


def test_a_put_that_lands_late_takes_its_place_and_the_retry_goes_behind_it() -> None:
    store = MemoryStore()
    log = log_on(store)
    store.inject(Fault.LAND_LATE, "put_if_absent")
    with pytest.raises(Unavailable):
        append(log, 1, 1, "1-a")
    store.land_late()
    append(log, 2, 1, "1-a", "1-b")
    assert logged(store) == [["1-a"], ["1-b"]]


def test_a_new_life_of_the_job_is_neither_skipped_nor_mixed_up() -> None:
    """T14: the target has seen checkpoint 100 of token 50; checkpoints and tokens begin again at 1."""
    store = MemoryStore()
    append(log_on(store), 100, 50, "50-a")
    append(log_on(store), 1, 1, "1-b")
    again = log_on(store)
    append(again, 1, 2, "1-b")
    append(again, 2, 2, "2-c")
    assert logged(store) == [["50-a"], ["1-b"], ["2-c"]]


def test_a_restarted_committer_reads_back_no_further_than_it_must() -> None:
    store = MemoryStore()
    log = log_on(store)
    for number in range(1, 200):
        append(log, number, number, f"{number}-x")
    store.calls.clear()
    append(log_on(store), 200, 200, "199-x", "200-x")
    assert store.calls["get"] < 30
    assert logged(store)[-1] == ["200-x"]


def test_nor_when_all_records_are_of_the_generation_that_died() -> None:
    store = MemoryStore()
    log = log_on(store)
    for number in range(1, 200):
        append(log, number, 7, f"7-{number}", closed_by=number)
    store.calls.clear()
    append(log_on(store), 200, 8, "7-199", "7-200", closed_by=199)
    assert store.calls["get"] < 30
    append(log_on(store), 200, 9)
    assert store.calls["get"] < 30, "and nothing at all when nothing is pending"
    assert logged(store)[-1] == ["7-200"]


def test_a_zombies_late_record_hides_nothing_that_stands_before_it() -> None:
    """A replay by a new run, while the old run still names a file of its own: token and checkpoint fall."""
    store = MemoryStore()
    append(log_on(store), 8, 20, "20-a", closed_by=8)
    append(log_on(store), 7, 10, "10-z", closed_by=7)
    append(log_on(store), 8, 21, "20-a", closed_by=8)
    assert logged(store) == [["20-a"], ["10-z"]]


def test_a_reader_that_keeps_count_reads_each_record_once() -> None:
    store = MemoryStore()
    log = log_on(store)
    append(log, 1, 1, "1-a")
    first = read_commit_log(store, "job", "out")
    append(log, 2, 1, "1-b")
    assert [record.checkpoint for record in read_commit_log(store, "job", "out", after=len(first))] == [2]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04pickle",
        b"{}",
        b'{"version":9,"job":"job","sink":"out","checkpoint":1,"token":1,"highest_checkpoint":1,"highest_token":1,"files":[]}',
    ],
)
def test_what_is_no_record_of_this_log_is_an_error_with_a_remedy(data: bytes) -> None:
    """B4, B6: never skipped, never guessed."""
    store = MemoryStore()
    store.put("_commits/job/out/00000000000000000001.json", data)
    with pytest.raises(Corrupt, match=r"_commits/job/out/00000000000000000001\.json.*restore"):
        read_commit_log(store, "job", "out")
    with pytest.raises(Corrupt):
        append(log_on(store), 1, 1, "1-a")


def test_a_bit_that_is_read_wrongly_never_names_a_file_again() -> None:
    """Found by the simulation: a wrong name looks like a record that does not name the file."""
    store = MemoryStore()
    append(log_on(store), 1, 1, "1-a")
    key = "_commits/job/out/00000000000000000001.json"
    intact = store.get(key)
    for at in range(len(intact)):
        store.damage(key, intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(Corrupt):
            append(log_on(store), 2, 1, "1-a")
    assert store.keys() == (key,)


def test_a_gap_is_noticed() -> None:
    store = MemoryStore()
    log = log_on(store)
    for number in (1, 2, 3):
        append(log, number, 7, f"7-{number}")
    record = store.get("_commits/job/out/00000000000000000003.json")
    assert msgspec.json.decode(record)["files"][0]["name"] == "7-3"
    store.delete(["_commits/job/out/00000000000000000002.json"])
    assert logged(store) == [["7-1"]], "a reader sees what is whole"
