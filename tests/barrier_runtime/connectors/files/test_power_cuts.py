"""A power cut under a file sink, a commit log, and a whole job: no decided row is lost or duplicated."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sink_harness import Job, numbers_in, numbers_in_commit_log

from barrier_runtime import Dataflow, JsonlSink, committed_files, count
from barrier_runtime.connectors.files.sink.commit_log import CommitLog, CommittedFile, read_commit_log
from barrier_runtime.connectors.files.sink.sink import JsonlSink as Sink
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.open import open_existing_store
from tests.power_cut import Disk, Names

ROWS = 300


def jsonl() -> Sink:
    return Sink("memory://target")


@pytest.mark.slow
@pytest.mark.parametrize("late_commits", [False, True])
@pytest.mark.parametrize("names", ["synced", "all"])
def test_a_cut_at_any_moment_of_a_sinks_life_loses_and_doubles_nothing(
    tmp_path: Path, late_commits: bool, names: Names
) -> None:
    """O12, T10: decisions are on another disk; the sink's staged files, visible files and log are on this disk."""
    cut = 0
    while (after := life_with_a_cut(tmp_path / f"{cut}", cut, late_commits, names)) is not None:
        assert numbers_in(after) == [0, 1, 2, 3], f"cut at {cut}"
        assert numbers_in_commit_log(after) == [0, 1, 2, 3], f"cut at {cut}"
        cut += 1
    assert cut > 30


def life_with_a_cut(folder: Path, cut: int, late_commits: bool, names: Names) -> LocalStore | None:
    """Returns the target after the run that follows a cut; None if the run has no such moment."""
    (folder / "disk").mkdir(parents=True)
    disk, job = Disk(folder / "disk"), Job(jsonl, rows=4, late_commits=late_commits)
    then: list[Job] = []

    def cut_off() -> None:
        disk.kept(folder / "kept", names)
        then.append(replace(job, decided=list(job.decided)))

    with disk.plugged_in():
        store = LocalStore(folder / "disk" / "out")
        disk.at_moment(cut, cut_off)
        job.run(store)
    if not then:
        return None
    after = LocalStore(folder / "kept" / "out")
    then[0].run(after)
    return after


def test_a_commit_record_that_was_only_read_back_is_made_durable_before_it_counts(tmp_path: Path) -> None:
    """O12: the first put created the name before a disk error. A repeat must not rely on the file it finds."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    files = [CommittedFile("part-1", "00", 1)]
    with disk.plugged_in():
        log = CommitLog(LocalStore(tmp_path / "disk"), "job", "out")
        disk.fail_sync = {disk.syncs + 2}
        with pytest.raises(Unavailable, match="nobody knows"):
            log.append(1, 1, files, lambda file: (1, 1))
        log.append(1, 1, files, lambda file: (1, 1))
        disk.kept(tmp_path / "kept")
    records = read_commit_log(LocalStore(tmp_path / "kept"), "job", "out")
    assert [record.files for record in records] == [tuple(files)]


def run(folder: Path) -> None:
    flow = Dataflow("cut")
    rows = flow.rate("numbers", 1_000, ROWS, keys=7)
    rows.key_by("key").aggregate("counts", n=count()).sink("out", JsonlSink(str(folder / "out")))
    flow.run_local(parallelism=2, checkpoints=str(folder / "checkpoints"), checkpoint_interval=0.05)


@pytest.mark.slow
def test_a_job_goes_on_from_what_a_cut_left_at_any_moment(tmp_path: Path) -> None:
    """O12, T10, R3: decision log, manifests, state, staged and visible files share a disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    disk, kept, passed = Disk(folder), [], 0

    def moment(what: str) -> None:
        nonlocal passed
        if passed % 37 == 0 and len(kept) < 16:
            kept.append(disk.kept(tmp_path / f"kept-{passed}"))
        passed += 1

    disk.moment = moment
    with disk.plugged_in():
        run(folder)
        kept.append(disk.kept(tmp_path / "kept-at-the-end"))
    expected = seen(folder)
    assert len(expected) == ROWS
    assert seen(kept[-1]) == expected, "a job that has ended has nothing that a cut could take"
    for each in kept:
        run(each)
        assert seen(each) == expected, each.name


def seen(folder: Path) -> list[tuple[object, ...]]:
    """Returns the rows of the commit log's files."""
    store = open_existing_store(str(folder / "out"))
    names = [name.rsplit("/", 1)[-1] for name in committed_files(str(folder / "out"))]
    rows = [json.loads(line) for name in names for line in store.get(name).splitlines()]
    return sorted((row["key"], row["n"]) for row in rows)
