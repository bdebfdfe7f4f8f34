"""File sinks that stage by multipart upload, on moto's S3: crashed at every request, and answered wrongly."""

import copy
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse, HeadersDict
from sink_harness import (
    SCHEMA,
    CrashingStore,
    Job,
    Subtask,
    crashed_everywhere,
    numbers_in,
    numbers_in_commit_log,
    staged_in,
    visible_in,
)

from barrier_runtime.connectors.files.sink.sink import CsvSink, FileSink, JsonlSink, ParquetSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.file_committable import Sweep, decode_committable, sink_tag
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store import multipart
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.multipart import MultipartUploads
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.by_boto3 import S3Store

T = TypeVar("T")
MakeStore: TypeAlias = Callable[[], S3Store]
CHANGING = ("begin an upload", "upload a part", "complete", "abort")


def jsonl() -> JsonlSink:
    return JsonlSink("s3://bucket/target", staging="multipart")


@pytest.fixture
def make_store(s3_url: Callable[[str], str]) -> MakeStore:
    """Each call gives an empty place of its own, asked impatiently."""
    made = iter(range(1_000_000))

    def make() -> S3Store:
        store = open_store(s3_url(f"target-{next(made)}") + "&client=boto3")
        assert isinstance(store, S3Store)
        store._budget = RetryBudget(attempts=2, first_wait_s=0.001, longest_wait_s=0.001)
        return store

    return make


@pytest.fixture
def make_place(make_store: MakeStore) -> MakeStore:
    """As `make_store`, all asked by one client: to make one takes as long as ten requests."""
    first, made = make_store(), iter(range(1_000_000))

    def make() -> S3Store:
        store = copy.copy(first)
        store._prefix = f"{first._prefix}{next(made)}/"
        return store

    return make


class CrashingS3(CrashingStore):
    """Crashes also before and after the requests of uploads."""

    def __init__(self, store: S3Store, crash_at: int | None = None) -> None:
        super().__init__(store, crash_at)
        self._s3 = store

    def multipart(self) -> MultipartUploads:
        return MultipartUploads(self)

    def request(self, operation: str, key: str, send: Callable[[Any, str, str], T]) -> T:
        return self._around(operation, lambda: self._s3.request(operation, key, send))

    def retrying(self, operation: str, key: str, send: Callable[[Any, str, str], T]) -> T:
        return self._around(operation, lambda: self._s3.retrying(operation, key, send))

    def _around(self, operation: str, call: Callable[[], T]) -> T:
        if operation not in CHANGING:
            return call()
        self._moment()
        answer = call()
        self._moment()
        return answer


class Answer(io.BytesIO):
    """A body as botocore reads it."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def uploads_in(store: S3Store) -> list[str]:
    return [key for key, _ in store.multipart().list("")]


def opened(
    sink: FileSink, store: Any, token: int = 1, job: str = "job", job_store: ObjectStore | None = None
) -> FileSink:
    sink.open(SinkContext(job, "out", token, 0, 1, lambda url: store, job_store or store, "lineage"))
    return sink


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA)


def pre_committed(sink: FileSink, checkpoint: int, *numbers: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, rows(*numbers))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


# ---------------------------------------------------------------- crashes


@pytest.mark.slow
def test_a_crash_at_any_request_loses_and_doubles_nothing_and_leaves_no_upload(make_place: MakeStore) -> None:
    """T3, T10"""
    assert crashed_everywhere(make_place, jsonl, CrashingS3, uploads_in, late_commits=True) >= 12


@pytest.mark.parametrize(
    ("request_name", "applied", "times"),
    [
        ("UploadPart", True, 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (  # the third of three answers is that which the client's repetition of the request gets over
                ("UploadPart", False, 3),
                ("CreateMultipartUpload", False, 3),
                ("CreateMultipartUpload", True, 3),
                ("CompleteMultipartUpload", False, 3),
                ("CompleteMultipartUpload", True, 3),
                ("CompleteMultipartUpload", True, 1),
                ("ListMultipartUploads", False, 3),
            )
        ),
    ],
)
def test_an_answer_that_never_comes_only_delays(
    make_store: MakeStore, request_name: str, applied: bool, times: int
) -> None:
    """T4, T10: whether the request was carried out or not."""
    store = make_store()
    left = times

    def lose(**_: Any) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            raise ConnectionError("the answer was lost")

    event = f"{'after-call' if applied else 'before-call'}.s3.{request_name}"
    store._client.meta.events.register(event, lose)
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    snapshot = subtask.barrier(1)
    for _ in range(3):
        try:
            snapshot()
            break
        except Unavailable:
            continue
    subtask.complete(1)
    subtask.write([2])
    subtask.barrier(2)()
    subtask.complete(2)
    for _ in range(4):
        subtask.pass_time()
    assert numbers_in(store) == [1, 2]
    assert numbers_in_commit_log(store) == [1, 2]
    assert subtask.reports.committed_checkpoints[-1] == 2
    left = 0
    Subtask(jsonl, store, token=2)
    assert uploads_in(store) == []
    assert staged_in(store) == []


def test_a_lost_answer_to_the_begin_of_an_upload_leaves_one_upload_not_two(make_store: MakeStore) -> None:
    store = make_store()
    lost = iter([True])

    def lose(**_: Any) -> None:
        if next(lost, False):
            raise ConnectionError("the answer was lost")

    store._client.meta.events.register("after-call.s3.CreateMultipartUpload", lose)
    sink = opened(jsonl(), store)
    committable = pre_committed(sink, 1, 7)
    assert len(uploads_in(store)) == 1
    sink.commit(committable)
    assert numbers_in(store) == [7]
    assert uploads_in(store) == []


@pytest.mark.slow
def test_parts_that_cannot_be_sent_leave_no_upload_and_keep_the_rows(make_store: MakeStore) -> None:
    store = make_store()
    failing = True

    def fail(**_: Any) -> None:
        if failing:
            raise ConnectionError("no answer")

    store._client.meta.events.register("before-call.s3.UploadPart", fail)
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    snapshot = subtask.barrier(1)
    with pytest.raises(Unavailable, match="gave up after 2 attempts"):
        snapshot()
    assert uploads_in(store) == []
    failing = False
    snapshot()
    subtask.complete(1)
    assert numbers_in(store) == [1]


# ---------------------------------------------------------------- who may complete or abort what


def test_a_zombie_and_its_successor_complete_the_same_upload_once(make_store: MakeStore) -> None:
    """T6, T12, Z11: the zombie's request arrives between the successor's and its answer, or long after."""
    store = make_store()
    zombie = opened(jsonl(), store)
    committable = pre_committed(zombie, 1, 1, 2)
    successor_store = make_store()
    successor_store._prefix = store._prefix
    overtaken = iter([True])

    def overtake(**_: Any) -> None:
        if next(overtaken, False):
            zombie.commit(committable)

    successor_store._client.meta.events.register("before-call.s3.CompleteMultipartUpload", overtake)
    successor = opened(jsonl(), successor_store, token=2)
    successor.recover([committable])
    zombie.commit(committable)
    successor.abort(committable)
    assert numbers_in(store) == [1, 2]
    assert uploads_in(store) == []


@pytest.mark.slow
def test_commit_and_abort_may_be_repeated_and_commit_after_abort_is_an_error(make_store: MakeStore) -> None:
    """T6"""
    store = make_store()
    sink = opened(jsonl(), store)
    for finish, checkpoint in ((sink.commit, 1), (sink.abort, 2)):
        committable = pre_committed(sink, checkpoint, checkpoint)
        finish(committable)
        finish(committable)
    assert numbers_in(store) == [1]
    file = decode_committable(committable, "here").files[0]
    assert file.upload is not None
    for look in range(1, 8):
        with pytest.raises(Unavailable, match=rf"look {look} of 8\): another process may be completing it"):
            sink.commit(committable)
    with pytest.raises(Corrupt) as caught:
        sink.commit(committable)
    for named in (file.final, file.sha256, file.upload.id, "job 'job', sink 'out', subtask 0", "Put the file back"):
        assert named in str(caught.value)


def test_a_final_file_with_other_content_is_never_overwritten(make_store: MakeStore) -> None:
    store = make_store()
    sink = opened(jsonl(), store)
    committable = pre_committed(sink, 1, 1)
    final = decode_committable(committable, "here").files[0].final
    store.put(final, b'{"n":99}\n')
    with pytest.raises(Corrupt, match="other content"):
        opened(jsonl(), store, token=2).recover([committable])
    assert numbers_in(store) == [99]


def test_a_file_that_a_person_put_back_counts_as_committed(make_store: MakeStore) -> None:
    store = make_store()
    sink = opened(jsonl(), store)
    committable = pre_committed(sink, 1, 1)
    sink.abort(committable)
    store.put(decode_committable(committable, "here").files[0].final, b'{"n":1}\n')
    sink.commit(committable)
    assert numbers_in(store) == [1]


def test_only_own_uploads_of_older_tokens_and_own_subtasks_are_leftovers() -> None:
    """T9"""
    sink, log = sink_tag("job", "out"), "a" * 16
    sweep = Sweep(8, 1, 2, sink + log, frozenset({sink + "0123abcd"}))
    assert sweep.takes_upload(f"part-00000012-3-7-{sink}{log}00aa11bb-2.parquet")
    assert not sweep.takes_upload(f"part-00000012-3-7-{sink_tag('other', 'out')}{log}00aa11bb-2.parquet"), (
        "a stranger's"
    )
    assert not sweep.takes_upload(f"part-00000012-3-7-{sink}{'b' * 16}00aa11bb-2.parquet"), "another log's"
    assert not sweep.takes_upload(f"part-00000012-3-8-{sink}{log}00aa11bb-2.parquet"), "our own generation"
    assert not sweep.takes_upload(f"part-00000012-3-9-{sink}{log}00aa11bb-2.parquet"), "we are the zombie"
    assert not sweep.takes_upload(f"part-00000012-2-7-{sink}{log}00aa11bb-2.parquet"), "another subtask's share"
    assert not sweep.takes_upload(f"part-00000012-3-7-{sink}00aa11bb-2.parquet"), "of which log, nobody knows"
    assert sweep.takes_upload(f"part-00000012-3-7-{sink}0123abcd-2.parquet"), "a committable of ours has the same"
    assert not sweep.takes_upload("part-00000012-3-7-00aa11bb-2.parquet"), "whose, nobody knows"
    assert not sweep.takes_upload("notes.txt")


def test_a_job_of_the_same_name_with_other_checkpoints_leaves_the_uploads_of_another_one(make_store: MakeStore) -> None:
    """T9, T14"""
    store = make_store()
    production, staging = MemoryStore("production"), MemoryStore("staging")
    decided = pre_committed(opened(jsonl(), store, token=3, job_store=production), 7, 1)
    opened(jsonl(), store, token=9, job_store=staging).recover([])
    opened(jsonl(), store, token=4, job_store=production).recover([decided])
    assert numbers_in(store) == [1]
    assert uploads_in(store) == []


def test_what_was_never_decided_is_aborted_by_the_successor_and_strangers_are_left_alone(make_store: MakeStore) -> None:
    """T9, T15: four undecided transactions of ours, one of another job in the same folder."""
    store = make_store()
    before = opened(jsonl(), store)
    decided = pre_committed(before, 1, 1)
    for checkpoint in range(2, 5):
        pre_committed(before, checkpoint, checkpoint)
    stranger = pre_committed(opened(jsonl(), store, job="stranger"), 1, 50)
    zombie_of_the_future = pre_committed(opened(jsonl(), store, token=9), 9, 60)
    assert len(uploads_in(store)) == 6
    opened(jsonl(), store, token=2).recover([decided])
    kept = {decode_committable(each, "here").files[0].final for each in (stranger, zombie_of_the_future)}
    assert set(uploads_in(store)) == kept
    assert numbers_in(store) == [1]


@pytest.mark.slow
def test_leftovers_of_three_subtasks_are_aborted_by_one(make_store: MakeStore) -> None:
    """T8"""
    store = make_store()
    three = [Subtask(jsonl, store, 1, subtask=s, parallelism=3) for s in range(3)]
    for s, subtask in enumerate(three):
        subtask.write([s])
    decided = tuple(subtask.barrier(1)() for subtask in three)
    for s, subtask in enumerate(three):
        subtask.write([100 + s])
        subtask.barrier(2)()
    Subtask(jsonl, store, 2, restored=decided)
    assert sorted(numbers_in(store)) == [0, 1, 2]
    assert uploads_in(store) == []


@pytest.mark.slow
def test_a_job_may_change_its_staging_between_two_starts(make_store: MakeStore) -> None:
    store = make_store()
    for number, (before, after) in enumerate((("object", "multipart"), ("multipart", "object"))):
        first = opened(JsonlSink("s3://bucket/target", staging=before), store, token=2 * number + 1)  # type: ignore[arg-type]
        committable = pre_committed(first, number + 1, number)
        second = opened(JsonlSink("s3://bucket/target", staging=after), store, token=2 * number + 2)  # type: ignore[arg-type]
        second.recover([committable])
    assert numbers_in(store) == [0, 1]
    assert uploads_in(store) == []
    assert staged_in(store) == []


# ---------------------------------------------------------------- large transactions


@pytest.mark.slow
def test_a_large_transaction_is_uploaded_early_as_several_files_in_the_order_of_their_rows(
    make_store: MakeStore,
) -> None:
    store = make_store()

    def make() -> JsonlSink:
        return JsonlSink("s3://bucket/target", max_bytes_in_memory=50_000, staging="multipart")

    first = Subtask(make, store)
    for start in range(0, 1_000, 10):
        first.write(range(start, start + 10))
    first.snapshot_executor.run()
    assert len(uploads_in(store)) == 4, "before any barrier"
    assert visible_in(store) == []
    decided = first.barrier(7)()
    second = Subtask(make, store, token=2, restored=(decided,))
    for start in range(1_000, 2_000, 10):
        second.write(range(start, start + 10))
    second.snapshot_executor.run()
    second.barrier(8)()
    second.complete(8)
    assert numbers_in(store) == numbers_in_commit_log(store) == list(range(2_000)), "also by name"
    assert uploads_in(store) == []


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_PART_BYTES", 5 << 20)


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_travels_in_parts_and_is_byte_identical(make_store: MakeStore) -> None:
    """S12"""
    store = make_store()
    data = bytes(range(256)) * 50_000
    uploads = store.multipart()
    upload = uploads.upload("big", data)
    assert len(upload.parts) == 3
    uploads.complete("big", upload, hashlib.sha256(data).hexdigest(), len(data))
    uploads.complete("big", upload, hashlib.sha256(data).hexdigest(), len(data))
    assert store.get("big") == data


@pytest.mark.slow
@pytest.mark.parametrize("sink", [ParquetSink, JsonlSink, CsvSink])
def test_each_format_keeps_every_row(sink: type[FileSink], make_store: MakeStore) -> None:
    store = make_store()
    Job(lambda: sink("s3://bucket/target", staging="multipart"), rows=7, rows_per_checkpoint=3).run(store)
    assert numbers_in(store) == list(range(7))


# ---------------------------------------------------------------- what cannot be


@pytest.mark.slow
def test_a_bucket_that_aborts_old_uploads_is_refused_with_the_name_of_the_rule(make_store: MakeStore) -> None:
    """A decided upload must outlive any outage, so a rule that reaches our files is no place for it."""
    store = make_store()
    place = store._prefix

    def with_rules(*rules: dict[str, Any]) -> None:
        abort = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}, "Status": "Enabled"}
        store._client.put_bucket_lifecycle_configuration(
            Bucket=store._bucket, LifecycleConfiguration={"Rules": [{**abort, **rule} for rule in rules]}
        )

    with_rules({"ID": "logs", "Filter": {"Prefix": "logs/"}}, {"ID": "off", "Filter": {}, "Status": "Disabled"})
    opened(jsonl(), store)
    for reaches in ("", place, place + "part-0000", place[:3]):
        with_rules({"ID": "clean_up-up", "Filter": {"Prefix": reaches}})
        with pytest.raises(InvalidJob, match=r"rule 'clean_up-up' .* after 7 days.*Use staging='object'"):
            opened(jsonl(), store)
        opened(JsonlSink("s3://bucket/target"), store)


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (403, {}, r"is not allowed \(AccessDenied\).*also: s3:GetLifecycleConfiguration"),
        (200, {"Server": "MinIO"}, r"MinIO aborts uploads after api\.stale_uploads_expiry.*Use staging='object'"),
    ],
)
def test_a_store_whose_rules_cannot_be_known_is_refused(
    make_store: MakeStore, status: int, headers: dict[str, str], says: str
) -> None:
    store = make_store()
    body = b"<LifecycleConfiguration/>" if status == 200 else b"<Error><Code>AccessDenied</Code></Error>"

    def answer(request: Any, **_: Any) -> AWSResponse:
        return AWSResponse(request.url, status, HeadersDict(headers), Answer(body))

    store._client.meta.events.register("before-send.s3.GetBucketLifecycleConfiguration", answer)
    with pytest.raises(InvalidJob, match=says):
        opened(jsonl(), store)


@pytest.mark.slow
def test_an_upload_that_a_new_rule_aborted_is_never_passed_over_and_the_job_says_what_to_do(
    make_store: MakeStore,
) -> None:
    store = make_store()
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    decided = subtask.barrier(1)()
    for key, upload_id in list(store.multipart().list("")):
        store.multipart().abort(key, upload_id)
    successor = Subtask(jsonl, store, token=2, restored=(decided,))
    successor.write([2])
    successor.barrier(2)()
    successor.complete(2)
    for _ in range(10):
        successor.pass_time()
    *looks, (_, _, error) = successor.reports.failing
    assert all("Unavailable: neither" in each for _, _, each in looks[:7])
    assert "Corrupt: job 'job', sink 'out', subtask 0: a decided file is gone" in error
    assert "part-00000001-0-1-" in error
    assert "rule of the bucket" in error
    assert successor.reports.committed_checkpoints == []
    assert numbers_in(store) == [], "nothing newer is shown before it"


@pytest.mark.slow
def test_a_completion_that_another_process_has_under_way_is_waited_for(make_store: MakeStore) -> None:
    """T10: its upload is gone, and its object is not to be seen yet. That must not pass for damage and end the job."""
    zombies_store, store = make_store(), make_store()
    store._prefix = zombies_store._prefix
    zombie = Subtask(jsonl, zombies_store)
    zombie.write([1])
    decided = zombie.barrier(1)()
    zombie.complete(1)
    under_way = True

    def gone(code: str) -> Callable[..., AWSResponse | None]:
        body = f"<Error><Code>{code}</Code></Error>".encode()
        return lambda request, **_: AWSResponse(request.url, 404, HeadersDict(), Answer(body)) if under_way else None

    for request_name, code in (("CompleteMultipartUpload", "NoSuchUpload"), ("HeadObject", "NoSuchKey")):
        store._client.meta.events.register(f"before-send.s3.{request_name}", gone(code))
    successor = Subtask(jsonl, store, token=2, restored=(decided,))
    successor.write([2])
    for _ in range(3):
        successor.pass_time()
    assert successor.reports.committed_checkpoints == []
    under_way = False
    successor.barrier(2)()
    successor.complete(2)
    for _ in range(3):
        successor.pass_time()
    assert successor.reports.committed_checkpoints[-1] == 2
    assert numbers_in(store) == numbers_in_commit_log(store) == [1, 2]


@pytest.mark.parametrize("url", ["/data/out", "file:///data/out", "memory://out"])
def test_only_s3_has_uploads(url: str) -> None:
    with pytest.raises(InvalidJob, match="is for s3:// only"):
        JsonlSink(url, staging="multipart")


def test_another_kind_of_staging_is_refused() -> None:
    with pytest.raises(InvalidJob, match="staging='tape' is not known"):
        JsonlSink("s3://bucket/x", staging="tape")  # type: ignore[arg-type]


def test_settings_make_an_equal_sink() -> None:
    sink = ParquetSink("s3://bucket/x", staging="multipart")
    assert ParquetSink(**json.loads(json.dumps(sink.settings()))).settings() == sink.settings()


def test_a_committable_that_names_a_strangers_upload_is_refused(make_store: MakeStore) -> None:
    """B1: what it says is completed or aborted, so it must be ours."""
    store = make_store()
    committable = pre_committed(opened(jsonl(), store, job="stranger"), 1, 1)
    sink = opened(jsonl(), store)
    for finish in (sink.commit, sink.abort):
        with pytest.raises(Corrupt, match="no names of this sink"):
            finish(committable)
    assert len(uploads_in(store)) == 1


def test_committables_of_the_release_before_uploads_are_still_committed(make_store: MakeStore) -> None:
    store = make_store()
    store.put("_staging/job/out/1/0-00ff-1.jsonl", b'{"n":5}\n')
    sha256 = hashlib.sha256(b'{"n":5}\n').hexdigest()
    old = {
        "version": 1,
        "files": [
            {
                "staged": "_staging/job/out/1/0-00ff-1.jsonl",
                "final": "part-00000001-0-1-00ff-0.jsonl",
                "sha256": sha256,
                "rows": 1,
            }
        ],
    }
    opened(jsonl(), store, token=2).recover([json.dumps(old).encode()])
    assert numbers_in(store) == [5]
