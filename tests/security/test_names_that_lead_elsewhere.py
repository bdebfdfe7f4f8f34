"""Ids and stored names that lead out of where they belong: refused before a path, key or URL is built of them."""

import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from doctor import Doctor, files_of
from small_job import NAME, run_small_job, visible

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.file_committable import StagedFile, encode_committable
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.options import validated_spec
from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.wire.handshake import NONCE_BYTES, Hello
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.spark.task import local_root
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.ids import check_job_id, check_operator_name
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths, check_key

EVIL_IDS = {
    "empty": "",
    "parent": "..",
    "path": "../../etc/passwd",
    "absolute": "/etc/passwd",
    "encoded": "%2e%2e",
    "encoded twice": "%252f",
    "backslash": "..\\..",
    "nul": "a\0b",
    "line end": "flights\n",
    "very long": "x" * 100_000,
    "look-alike": "flіghts",  # noqa: RUF001 - a Cyrillic letter
    "full width": "ｆlights",  # noqa: RUF001
    "other digits": "٣",
    "space": "a b",
    "surrogate": "a\ud800",
    "url": "s3://other",
}
evil_ids = pytest.mark.parametrize("evil", EVIL_IDS.values(), ids=EVIL_IDS)


def spec(**changes: Any) -> JobSpec:
    from coordinator_world import spec as sound

    return sound(**changes)


# ---------------------------------------------------------------- ids


@evil_ids
def test_no_id_of_any_kind_may_be_a_path(evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4, B1, B2: job, run, operator and sink names, slot uuids and files, at every door."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    paths = Paths("flights")
    client = CoordinatorClient("http://127.0.0.1:9", "t")
    doors = [
        lambda: check_job_id(evil),
        lambda: check_operator_name(evil),
        lambda: Paths(evil),
        lambda: Dataflow(evil),
        lambda: validated_spec(spec(job=evil)),
        lambda: validated_spec(spec(run_id=evil)),
        lambda: JobOptions.from_keywords({"run_id": evil}),
        lambda: local_root(evil),
        lambda: paths.data_file(1, evil, "file"),
        lambda: paths.data_file(1, "slot", evil),
        lambda: paths.manifest(1, 1, evil),
        lambda: client.status(evil),
        lambda: client.stop(evil),
        lambda: client.checkpoints(evil),
    ]
    for door in doors:
        with pytest.raises(InvalidJob) as error:
            door()
        assert len(str(error.value)) < 500, "a refusal is not as long as what it refuses"
    assert [entry.name for entry in tmp_path.iterdir()] in ([], [f"barrier-runtime-{os.getuid()}"])


@evil_ids
def test_a_sink_or_source_may_not_be_named_so(evil: str) -> None:
    """G4: their names are parts of keys and folders."""
    for source, sink in ((evil, "out"), ("numbers", evil)):
        with pytest.raises(InvalidJob):
            run_with_names(source, sink)


def run_with_names(source: str, sink: str) -> None:
    flow = Dataflow("flights")
    flow.rate(source, 10, 1).sink(sink, CollectSink())
    flow.run_local()


@pytest.mark.parametrize("evil", [name for name in EVIL_IDS.values() if name != ""])
def test_a_handshake_under_such_a_job_or_run_finds_no_secret(evil: str) -> None:
    """G4, G7"""
    directory = JobDirectory(MemoryStore(), daemon_key=b"k", leader="a", host="h")
    server = ControlServer(directory, None)  # type: ignore[arg-type]  # never listens
    nonce = b"n" * NONCE_BYTES
    assert server.secret_of(Hello("barrier-runtime", 1, evil, "run", "control", b"", nonce)) is None
    assert server.secret_of(Hello("barrier-runtime", 1, "flights", evil, "control", b"", nonce)) is None
    assert server.secret_of(Hello("barrier-runtime", 1, "flights", "run", "control", b"", nonce)) is not None


@pytest.mark.parametrize(
    "key",
    ["", "/x", "x/", "a//b", "a/./b", "../x", "a/../../x", "a\\b", "a\0b", "a\nb", "x" * 1_025, "é" * 600, "a\ud800"],
)
def test_no_store_takes_a_key_that_is_no_key(key: str, tmp_path: Path) -> None:
    """B1: reading, writing, listing, publishing and deleting alike."""
    with pytest.raises(InvalidJob):
        check_key(key)
    for store in (LocalStore(tmp_path / "store"), MemoryStore()):
        for use in (
            lambda store=store: store.get(key),
            lambda store=store: store.put(key, b""),
            lambda store=store: store.put_if_absent(key, b""),
            lambda store=store: store.delete([key]),
            lambda store=store: store.publish("staged", key, "00"),
            lambda store=store: store.publish(key, "final", "00"),
        ):
            with pytest.raises(InvalidJob):
                use()


def test_a_link_inside_the_folder_leads_nowhere(tmp_path: Path) -> None:
    """B1: neither as a folder of a key nor as the key's last part."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("mine")
    store = LocalStore(tmp_path / "store")
    (tmp_path / "store" / "folder").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "file").symlink_to(tmp_path / "secret" / "file")
    for key in ("folder/file", "file"):
        with pytest.raises(InvalidJob):
            store.get(key)
    with pytest.raises(InvalidJob):
        store.put("folder/new", b"")
    assert list(store.list("")) == []


def test_a_checkpoint_id_with_too_many_digits_is_refused() -> None:
    """G4: Python refuses to parse such a number, by an unexpected exception."""
    for restore in ("9" * 5_000, "٣", "1.5", "-1", "../1"):
        with pytest.raises(InvalidJob, match="restore"):
            validated_spec(spec(restore=restore))
        with pytest.raises(InvalidJob, match="restore"):
            JobOptions.from_keywords({"restore": restore})


def test_a_submitter_that_would_write_its_own_log_lines_is_refused() -> None:
    """G4: logs and pages show the submitter unchanged."""
    for submitter in ("ann\n2026 INFO coordinator.audit: token root: PUT /jobs/x", "x" * 1_000, "\x1b[2J"):
        with pytest.raises(InvalidJob, match="submitter"):
            validated_spec(spec(submitter=submitter))


def test_url_and_key_look_alikes_are_told_apart_by_kind(tmp_path: Path) -> None:
    """B1: a key that is a URL cannot leave the place with which a store was opened."""
    store = open_store(str(tmp_path / "store"))
    store.put("file:/etc/passwd", b"only a name")
    assert (tmp_path / "store" / "file:" / "etc" / "passwd").read_bytes() == b"only a name"


# ---------------------------------------------------------------- manifests


@pytest.fixture
def stored(tmp_path: Path, ended_job: Callable[..., None]) -> Doctor:
    ended_job(tmp_path, keys=2_000, rows=4_000)
    return Doctor(tmp_path / "checkpoints", NAME)


def refused(folder: Path) -> JobFailed:
    before = visible(folder)
    with pytest.raises(JobFailed) as error:
        run_small_job(folder, keys=2_000, rows=4_000)
    assert visible(folder) == before
    return error.value


@pytest.mark.parametrize(
    "key",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "other/data/1/slot/file",
        f"{NAME}/data/../../other/data/1/slot/file",
        f"{NAME}/log/00000000000000000001.json",
        f"{NAME}/data/1/slot/file/deeper",
        f"{NAME}x/data/1/slot/file",
        f"{NAME}/data/٣/slot/file",
    ],
)
def test_a_manifest_that_names_what_is_not_its_jobs_own_is_refused_before_the_fence(
    tmp_path: Path, stored: Doctor, key: str
) -> None:
    """B1, J2: a manifest with correct hashes cannot make a slot read a foreign object."""

    def change(manifest: dict) -> None:
        files_of(manifest)[0] |= {"key": key, "inline": None}

    stored.change_manifest(change)
    records = len(stored.log)
    error = refused(tmp_path)
    assert f"in object {key!r}, which no snapshot of job {NAME} can be" in str(error)
    assert len(stored.log) == records, "a run that cannot start fences nobody"


@pytest.mark.parametrize(
    "name",
    [
        "../CURRENT",
        "sub/000001.sst",
        "/etc/passwd",
        "000001.sst\0",
        "rocksdict-config.json",
        "LOCK",
        "000007.log",
        "..",
        "",
    ],
)
def test_a_manifest_that_names_a_file_no_snapshot_has_is_refused(tmp_path: Path, stored: Doctor, name: str) -> None:
    """B1, J4: a name becomes a path in the slot's folder, and RocksDB's settings are ours alone."""
    stored.change_manifest(lambda manifest: files_of(manifest)[0].update(name=name))
    assert f"lists the file {name!r} of operator count" in str(refused(tmp_path))


@pytest.mark.parametrize("change", [{"key": None, "inline": None}, {"offset": -1}, {"size": -1}])
def test_a_manifest_with_a_file_that_is_nowhere_is_refused(tmp_path: Path, stored: Doctor, change: dict) -> None:
    """B1"""
    stored.change_manifest(lambda manifest: files_of(manifest)[0].update(change))
    assert "which no snapshot of job" in str(refused(tmp_path))


def test_the_manifest_of_another_job_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B1, J2: also if this job's log names the manifest with the correct hash."""
    stored.change_manifest(lambda manifest: manifest.update(job="other"))
    assert re.search(r"is of job other checkpoint \d+ generation \d+, the log says", str(refused(tmp_path)))


# ---------------------------------------------------------------- committables


def opened_sink(folder: Path) -> JsonlSink:
    sink = JsonlSink(str(folder / "out"))
    sink.open(SinkContext("flights", "out", 3, 0, 1, open_store, LocalStore(folder), "l", lambda: "0123456789abcdef"))
    return sink


GOOD_STAGED = "_staging/flights/out/2/0-0123abcd-1.jsonl"
GOOD_FINAL = "part-00000001-0-2-0123abcd-0.jsonl"


@pytest.mark.parametrize(
    ("staged", "final"),
    [
        (GOOD_STAGED, "../stolen.jsonl"),
        (GOOD_STAGED, "/etc/cron.d/x"),
        (GOOD_STAGED, "_commits/flights/out/00000000000000000001.json"),
        (GOOD_STAGED, "_staging/flights/out/9/0-0123abcd-1.jsonl"),
        (GOOD_STAGED, "other/" + GOOD_FINAL),
        (GOOD_STAGED, GOOD_FINAL + "\n"),
        (GOOD_STAGED, ""),
        ("_staging/other/out/2/0-0123abcd-1.jsonl", GOOD_FINAL),
        ("_staging/flights/other/2/0-0123abcd-1.jsonl", GOOD_FINAL),
        ("_staging/flights/out/2/../../../../x", GOOD_FINAL),
        ("part-00000001-0-1-0123abcd-0.jsonl", GOOD_FINAL),
        ("../out/" + GOOD_STAGED, GOOD_FINAL),
    ],
)
def test_a_committable_that_moves_or_deletes_something_else_is_refused(tmp_path: Path, staged: str, final: str) -> None:
    """B1: commit, global commit, abort and recovery do not act on such a committable."""
    sink = opened_sink(tmp_path)
    store = open_store(str(tmp_path / "out"))
    for key in (GOOD_STAGED, "part-00000001-0-1-0123abcd-0.jsonl", "_staging/other/out/2/0-0123abcd-1.jsonl"):
        store.put(key, b"{}\n")
    before = [info.key for info in store.list("")]
    sha256 = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"  # of those bytes
    evil = encode_committable((StagedFile(GOOD_STAGED, GOOD_FINAL, sha256, 1), StagedFile(staged, final, sha256, 1)))
    for use in (sink.commit, sink.abort, lambda bad: sink.recover([bad]), lambda bad: sink.commit_globally(1, [bad])):
        with pytest.raises(Corrupt, match="no names of this sink: nothing was committed or deleted"):
            use(evil)
    assert [info.key for info in store.list("")] == before
    sink.commit(encode_committable((StagedFile(GOOD_STAGED, GOOD_FINAL, sha256, 1),)))
    assert store.get(GOOD_FINAL) == b"{}\n"


@pytest.mark.slow
def test_a_restored_committable_that_leaves_the_sinks_folder_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B1: likewise, through a manifest with correct hashes."""

    def change(manifest: dict) -> None:
        snapshot = next(s for s in manifest["operators"] if s["operator"] == "out" and s["subtask"] == 0)
        pending = msgspec.json.decode(base64.b64decode(snapshot["values"]["pending"]))
        evil = encode_committable((StagedFile(f"_staging/{NAME}/out/1/0-0123abcd-1.jsonl", "../../../x", "00", 1),))
        pending["entries"] = [[pending["checkpoint"], 0, base64.b64encode(evil).decode()]]
        snapshot["values"]["pending"] = base64.b64encode(json.dumps(pending).encode()).decode()

    stored.change_manifest(change)
    stored.without_its_end()
    with pytest.raises(JobFailed, match="no names of this sink"):
        run_small_job(tmp_path, keys=2_000, rows=4_000)
    assert not (tmp_path.parent / "x").exists()
