"""Names that look like parts of URLs or patterns: each object is read under the right name, on every store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.files.source.listing import find_files
from tests.cloud_emulators import Cloud

ODD = (
    "what?",
    "what",
    "a#b",
    "a%20b",
    "a b",
    "a+b",
    "é ü",
    "50%",
    "a%2Fb",
    "x=1&y=2",
    "q?endpoint=z",
    "[x]",
    "st*r",
    "~t",
)


def read(place: str) -> dict[str, str]:
    flow, out = Dataflow("odd"), CollectSink()
    flow.read_text("in", place).sink("out", out)
    flow.run_local(parallelism=2)
    return {row["line"]: row["line"] for row in out.rows()}


def check(place: Callable[[str], str], put: Callable[[str, bytes], None]) -> None:
    """`place`: URL of a key; `put` stores an object under a key."""
    for name in ODD:
        put(f"in/{name}.txt", name.encode())
    assert set(read(place("in"))) == set(ODD)
    assert set(read(place("in/*.txt"))) == set(ODD)
    assert [file.id for file in find_files(place("in/what?.txt"), ("",), "test")] == ["what?.txt"]
    assert [file.id for file in find_files(place("in/what[?].txt"), ("",), "test")] == ["what?.txt"]
    assert set(read(place("in/a%20b.txt"))) == {"a%20b"}


def test_on_this_machine(tmp_path: Path) -> None:
    def put(key: str, data: bytes) -> None:
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(data)

    check(lambda key: str(tmp_path / key), put)


@pytest.mark.slow
def test_on_s3(s3_url: Callable[[str], str], s3_endpoint: str) -> None:
    import boto3

    client, url = boto3.client("s3", endpoint_url=s3_endpoint), s3_url("x")
    place, _, query = url.partition("?")
    bucket = place.split("/")[2]
    check(
        lambda key: f"s3://{bucket}/{key}?{query}",
        lambda key, data: client.put_object(Bucket=bucket, Key=key, Body=data),
    )


@pytest.mark.slow
def test_on_clouds(cloud: Cloud) -> None:
    from barrier_runtime.state.store.open import open_store

    url = cloud.new_url()
    place, _, query = url.partition("?")
    store = open_store(url)
    check(lambda key: f"{place}/{key}?{query}", store.put)
