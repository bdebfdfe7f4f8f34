"""Failures of S3 with both clients, against a scripted server on loopback and against a real server."""

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TypeAlias

import pytest
from botocore.loaders import JSONFileLoader

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, PutOutcome
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from tests.state.store.s3_script import Script

Store: TypeAlias = S3Store | ObstoreS3Store
MakeStore: TypeAlias = type[S3Store] | type[ObstoreS3Store]


BUDGET = RetryBudget(attempts=3, first_wait_s=0.001, longest_wait_s=0.001)


@pytest.fixture(params=[ObstoreS3Store, S3Store], ids=["obstore", "boto3"])
def client(request: pytest.FixtureRequest) -> MakeStore:
    made: MakeStore = request.param
    return made


@pytest.fixture
def store(script: Script, client: MakeStore) -> Store:
    return client("bucket", "jobs", script.endpoint, BUDGET)


def test_a_conditional_put_carries_the_condition_and_a_checksum(script: Script, store: Store) -> None:
    """O1"""
    assert store.put_if_absent("log/1", b"x") is PutOutcome.CREATED
    [(method, path, headers)] = script.requests
    assert (method, path) == ("PUT", "/bucket/jobs/log/1")
    assert headers["if-none-match"] == "*"
    assert "x-amz-checksum-sha256" in headers


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ((412, "PreconditionFailed"), PutOutcome.EXISTS),
        ((409, "ConditionalRequestConflict"), PutOutcome.UNKNOWN),
        ((500, "InternalError"), PutOutcome.UNKNOWN),
        ((503, "SlowDown"), PutOutcome.UNKNOWN),
        ((400, "RequestTimeout"), PutOutcome.UNKNOWN),
        (None, PutOutcome.UNKNOWN),
    ],
)
def test_a_conditional_put_tells_three_outcomes_apart_and_reaches_the_store_once(
    script: Script, store: Store, answer: tuple[int, str] | None, outcome: PutOutcome
) -> None:
    """O2"""
    script.answers = [answer]
    assert store.put_if_absent("log/1", b"x") is outcome
    assert len(script.requests) == 1


def test_a_conditional_put_without_any_answer_is_unknown(script: Script, client: MakeStore) -> None:
    """O3"""
    store = client("bucket", "jobs", script.endpoint, replace(BUDGET, read_timeout_s=0.3))
    silent = threading.Event()
    original = script.server.RequestHandlerClass.answer  # type: ignore[attr-defined]

    def wait(handler: BaseHTTPRequestHandler) -> None:
        silent.wait(60)
        original(handler)

    script.server.RequestHandlerClass.do_PUT = wait  # type: ignore[attr-defined]
    assert store.put_if_absent("log/1", b"x") is PutOutcome.UNKNOWN
    silent.set()


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.put("a", b"x"),
        lambda store: store.get("a"),
        lambda store: list(store.list("a")),
        lambda store: store.delete(["a"]),
    ],
)
def test_a_storm_of_errors_is_borne_within_a_budget_and_then_named(
    script: Script, store: Store, operation: Callable[[Store], object]
) -> None:
    """O5"""
    script.answers = [(503, "SlowDown")]
    with pytest.raises(Unavailable, match="gave up after 3 attempts"):
        operation(store)
    assert len(script.requests) == 3


def test_trouble_that_passes_is_not_even_seen(script: Script, store: Store) -> None:
    """O5"""
    script.answers = [(500, "InternalError"), None, (200, "")]
    store.put("a", b"x")
    assert len(script.requests) == 3


def test_bytes_that_were_damaged_on_their_way_are_sent_again(script: Script, store: Store) -> None:
    script.answers = [(400, "BadDigest"), (400, "IncompleteBody"), (200, "")]
    store.put("a", b"x")
    assert len(script.requests) == 3


LISTED = """<ListBucketResult><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents><Key>jobs/log/1</Key>
<Size>1</Size><ETag>"tag"</ETag><LastModified>2026-11-28T12:00:00Z</LastModified></Contents></ListBucketResult>"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [0, 60, len(LISTED) - 1])
def test_a_listing_whose_connection_ends_early_is_not_an_empty_folder(script: Script, store: Store, sent: int) -> None:
    script.answers = [(200, LISTED, sent), (200, LISTED)]
    assert [found.key for found in store.list("log/")] == ["log/1"]
    assert len(script.requests) == 2


def test_a_cut_answer_to_a_deletion_does_not_hide_objects_that_stay(script: Script, store: Store) -> None:
    kept = "<DeleteResult><Error><Key>jobs/a</Key><Code>InternalError</Code></Error></DeleteResult>"
    script.answers = [(200, kept, 0), (200, "<DeleteResult></DeleteResult>")]
    store.delete(["a"])
    assert len(script.requests) > 1  # obstore is tried first


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("AccessDenied", InvalidJob, "delete of s3://bucket/jobs/b failed: AccessDenied; allow s3:DeleteObject"),
        ("InternalError", Unavailable, "delete of s3://bucket/jobs/b failed: InternalError"),
    ],
)
def test_an_object_that_is_not_deleted_is_told_also_behind_an_absent_one(
    script: Script, store: Store, code: str, error: type[Exception], said: str
) -> None:
    def answer(*codes: str) -> tuple[int, str]:
        named = zip("ab", codes, strict=True)
        failed = [f"<Error><Key>jobs/{key}</Key><Code>{code}</Code></Error>" for key, code in named]
        return 200, f"<DeleteResult>{''.join(failed)}</DeleteResult>"

    script.answers = [answer("NoSuchKey", code)]
    with pytest.raises(error, match=said):
        store.delete(["a", "b"])
    script.answers = [answer("NoSuchKey", "NoSuchKey")]
    store.delete(["a", "b"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        ((404, "NoSuchBucket"), "create it"),
        ((403, "AccessDenied"), "permissions"),
        ((403, "InvalidAccessKeyId"), "permissions"),
    ],
)
def test_what_a_person_must_fix_is_said_at_once_with_the_remedy_and_without_secrets(
    script: Script, store: Store, answer: tuple[int, str], remedy: str
) -> None:
    """J6"""
    script.answers = [answer]
    for operation in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.get("a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(InvalidJob, match=remedy) as raised:
            operation()
        assert "canary" not in str(raised.value)
    assert len(script.requests) == 4


def test_an_absent_object_is_not_retried(script: Script, store: Store) -> None:
    script.answers = [(404, "NoSuchKey")]
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert len(script.requests) == 1


def test_no_server_at_all_is_unavailable_and_a_conditional_put_unknown(script: Script, client: MakeStore) -> None:
    budget = RetryBudget(attempts=2, first_wait_s=0.001, longest_wait_s=0.001, connect_timeout_s=0.5)
    store = client("bucket", "", "http://127.0.0.1:1", budget)
    with pytest.raises(Unavailable, match=r"failed \((Connect|EndpointConnectionError)\).*gave up after 2 attempts"):
        store.put("a", b"x")
    assert store.put_if_absent("a", b"x") is PutOutcome.UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_a_bucket_that_does_not_exist_is_named(s3_endpoint: str, client: str) -> None:
    store = open_store(f"s3://no-such-bucket/prefix?endpoint={s3_endpoint}&client={client}")
    for operation in (lambda: store.put("a", b""), lambda: store.put_if_absent("a", b""), lambda: list(store.list(""))):
        with pytest.raises(InvalidJob, match=re.escape("'no-such-bucket' does not exist: create it")):
            operation()


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_a_file_above_the_size_of_a_single_put_travels_in_parts(
    s3_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """S12"""
    monkeypatch.setattr("barrier_runtime.state.store.s3.by_boto3._SINGLE_PUT_BYTES", 6 << 20)
    monkeypatch.setattr("barrier_runtime.state.store.clouds.SINGLE_PUT_BYTES", 6 << 20)
    store = open_store(f"{s3_url('x')}&client={client}")
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(bytes(range(256)) * 4 * 10_000)
    store.put_file("data/big", source)
    store.get_file("data/big", copy)
    assert copy.read_bytes() == source.read_bytes() == store.get("data/big")
    assert store.get("data/big", 1, 9 << 20) == source.read_bytes()[1 : 1 + (9 << 20)]
    store.put("data/rows", source.read_bytes())
    assert store.get("data/rows") == source.read_bytes()


@pytest.mark.slow
def test_a_published_object_that_came_in_parts_is_compared_by_content(
    s3_url: Callable[[str], str], tmp_path: Path
) -> None:
    monkey = pytest.MonkeyPatch()
    monkey.setattr("barrier_runtime.state.store.clouds.SINGLE_PUT_BYTES", 5 << 20)
    store = open_store(s3_url("x"))
    source = tmp_path / "source"
    source.write_bytes(b"0123456789abcdef" * 600_000)
    store.put_file("staged", source)
    monkey.undo()
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    store.publish("staged", "final", sha256)
    store.publish("staged", "final", sha256)
    assert [info.key for info in store.list("")] == ["final"]


def test_another_store_of_the_process_does_not_reread_service_descriptions(
    s3_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(s3_url("one"))
    load, loaded = JSONFileLoader.load_file, []
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: loaded.append(path) or load(self, path))
    open_store(s3_url("other")).put("key", b"rows")
    assert loaded == []


@pytest.mark.slow
def test_a_publish_that_another_process_finishes_first_is_success(
    s3_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: a commit of an old generation happens between two reads of the new generation's recovery."""
    store, other = open_store(s3_url("race")), open_store(s3_url("race"))
    store.put("staged", b"rows")
    sha256 = hashlib.sha256(b"rows").hexdigest()
    copy, overtaking = S3Store._copy, [other]

    def overtaken(by_boto3: S3Store, staged: str, final: str) -> str | None:
        if overtaking:
            overtaking.pop().publish(staged, final, sha256)
        return copy(by_boto3, staged, final)

    monkeypatch.setattr(S3Store, "_copy", overtaken)
    store.publish("staged", "final", sha256)
    assert other.get("final") == b"rows"


@pytest.mark.slow
def test_a_first_publish_is_a_copy_and_a_deletion(s3_url: Callable[[str], str]) -> None:
    store = open_store(s3_url("first") + "&client=boto3")
    assert isinstance(store, S3Store)
    store.put("staged", b"rows")
    asked: list[str] = []
    store._client.meta.events.register("before-call.s3", lambda model, **_: asked.append(model.name))
    store.publish("staged", "final", hashlib.sha256(b"rows").hexdigest(), fresh=True)
    assert asked == ["CopyObject", "DeleteObjects"]
    assert store.get("final") == b"rows"
