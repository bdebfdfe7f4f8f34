"""Small files of a store: number of requests per file, and detection of changes since the listing."""

import re
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.state.errors import InvalidJob


@pytest.mark.slow
def test_a_small_object_is_read_by_one_request_and_its_end_by_none(
    s3_url: Callable[[str], str], s3_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    import boto3

    client, url, world = boto3.client("s3", endpoint_url=s3_endpoint), s3_url("in"), World()
    for n in range(5):
        client.put_object(Bucket=url.split("/")[2], Key=f"in/{n}.jsonl", Body=b'{"n": %d}\n' % n * 3)
    source = JsonlFiles("src", url, pa.schema([("n", pa.int64())]), None)
    caplog.clear()
    with caplog.at_level("INFO", "werkzeug"):
        driver = opened(spec_of(source), world)
        assert len(rows_of(drained(driver))) == 15
        snapshot_of(driver, world)
        driver.close()
    asked = Counter(re.findall(r"(HEAD|GET) /[^/ ]+/in/(\d)", caplog.text))
    assert asked == {("GET", str(n)): 1 for n in range(5)}


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b'{"n": 1}\n', b'{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": 4}\n', None])
def test_an_object_that_changed_since_it_was_listed_is_named(
    s3_url: Callable[[str], str], s3_endpoint: str, body: bytes | None
) -> None:
    import boto3

    client, url = boto3.client("s3", endpoint_url=s3_endpoint), s3_url("in")
    at = {"Bucket": url.split("/")[2], "Key": "in/a.jsonl"}
    client.put_object(**at, Body=b'{"n": 1}\n{"n": 2}\n')
    driver = opened(spec_of(JsonlFiles("src", url, pa.schema([("n", pa.int64())]), None)), World())
    driver.close()
    spec = spec_of(JsonlFiles("src", url, pa.schema([("n", pa.int64())]), None))
    if body is None:
        client.delete_object(**at)
    else:
        client.put_object(**at, Body=body)
    driver = opened(spec, World())
    told = "is not there any more" if body is None else f"had 18 bytes when the job started and has {len(body)} now"
    with pytest.raises(InvalidJob, match=rf"in/a\.jsonl\S* {told}"):
        drained(driver)
    driver.close()
