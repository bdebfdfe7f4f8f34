"""Committables of older releases, which name multipart uploads of S3: completed, aborted and cleaned up as before."""

import hashlib
import io
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse, HeadersDict
from sink_harness import SCHEMA, Subtask, numbers_in, numbers_in_commit_log

from barrier_runtime.connectors.files.sink.sink import FileSink, JsonlSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.file_committable import StagedFile, Sweep, decode_committable, sink_tag
from barrier_runtime.connectors.sink_bases.staging import Staging
from barrier_runtime.runtime.sinks.pending_set import make_sink
from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.multipart import Upload
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from tests.waiting import until

MakeStore: TypeAlias = Callable[[], S3Store]


class OldStaging(Staging):
    """Sink that stages files as older releases did with `staging="multipart"`."""

    def stage(self, data: bytes, rows: int, earliest: int, folder: str = "") -> StagedFile:
        names = replace(self._names, owner=sink_tag(self._names.job, self._names.sink) + self._names.owner)
        final, sha256 = names.final(earliest, self._next_number(), folder), hashlib.sha256(data)
        checksum = b64encode(sha256.digest()).decode()

        def upload(client: Any, bucket: str, name: str) -> Upload:
            where = {"Bucket": bucket, "Key": name}
            begun = client.create_multipart_upload(
                **where, ChecksumAlgorithm="SHA256", Metadata={"sha256": sha256.hexdigest()}
            )
            part = {"UploadId": begun["UploadId"], "PartNumber": 1, "Body": data, "ChecksumSHA256": checksum}
            return Upload(begun["UploadId"], (client.upload_part(**where, **part)["ETag"],), (checksum,))

        assert isinstance(self._store, S3Store)
        uploaded = self._store.request("put", final, upload)
        return StagedFile("", final, sha256.hexdigest(), rows, len(data), uploaded)

    def closed(self, files: Iterable[StagedFile], checkpoint: int) -> tuple[StagedFile, ...]:
        return tuple(files)


class OldSink(JsonlSink):
    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._staging = OldStaging(self._store, self._names, self._where)


def old() -> JsonlSink:
    return OldSink("s3://bucket/target")


def jsonl() -> JsonlSink:
    return JsonlSink("s3://bucket/target")


@pytest.fixture
def make_store(s3_url: Callable[[str], str]) -> MakeStore:
    """Returns a function that opens a new empty place with a short retry budget."""
    made = iter(range(1_000_000))

    def make() -> S3Store:
        store = open_store(s3_url(f"target-{next(made)}") + "&client=boto3")
        assert isinstance(store, S3Store)
        store._budget = RetryBudget(attempts=2, first_wait_s=0.001, longest_wait_s=0.001)
        return store

    return make


class Answer(io.BytesIO):
    """Response body with the interface that botocore reads."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def uploads_in(store: S3Store) -> list[str]:
    return [key for key, _ in store.multipart().list("")]


def opened(
    sink: FileSink, store: Any, token: int = 1, job: str = "job", job_store: ObjectStore | None = None
) -> FileSink:
    sink.open(SinkContext(job, "out", token, 0, 1, lambda url: store, job_store or store, "lineage"))
    return sink


def pre_committed(sink: FileSink, checkpoint: int, *numbers: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


@pytest.mark.slow
def test_a_zombie_and_its_successor_complete_the_same_upload_once(make_store: MakeStore) -> None:
    """T6, T12, Z11: the zombie's request arrives between the successor's request and the answer, or long after."""
    store = make_store()
    zombie = opened(old(), store)
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
    sink = opened(old(), store)
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


@pytest.mark.slow
def test_a_final_file_with_other_content_is_never_overwritten(make_store: MakeStore) -> None:
    store = make_store()
    sink = opened(old(), store)
    committable = pre_committed(sink, 1, 1)
    final = decode_committable(committable, "here").files[0].final
    store.put(final, b'{"n":99}\n')
    with pytest.raises(Corrupt, match="other content"):
        opened(jsonl(), store, token=2).recover([committable])
    assert numbers_in(store) == [99]


@pytest.mark.slow
def test_a_file_that_a_person_put_back_counts_as_committed(make_store: MakeStore) -> None:
    store = make_store()
    sink = opened(old(), store)
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


@pytest.mark.slow
def test_same_named_job_with_other_checkpoints_keeps_uploads_of_the_first_job(make_store: MakeStore) -> None:
    """T9, T14"""
    store = make_store()
    production, staging = MemoryStore("production"), MemoryStore("staging")
    decided = pre_committed(opened(old(), store, token=3, job_store=production), 7, 1)
    opened(jsonl(), store, token=9, job_store=staging).recover([])
    opened(jsonl(), store, token=4, job_store=production).recover([decided])
    assert numbers_in(store) == [1]
    assert uploads_in(store) == []


@pytest.mark.slow
def test_successor_aborts_undecided_uploads_and_keeps_unknown_objects(make_store: MakeStore) -> None:
    """T9, T15: four undecided transactions of this job, and one of another job in the same folder."""
    store = make_store()
    before = opened(old(), store)
    decided = pre_committed(before, 1, 1)
    for checkpoint in range(2, 5):
        pre_committed(before, checkpoint, checkpoint)
    stranger = pre_committed(opened(old(), store, job="stranger"), 1, 50)
    zombie_of_the_future = pre_committed(opened(old(), store, token=9), 9, 60)
    assert len(uploads_in(store)) == 6
    opened(jsonl(), store, token=2).recover([decided])
    kept = {decode_committable(each, "here").files[0].final for each in (stranger, zombie_of_the_future)}
    until(lambda: set(uploads_in(store)) == kept)
    assert numbers_in(store) == [1]


@pytest.mark.slow
def test_leftovers_of_three_subtasks_are_aborted_by_one(make_store: MakeStore) -> None:
    """T8"""
    store = make_store()
    three = [Subtask(old, store, 1, subtask=s, parallelism=3) for s in range(3)]
    for s, subtask in enumerate(three):
        subtask.write([s])
    decided = tuple(subtask.barrier(1)() for subtask in three)
    for s, subtask in enumerate(three):
        subtask.write([100 + s])
        subtask.barrier(2)()
    Subtask(jsonl, store, 2, restored=decided)
    assert sorted(numbers_in(store)) == [0, 1, 2]
    until(lambda: uploads_in(store) == [])


@pytest.mark.parametrize(
    ("request_name", "applied", "times"),
    [
        ("CompleteMultipartUpload", True, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (  # the third of three answers is that which the client's repetition of the request gets over
                ("CompleteMultipartUpload", False, 3),
                ("CompleteMultipartUpload", True, 3),
                ("ListMultipartUploads", False, 3),
            )
        ),
    ],
)
def test_an_answer_that_never_comes_only_delays(
    make_store: MakeStore, request_name: str, applied: bool, times: int
) -> None:
    """T4, T10: whether or not the request was executed."""
    store = make_store()
    before = Subtask(old, store)
    before.write([1])
    decided = before.barrier(1)()
    left = times

    def lose(**_: Any) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            raise ConnectionError("the answer was lost")

    event = f"{'after-call' if applied else 'before-call'}.s3.{request_name}"
    store._client.meta.events.register(event, lose)
    subtask = Subtask(jsonl, store, token=2, restored=(decided,))
    subtask.write([2])
    subtask.barrier(2)()
    subtask.complete(2)
    for _ in range(4):
        subtask.pass_time()
    assert numbers_in(store) == [1, 2]
    assert numbers_in_commit_log(store) == [1, 2]
    assert subtask.reports.committed_checkpoints[-1] == 2
    assert uploads_in(store) == []


@pytest.mark.slow
def test_a_completion_that_another_process_has_under_way_is_waited_for(make_store: MakeStore) -> None:
    """T10: the upload is gone and the object is not visible yet. This is no damage and must not fail the job."""
    zombies_store, store = make_store(), make_store()
    store._prefix = zombies_store._prefix
    zombie = Subtask(old, zombies_store)
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


@pytest.mark.slow
def test_a_committable_that_names_a_strangers_upload_is_refused(make_store: MakeStore) -> None:
    """B1: the committable's upload is completed or aborted, so the upload must belong to this sink."""
    store = make_store()
    committable = pre_committed(opened(old(), store, job="stranger"), 1, 1)
    sink = opened(jsonl(), store)
    for finish in (sink.commit, sink.abort):
        with pytest.raises(Corrupt, match="no names of this sink"):
            finish(committable)
    assert len(uploads_in(store)) == 1


@pytest.mark.slow
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


@pytest.mark.parametrize("staging", ["object", "multipart"])
def test_settings_that_older_releases_stored_make_a_sink(staging: str) -> None:
    sink = make_sink("jsonl", {"url": "s3://bucket/x", "max_bytes_in_memory": 5, "staging": staging})
    assert sink.settings() == {"url": "s3://bucket/x", "max_bytes_in_memory": 5}
