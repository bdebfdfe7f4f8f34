"""H4, B4: no bytes from network or storage are ever unpickled. Shown by a whole run without an unpickler, and by
pickles put in every place where the runtime reads something back."""

import base64
import hashlib
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from doctor import Bomb, Doctor
from small_job import NAME, run_small_job, visible

from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import Corrupt

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_UNPICKLER = """
    import os, sys, pickle, _pickle
    import pyarrow

    pyarrow.array([0])  # imports pandas, if it is there, which makes an unpickler of its own from the true one

    def refused(*arguments, **keywords):
        raise SystemError("something was unpickled")

    class Refused:
        def __init__(self, *arguments, **keywords):
            refused()

    def heard(event, arguments):
        if event == "pickle.find_class":
            refused()

    sys.addaudithook(heard)  # also where somebody kept an unpickler of his own
    for module in (pickle, _pickle):
        for name in ("loads", "load", "_loads", "_load"):
            if hasattr(module, name):
                setattr(module, name, refused)
        for name in ("Unpickler", "_Unpickler"):
            if hasattr(module, name):
                setattr(module, name, Refused)

    from pathlib import Path
    from barrier_runtime import Dataflow, JobFailed, JsonlSink, ValueState, count

    codec, folder = sys.argv[1], Path(sys.argv[2])

    class Counting:
        seen = ValueState(dict[str, int], codec=codec)

        def process(self, key, row, ctx):
            n = (self.seen.value or {"n": 0})["n"] + 1
            self.seen.value = {"n": n}
            yield {"key": key, "value": row["value"], "n": n}

    def run(enough):
        # Without an end: the rows go on until `enough` says that the job has come far enough.
        def look(row):
            if enough(row):
                raise RuntimeError("far enough")
            return row
        flow = Dataflow("counted")
        rows = flow.rate("numbers", 2_000, keys=20).key_by("key").process("counting", Counting).map(look, name="look")
        rows.key_by("key").aggregate("again", largest=count()).sink("out", JsonlSink(str(folder / "out")))
        try:
            flow.run_local(checkpoints=str(folder / "checkpoints"), checkpoint_interval=0.05)
        except JobFailed as error:
            if "far enough" not in str(error):
                raise
            return error.status

    def committed():
        records = folder / "out" / "_commits" / "counted" / "out"
        return len(os.listdir(records)) if records.exists() else 0

    run(lambda row: committed() >= 2)
    already = committed()
    first_of_key = {}
    status = run(lambda row: first_of_key.setdefault(row["key"], row["n"]) and committed() > already)
    print("restored", status.restored_checkpoint > 0, "with state", max(first_of_key.values()) > 1)
"""


def run_without_unpickler(codec: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_UNPICKLER), codec, str(folder)],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
def test_a_job_runs_fails_and_restores_though_nothing_can_be_unpickled(tmp_path: Path) -> None:
    """H4: source, shuffle, keyed state of both kinds, checkpoints, commits and restore."""
    done = run_without_unpickler("msgpack", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "restored True with state True"


@pytest.mark.slow
def test_the_trap_of_the_test_above_does_snap(tmp_path: Path) -> None:
    """H4: with the only unpickling codec, which a user has to request by name, the same program fails."""
    done = run_without_unpickler("pickle", tmp_path)
    assert done.returncode != 0
    assert "something was unpickled" in done.stderr


# ---------------------------------------------------------------- pickles in the store


@pytest.fixture
def stored(tmp_path: Path, ended_job: Callable[..., None]) -> Doctor:
    ended_job(tmp_path)
    return Doctor(tmp_path / "checkpoints", NAME)


def refused(folder: Path) -> str:
    """The error of a run that must not start; no row becomes visible and no planted code runs."""
    before = visible(folder)
    with pytest.raises(JobFailed) as error:
        run_small_job(folder)
    assert visible(folder) == before
    assert not (folder / "trace").exists()
    return str(error.value)


@pytest.mark.slow
def test_a_pickle_in_place_of_a_log_record_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B4"""
    stored.log[-1].write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    assert "is not readable" in refused(tmp_path)


def test_a_pickle_in_place_of_a_manifest_is_refused_also_when_its_hash_is_right(tmp_path: Path, stored: Doctor) -> None:
    """B4"""
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))
    good = stored.manifest_path().read_bytes()
    stored.manifest_path().write_bytes(bomb)
    said = refused(tmp_path)
    assert hashlib.sha256(bomb).hexdigest() in said
    assert hashlib.sha256(good).hexdigest() in said
    stored.replace_manifest(bomb)
    assert "is not readable" in refused(tmp_path)


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [
        ("numbers", "splits", "state of subtask 0: the progress of its splits in its snapshot is not readable"),
        ("count", "progress", "operator 'count': its progress in its snapshot is not readable"),
        ("out", "pending", "the set of pending transactions is not readable"),
    ],
)
def test_a_pickle_as_a_snapshots_value_is_refused(
    tmp_path: Path, stored: Doctor, operator: str, value: str, said: str
) -> None:
    """B4: positions of sources, progress of keyed operators, committables of sinks; with every hash right."""
    bomb = base64.b64encode(pickle.dumps(Bomb(tmp_path / "trace"))).decode()

    def change(manifest: dict) -> None:
        [snapshot] = [s for s in manifest["operators"] if (s["operator"], s["subtask"]) == (operator, 0)]
        assert value in snapshot["values"]
        snapshot["values"][value] = bomb

    stored.change_manifest(change)
    assert said in refused(tmp_path)


def test_a_pickle_as_a_splits_position_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B4: JSON inside JSON; a text that is a pickle in base64 is a text."""

    def change(manifest: dict) -> None:
        for snapshot in manifest["operators"]:
            if snapshot["operator"] == "numbers":
                position = base64.b64encode(pickle.dumps([1])).decode()
                split = {"rows": 1, "greatest_ms": 0, "finished": False, "position": position}
                progress = {"splits": {f"{snapshot['subtask']}-of-2": split}}
                snapshot["values"] = {"splits": base64.b64encode(msgspec.json.encode(progress)).decode()}

    stored.change_manifest(change)
    assert "in its snapshot is not readable" in refused(tmp_path)


def test_a_pickle_as_a_commit_record_is_refused_by_its_reader(tmp_path: Path, stored: Doctor) -> None:
    """B4"""
    records = sorted((tmp_path / "out" / "_commits").rglob("*.json"))
    records[0].write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    with pytest.raises(Corrupt, match="is not readable"):
        committed_files(str(tmp_path / "out"))
    assert not (tmp_path / "trace").exists()


def test_a_pickle_as_a_snapshot_file_is_refused_before_rocksdb_sees_it(tmp_path: Path, stored: Doctor) -> None:
    """B4, J2"""
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))

    def change(manifest: dict) -> None:
        snapshot = next(s for s in manifest["operators"] if s["keyed"])
        snapshot["keyed"]["files"][0] |= {"inline": base64.b64encode(bomb).decode(), "key": None, "offset": 0}

    stored.change_manifest(change)
    assert "is not what was written" in refused(tmp_path)


@pytest.mark.slow
def test_the_changed_stores_above_are_refused_for_what_was_changed(tmp_path: Path, stored: Doctor) -> None:
    """The doctor's own work leaves no trace: with unchanged content and hashes made anew, the job restores."""
    last = stored.last_complete().checkpoint
    stored.change_manifest(lambda manifest: None)
    assert run_small_job(tmp_path).status.restored_checkpoint == last
