"""The late-answering proxy: forwarding, counts, and delays."""

import random
import time

import boto3
import pytest

from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.open import open_store
from benchmarks.slow_store.delay import NONE, Delay
from benchmarks.slow_store.emulator import EmulatedS3
from benchmarks.slow_store.messages import Message, operation
from benchmarks.slow_store.requests import Request, counted, in_sequence, kind_of
from benchmarks.slow_store.servers import slow_s3

FIXED = Delay(20.0, sigma=0.0, slow_share=0.0)


def fed(message: Message, data: bytes, step: int) -> tuple[bytes, bytes]:
    """(body, bytes after the message) of data that arrives in pieces."""
    body = rest = b""
    for begin in range(0, len(data), step):
        piece = data[begin : begin + step]
        if message.done:
            rest += piece
            continue
        more, behind = message.feed(piece)
        body, rest = body + more, rest + behind
    return body, rest


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_messages_end_where_their_length_or_last_chunk_ends(step: int) -> None:
    long = Message()
    assert fed(long, b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET", step) == (b"hello", b"GET")
    chunked = Message("GET")
    chunks = b"5\r\nhello\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nchecksum: 1\r\n\r\n"
    assert fed(chunked, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"H", step) == (
        chunks,
        b"H",
    )
    assert long.done
    assert chunked.done


def test_answers_without_a_body_end_with_their_head() -> None:
    for method, status in (("HEAD", "200 OK"), ("DELETE", "204 No Content"), ("GET", "304 Not Modified")):
        answer = Message(method)
        answer.feed(f"HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\n".encode())
        assert answer.done
    closing = Message("GET")
    assert closing.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == (b"abc", b"")
    assert closing.until_close
    assert not closing.done


@pytest.mark.parametrize(
    ("line", "fields", "expected"),
    [
        ("GET /b?list-type=2&prefix=job%2Flog%2F", "", ("LIST", "job/log/")),
        ("GET /b/a%20b", "", ("GET", "a b")),
        ("PUT /b/k", "if-none-match: *\r\n", ("PUT IF", "k")),
        ("PUT /b/k", "x-amz-copy-source: /b/o\r\nIf-None-Match: *\r\n", ("COPY", "k")),
        ("PUT /b/k?partNumber=1&uploadId=u", "", ("PART", "k")),
        ("POST /b/k?uploads", "", ("START PARTS", "k")),
        ("POST /b/k?uploadId=u", "", ("COMPLETE", "k")),
        ("POST /b?delete", "", ("DELETE MANY", "")),
    ],
)
def test_requests_are_named_by_their_operation(line: str, fields: str, expected: tuple[str, str]) -> None:
    assert operation(f"{line} HTTP/1.1\r\n{fields}\r\n".encode()) == expected


def test_keys_are_sorted_by_the_part_of_the_store() -> None:
    kinds = {
        "ck/job/log/00000000000000000007.json": "decision log",
        "ck/job/log-hint.json": "hint",
        "ck/job/checkpoints/8-1/manifest-ab.json": "manifest",
        "ck/job/data/1/uuid/file": "state",
        "out/_staging/job/out/1/0-ab-8.jsonl": "staged rows",
        "out/_commits/job/out/00000000000000000008.json": "commit log",
        "out/part-00000.jsonl": "rows",
        "table/_delta_log/00000000000000000008.json": "table log",
    }
    assert {key: kind_of(key) for key in kinds} == kinds


def test_waits_in_sequence_are_the_longest_chain_of_requests() -> None:
    def request(at: float, ms: float) -> Request:
        return Request(at, "GET", "k", 200, 0, 0, ms)

    assert in_sequence([]) == 0
    assert in_sequence([request(0.0, 30), request(0.001, 30), request(0.002, 30)]) == 1
    assert in_sequence([request(0.0, 30), request(0.001, 80), request(0.031, 30), request(0.062, 10)]) == 3


def test_delays_have_the_median_and_the_share_of_slow_answers() -> None:
    source = random.Random(7)
    drawn = sorted(Delay(30.0, 0.25, 0.02, 1000.0).draw_s(source) for _ in range(20_000))
    assert 0.029 < drawn[10_000] < 0.031
    assert 0.015 < sum(each > 0.9 for each in drawn) / len(drawn) < 0.025
    assert NONE.draw_s(source) == 0.0


@pytest.mark.slow
def test_objects_go_through_the_proxy_late_and_counted() -> None:
    large = random.Random(3).randbytes(3 << 20)
    with slow_s3(FIXED) as store:
        client = boto3.client("s3")
        since = time.time()
        client.put_object(Bucket=store.bucket, Key="job/log/00000000000000000000.json", Body=b"{}", IfNoneMatch="*")
        client.put_object(Bucket=store.bucket, Key="out/part.jsonl", Body=large)
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=store.bucket, Key="out/part.jsonl", Body=b"", IfNoneMatch="*")
        assert client.get_object(Bucket=store.bucket, Key="out/part.jsonl")["Body"].read() == large
        assert client.head_object(Bucket=store.bucket, Key="out/part.jsonl")["ContentLength"] == len(large)
        listed = client.list_objects_v2(Bucket=store.bucket, Prefix="out/")["Contents"]
        client.delete_object(Bucket=store.bucket, Key="out/part.jsonl")
        requests = store.requests(since)
    assert [each["Key"] for each in listed] == ["out/part.jsonl"]
    assert [(each.operation, each.kind, each.status) for each in requests] == [
        ("PUT IF", "decision log", 200),
        ("PUT", "rows", 200),
        ("PUT IF", "rows", 412),
        ("GET", "rows", 200),
        ("HEAD", "rows", 200),
        ("LIST", "other", 200),
        ("DELETE", "rows", 204),
    ]
    assert all(each.ms >= FIXED.median_ms for each in requests)
    assert requests[1].sent >= len(large)
    assert requests[3].received == len(large)
    assert in_sequence(requests) == len(requests)
    assert counted(requests)["GET", "rows"] == 1


@pytest.mark.slow
def test_loaded_objects_are_read_by_range_and_found_by_conditions() -> None:
    emulator = EmulatedS3()
    try:
        emulator.start()
        with slow_s3(NONE, emulator) as proxy:
            emulator.load({"ck/a": b"0123456789"})
            store = open_store(f"{proxy.url}/ck")
            assert store.get("a") == b"0123456789"
            assert store.put_if_absent("a", b"x") is PutOutcome.EXISTS
            client = boto3.client("s3", endpoint_url=emulator.endpoint)
            for asked, expected in (("bytes=2-5", b"2345"), ("bytes=7-", b"789"), ("bytes=-2", b"89")):
                found = client.get_object(Bucket=emulator.bucket, Key="ck/a", Range=asked)
                assert found["Body"].read() == expected
            assert client.head_object(Bucket=emulator.bucket, Key="ck/a")["ContentLength"] == 10
    finally:
        emulator.close()
