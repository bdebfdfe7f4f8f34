"""The proxy of the benchmarks before real servers: late answers of a database, and an emulator that ends."""

import time

import boto3
import psycopg
import pytest
from botocore.config import Config

from benchmarks.slow_store.delay import Delay
from benchmarks.slow_store.servers import slow_postgres, slow_s3

FIXED = Delay(20.0, sigma=0.0, slow_share=0.0)


def test_a_databases_answers_are_late_and_each_wait_is_counted() -> None:
    with slow_postgres(FIXED) as (url, proxy):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select 1")
            since = time.time()
            for number in range(3):
                assert connection.execute("select %s::int", [number]).fetchone() == (number,)
            with connection.pipeline():
                cursors = [connection.execute("select %s::int", [number]) for number in range(20)]
            assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(20)]
        requests = [each for each in proxy.requests(since) if each.received]
    assert all(each.ms >= FIXED.median_ms for each in requests)
    assert 4 <= len(requests) < 23, "a pipeline of 20 takes fewer waits than 20 queries, as a rule one or two"


def test_a_client_learns_nothing_when_the_emulator_ends() -> None:
    with slow_s3(FIXED) as store:
        assert store.behind is not None
        store.behind.kill()
        client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
        with pytest.raises(Exception, match=r"Connection was closed|Could not connect|reset"):
            client.put_object(Bucket=store.bucket, Key="a", Body=b"")
        store.behind.start()
        client.put_object(Bucket=store.bucket, Key="a", Body=b"")
        assert [each.status for each in store.requests()][-2:] == [0, 200]
