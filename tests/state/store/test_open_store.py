"""URLs of stores: the store that each opens, and errors for invalid URLs."""

from pathlib import Path

import pytest

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store


def test_a_path_and_a_file_url_open_the_same_folder(tmp_path: Path) -> None:
    plain, url = open_store(str(tmp_path / "a b")), open_store((tmp_path / "a b").as_uri())
    plain.put("x", b"1")
    assert url.get("x") == b"1"
    assert isinstance(plain, LocalStore)
    assert plain.url == url.url


def test_a_memory_url_opens_the_store_of_that_name_in_this_process() -> None:
    first, again, other = open_store("memory://open-a"), open_store("memory://open-a"), open_store("memory://open-b")
    assert isinstance(first, MemoryStore)
    assert first is again
    assert first is not other
    assert first.url == "memory://open-a"


def test_an_s3_url_opens_s3_below_its_prefix(s3_endpoint: str) -> None:
    store = open_store(f"s3://bucket/some/prefix/?endpoint={s3_endpoint}")
    assert isinstance(store, ObstoreS3Store)
    assert store.url == "s3://bucket/some/prefix"
    assert open_store(f"s3://bucket/a#b 100% +ü?endpoint={s3_endpoint}").url == "s3://bucket/a#b 100% +ü"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("", "use file:///"),
        ("ftp://host/x", "unknown scheme 'ftp'"),
        ("hdfs://host/x", "use webhdfs://namenode:9870/folder"),
        ("file://host/x", "three slashes"),
        ("s3:/bucket/x", "has no // behind its scheme"),
        ("file:/tmp/x", "has no // behind its scheme"),
        ("webhdfs://node:99999/x", "is not understood"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://key:secret@bucket/x", "must not carry credentials"),
        ("s3://bucket/../x", "segment"),
        ("s3://bucket/x?endpoint=localhost", "http://"),
        ("s3://bucket/x?access_key=1", "only endpoint= and client= are known"),
        ("gs://bucket/x?client=boto3", "only endpoint= is known"),
        ("s3://bucket/x?client=aws", "has client='aws': use client=boto3, or leave client= out"),
        ("s3://bucket--use1-az4--x-s3/x?client=obstore", "directory buckets of S3 Express are reached by boto3 only"),
        ("s3://bucket/x?", "has a question mark in its path"),
        ("s3://bucket/my%20data", "keys are not encoded: write the path as it is, 'my data'"),
        ("gs://bucket/a%2Fb", "write the path as it is, 'a/b'"),
        ("webhdfs://node:9870/a%20b", "write the path as it is, 'a b'"),
    ],
)
def test_a_url_that_opens_nothing_is_refused_with_the_remedy(url: str, remedy: str) -> None:
    with pytest.raises(InvalidJob, match=remedy) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)
