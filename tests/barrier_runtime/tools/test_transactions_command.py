"""`barrier-runtime transactions` from an operator's view: a job was killed between a decision and the commit."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from command_line import COMMAND, Done, run_here

from barrier_runtime.api.dataflow import Dataflow, preview_of_restore
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.files.sink.sink import JsonlSink, ParquetSink
from barrier_runtime.connectors.registry import SINKS
from barrier_runtime.connectors.sink_bases.file_committable import StagedFile, encode_committable
from barrier_runtime.coordinator.log.records import Fence, decode_record
from barrier_runtime.runtime.sinks.pending_set import (
    PENDING_VALUE,
    decode_pending,
    decode_sink,
    describe_sink,
    make_sink,
)
from barrier_runtime.runtime.sinks.pending_transactions import read_pending, rows_told
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_existing_store, open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.tools.transactions import transactions
from tests.killed_after_decisions import deciding
from tests.newest_checkpoint import newest_manifest

pytestmark = pytest.mark.slow

ROWS = 10_000
APP = """
    import os
    import time
    from pathlib import Path

    from barrier_runtime import Dataflow, JsonlSink

    HERE = Path(__file__).parent


    class Stuck(JsonlSink):
        \"\"\"Never gets to its first commit, until it is told that it may.\"\"\"

        def commit(self, committable):
            while not (HERE / "may-commit").exists():
                time.sleep(0.05)
            super().commit(committable)


    class Own(Stuck):
        kind = ""


    def make_own():
        return JsonlSink(str(HERE / "out"))


    flow = Dataflow("stuck")
    rate = 100_000 if (HERE / "may-commit").exists() else {rate}
    flow.rate("numbers", rate, {rows}).sink("out", {sink}(str(HERE / "out")))
"""


@dataclass(frozen=True)
class Killed:
    """A job killed with several decided checkpoints and no commit."""

    folder: Path
    interval: float = 0.1

    @property
    def url(self) -> str:
        return str(self.folder / "checkpoints")

    @property
    def out(self) -> str:
        return str(self.folder / "out")

    def visible(self) -> list[int]:
        """Returns the values in the order of the commit log."""
        store = open_store(self.out)
        names = [file.name for record in read_commit_log(store, "stuck", "out") for file in record.files]
        return [json.loads(line)["value"] for name in names for line in store.get(name).splitlines()]

    def staged(self) -> list[str]:
        return [info.key for info in open_store(self.out).list("_staging/") if not info.key.endswith(".probe")]

    def fences(self) -> list[Fence]:
        store = open_existing_store(self.url)
        records = [decode_record(info.key, store.get(info.key)) for info in store.list("stuck/log/")]
        return sorted((each for each in records if isinstance(each, Fence)), key=lambda fence: fence.token)

    def damage(self) -> list[object]:
        (job,) = json.loads(run_here("fsck", self.url, "--format", "json").stdout)["jobs"]
        return list(job["damage"])

    def settle(self, *arguments: str) -> Done:
        return run_here("transactions", "stuck", *arguments, "--checkpoints", self.url)

    def run_on(self, *arguments: str) -> Done:
        """Runs the same program to its end, with working commits, in this process."""
        (self.folder / "may-commit").touch()
        return run_here(*self.command(*arguments)[1:])

    def command(self, *arguments: str) -> list[str]:
        options = ["--local", "--parallelism", "1", "--interval", str(self.interval)]
        options += [
            "--checkpoints",
            self.url,
            "--max-commits-behind",
            "1000",
        ]  # decisions go on while nothing is committed
        return [*COMMAND, "run", f"{self.folder / 'app.py'}:flow", *options, *arguments]


@contextmanager
def running(job: Killed, sink: str = "Stuck", rate: int = 500, records: int = 5) -> Iterator[None]:
    """Runs the job's process until some checkpoints are decided, and kills the process at the end. `records`: number
    of records in the decision log.
    """
    job.folder.mkdir(exist_ok=True)
    (job.folder / "app.py").write_text(textwrap.dedent(APP.format(rows=ROWS, rate=rate, sink=sink)))
    with deciding(job.command(), Path(job.url) / "stuck" / "log", records=records, patience_s=90):
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    job = Killed(tmp_path_factory.mktemp("original") / "job")
    with running(job):
        pass
    return job


@pytest.fixture
def killed(original: Killed, tmp_path: Path) -> Iterator[Killed]:
    """Yields the killed job under the original path, which the snapshots name; restores the folder afterwards."""
    kept = tmp_path / "kept"
    shutil.copytree(original.folder, kept)
    yield original
    shutil.rmtree(original.folder)
    shutil.copytree(kept, original.folder)


def test_list_shows_what_is_decided_and_changes_nothing(killed: Killed) -> None:
    before = sorted(path for path in killed.folder.rglob("*"))
    done = killed.settle("list", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    listed = report["transactions"]
    assert (report["job"], report["last_run"]) == ("stuck", None)
    assert len(listed) >= 2
    assert {(each["sink"], each["kind"], each["subtask"]) for each in listed} == {("out", "jsonl", 0)}
    assert {each["state"] for each in listed} == {"decided, not known to be visible"}
    assert [each["checkpoint"] for each in listed] == sorted(each["checkpoint"] for each in listed)
    assert sum(each["rows"] for each in listed) > 0
    assert sorted(path for path in killed.folder.rglob("*")) == before
    text = killed.settle("list").stdout
    assert f"sink out (jsonl): {len(listed)} transactions decided, not known to be visible" in text
    assert f"checkpoint {listed[0]['checkpoint']}, subtask 0: {listed[0]['rows']:,} rows" in text


def test_finished_job_lists_no_transaction_though_its_last_manifest_names_some(
    tmp_path: Path,
) -> None:
    """The manifest of the last checkpoint is written before the commits, and no manifest follows."""
    flow = Dataflow("ended")
    flow.rate("numbers", 1_000_000, 1_000).sink("out", JsonlSink(str(tmp_path / "out")))
    flow.run_local(checkpoints=str(tmp_path / "checkpoints"))
    store = open_existing_store(str(tmp_path / "checkpoints"))
    stored = [each.values.get(PENDING_VALUE) for each in newest_manifest(store, "ended").operators]
    assert any(decode_pending(value, "out") for value in stored if value is not None)
    done = run_here("transactions", "ended", "list", "--checkpoints", str(tmp_path / "checkpoints"), "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(done.stdout)[name] for name in ("last_run", "transactions")] == ["finished", []]


@pytest.mark.parametrize("how", ["checkpoint", "now"])
def test_a_stopped_job_is_known_to_have_been_stopped(tmp_path: Path, how: Literal["checkpoint", "now"]) -> None:
    """A stop with a checkpoint ends when all rows are visible, and the log says so."""
    flow = Dataflow("stopped")
    flow.rate("numbers", 1_000).sink("out", JsonlSink(str(tmp_path / "out")))
    at = {"checkpoints": str(tmp_path / "checkpoints"), "parallelism": 1}
    job = flow.start_local(**at, checkpoint_interval=0.05)
    while job.status().checkpoints.completed < 2:
        assert not job.done, job
    job.stop(how)
    done = run_here("transactions", "stopped", "list", "--checkpoints", at["checkpoints"], "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["last_run"] == "cancelled"
    if how == "checkpoint":
        assert report["transactions"] == []
        page, starts = preview_of_restore(flow, at, local=True)
        assert starts, page
        assert "transactions to commit: none" in page
    assert json.loads(run_here("fsck", at["checkpoints"], "--format", "json").stdout)["jobs"][0]["damage"] == []


def test_commit_settles_and_the_job_goes_on_with_nothing_lost_or_doubled(killed: Killed) -> None:
    """T3, T6, T11: another process commits twice, and the restarted job commits once more."""
    wanted = sum(each["rows"] for each in json.loads(killed.settle("list", "--format", "json").stdout)["transactions"])
    assert killed.visible() == []
    for _ in range(2):
        done = killed.settle("commit")
        assert (done.returncode, done.stderr) == (0, "")
        assert "sink out: committed checkpoint" in done.stdout
        assert killed.visible() == list(range(wanted))
    done = killed.run_on()
    assert done.returncode == 0, done.stderr
    assert killed.visible() == list(range(ROWS))


def test_a_pending_set_too_large_for_the_manifest_is_listed_and_committed(tmp_path: Path) -> None:
    """T11: a set above 4 KiB is a separate object, as after some hours with an unreachable target."""
    job = Killed(tmp_path / "job", interval=0.01)
    with running(job, rate=2_000, records=200):
        pass
    store = open_existing_store(job.url)
    (stored,) = [each for each in newest_manifest(store, "stuck").operators if each.operator == "out"]
    assert stored.objects[PENDING_VALUE].size > 4_096
    listed = json.loads(job.settle("list", "--format", "json").stdout)["transactions"]
    assert len(listed) >= 100
    wanted = sum(each["rows"] for each in listed)
    for _ in range(2):
        done = job.settle("commit")
        assert (done.returncode, done.stderr) == (0, "")
        assert job.visible() == list(range(wanted))
    assert job.damage() == []


def test_abort_drops_what_was_never_decided_and_keeps_what_was(killed: Killed) -> None:
    """T8, T9: as the next generation would; nothing refers to the killed generation's undecided rows any more."""
    wanted = sum(each["rows"] for each in json.loads(killed.settle("list", "--format", "json").stdout)["transactions"])
    done = killed.settle("abort")
    assert (done.returncode, done.stderr) == (0, "")
    assert "what was not decided is dropped" in done.stdout
    assert killed.visible() == list(range(wanted))
    assert killed.staged() == []
    assert json.loads(killed.settle("list", "--format", "json").stdout)["last_run"] == "cancelled"
    assert killed.damage() == []
    assert killed.run_on().returncode == 0
    assert killed.visible() == list(range(ROWS))
    assert killed.damage() == []


def test_abort_takes_a_generation_of_its_own_before_it_drops_anything(killed: Killed) -> None:
    """Z1: otherwise a job started at the same moment has the token under which that job's rows are dropped."""
    head = read_pending(open_existing_store(killed.url), "stuck").head
    assert killed.settle("abort").returncode == 0
    assert killed.run_on().returncode == 0
    settled, successor = killed.fences()[-2:]
    assert (settled.token, settled.spec.run_id[:8]) == (head + 1, "settled-")
    assert successor.token > settled.token
    assert successor.restored_checkpoint == settled.restored_checkpoint > 0


def test_an_accepted_loss_never_passes_for_success(killed: Killed) -> None:
    """T6: the restart from that checkpoint fails, and the remedies named in the error work."""
    done = killed.settle("abort", "--accept-loss")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sink out: dropped checkpoint" in done.stdout
    assert "is lost" in done.stdout
    assert "--restore none --allow-replay" in done.stdout
    assert killed.visible() == []
    refused = killed.settle("commit")
    assert refused.returncode == 1
    assert "a decided file" in refused.stderr
    again = killed.run_on()
    assert again.returncode != 0
    assert "a decided file" in again.stdout + again.stderr
    assert killed.visible() == []
    fresh = killed.run_on("--restore", "none", "--allow-replay")
    assert fresh.returncode == 0, fresh.stderr
    assert killed.visible() == list(range(ROWS))


def test_nothing_is_settled_while_the_job_runs(tmp_path: Path) -> None:
    job = Killed(tmp_path / "job")
    with running(job, sink="JsonlSink", rate=10):  # so that checkpoints go on to the end of the test
        assert job.settle("list").returncode == 0
        done = job.settle("commit")
        assert done.returncode == 2
        assert "job stuck runs, led by a coordinator" in done.stderr


def test_a_sink_of_ones_own_is_made_as_told(tmp_path: Path) -> None:
    job = Killed(tmp_path / "job")
    with running(job, sink="Own"):
        pass
    done = job.settle("commit")
    assert done.returncode == 1
    assert (
        "sink 'out' is a Own, which is none of ours: say how to make one with --sink out=file.py:factory" in done.stderr
    )
    done = job.settle("commit", "--sink", f"out={job.folder / 'app.py'}:make_own")
    assert done.returncode == 0, done.stderr
    assert job.visible()


def test_settings_can_be_given_in_place_of_what_the_snapshot_says(killed: Killed, tmp_path: Path) -> None:
    """Needed when the target was moved."""
    moved = tmp_path / "moved"
    shutil.move(killed.out, moved)
    done = killed.settle("commit", "--set", f"out.url={moved}")
    assert done.returncode == 0, done.stderr
    assert len(read_commit_log(open_store(str(moved)), "stuck", "out")) == 1
    assert not Path(killed.out).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["look"], "use list, commit or abort"),
        (["commit", "--accept-loss"], "--accept-loss belongs to abort"),
        (["list", "--format", "xml"], "use text or json"),
        (["commit", "--set", "url=x"], "write sink.key=value"),
        (["commit", "--set", "other.url=x"], "has no sink other in its last checkpoint; it has: out"),
        (["commit", "--sink", "out"], "write name=file.py:factory"),
        (["commit", "--sink", "out=nowhere.py:make"], "there is no file 'nowhere.py'"),
    ],
)
def test_what_is_given_wrongly_is_refused_with_the_remedy(
    killed: Killed, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    with pytest.raises(InvalidJob) as refused:
        transactions(
            "stuck",
            arguments[0],
            killed.url,
            sinks=[options["--sink"]] if "--sink" in options else [],
            settings=[options["--set"]] if "--set" in options else [],
            accept_loss="--accept-loss" in arguments,
            form=options.get("--format", "text"),
        )
    assert said in str(refused.value)


def test_a_job_that_is_not_there_is_named(killed: Killed) -> None:
    done = killed.settle("list")
    assert done.returncode == 0
    with pytest.raises(InvalidJob, match="there is no job other"):
        transactions("other", "list", killed.url)


def test_a_setting_that_the_sink_does_not_take_is_named(killed: Killed) -> None:
    done = killed.settle("commit", "--set", "out.colour=1")
    assert done.returncode == 1
    assert "a jsonl sink cannot be made of the settings colour" in done.stderr


def test_pending_transactions_are_read_with_the_generation_and_lineage_of_the_job(killed: Killed) -> None:
    pending = read_pending(open_existing_store(killed.url), "stuck")
    assert (pending.token, pending.ended) == (1, "")
    assert pending.lineage
    assert pending.head >= 4
    assert Paths("stuck").log_record(pending.head)


# ---------------------------------------------------------------- kinds


def test_every_kind_is_a_sink_that_says_its_own_name() -> None:
    import importlib

    for kind, sink in SINKS.items():
        assert getattr(importlib.import_module(sink.module), sink.name).kind == kind


def test_a_sink_is_made_again_from_what_a_snapshot_says() -> None:
    sink = ParquetSink("s3://bucket/folder", max_bytes_in_memory=5)
    value = decode_sink(describe_sink(sink, "here"), "here")
    made = make_sink(value.kind, value.settings)
    assert isinstance(made, ParquetSink)
    assert made.settings() == sink.settings()
    assert value.global_committer


def test_a_folder_is_named_by_its_whole_path() -> None:
    assert ParquetSink("out").settings()["url"] == str(Path.cwd() / "out")


def test_no_other_module_is_imported_whatever_a_snapshot_says() -> None:
    with pytest.raises(InvalidJob, match="is not a kind of sink"):
        make_sink("os:system", {})


def test_settings_that_are_no_json_are_refused_when_the_sink_opens() -> None:
    class Odd(ParquetSink):
        def settings(self) -> dict[str, Any]:
            return {"url": object()}

    with pytest.raises(InvalidJob, match=r"settings\(\) of Odd must be a dict that is JSON"):
        describe_sink(Odd("out"), "here")


def test_rows_are_counted_where_a_committable_tells() -> None:
    assert rows_told(encode_committable((StagedFile("a", "b", "c", 3), StagedFile("d", "e", "f", 4)))) == 7
    assert rows_told(b'{"rows": 5}') == 5
    for silent in (b"", b"[1]", b"{}", b"\xff", b'{"rows": "many"}', b"3"):
        assert rows_told(silent) is None
