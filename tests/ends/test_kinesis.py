"""A job that reads Kinesis (moto) through repeated kills of the server."""

import datetime
import json
import time
from pathlib import Path

import pytest

from barrier_runtime import Dataflow, JsonlSink
from examples.servers.s3 import S3Server
from tests.barrier_runtime.connectors.kinesis.kinesis_world import KinesisWorld
from tests.waiting import until


@pytest.mark.slow
def test_a_job_outlives_kills_of_the_server(s3: S3Server, tmp_path: Path) -> None:
    """No record is lost or doubled, also of records that arrive between two kills."""
    world = KinesisWorld(s3.endpoint, 2)  # moto serves Kinesis and S3
    folder = tmp_path / "out"

    def visible() -> list[int]:
        return sorted(json.loads(line)["value"] for file in folder.glob("*.jsonl") for line in file.open())

    flow = Dataflow("kinesis-killed")
    moment = datetime.timedelta(milliseconds=20)
    source = flow.source("clicks", world.source(value="string", metadata=(), every=moment, discover=moment))
    source.select({"value": "cast(value as bigint)"}).sink("out", JsonlSink(str(folder)))
    with flow.start_local(parallelism=2, checkpoint_interval=0.05, checkpoints=str(tmp_path / "checkpoints")) as job:
        for count in (300, 600, 900):
            world.put([str(number).encode() for number in range(count - 300, count)])
            until(lambda count=count: len(visible()) >= count - 250, "rows came")
            s3.kill()
            time.sleep(0.2)  # a request or more fails
            s3.start()
        until(lambda: len(visible()) >= 900, "all rows came")
        job.stop()
        job.wait(120)
    assert visible() == list(range(900))
