"""A savepoint on S3 that another tool copied to another bucket, after the first bucket was deleted."""

from typing import Any

import boto3

from examples.servers import S3Server
from tests.barrier_runtime.running_job import RunningJob, Target, check_each_once, numbers_flow


def objects(client: Any, bucket: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


async def test_a_savepoint_that_a_foreign_tool_has_copied_begins_a_job_elsewhere(s3: S3Server) -> None:
    """1.2: copied object by object by AWS's own client, into another folder of another bucket; the job, the savepoint
    and their bucket are deleted. The successor continues where the job ended; no object names the bucket.
    """
    client, before, after = boto3.client("s3"), Target(), Target()
    job = RunningJob(numbers_flow(before, "job"), f"{s3.url}/jobs", parallelism=2)
    await job.rows_in(before, 1_000)
    await job.stop(f"{s3.url}/saved/last")

    elsewhere = f"{s3.bucket}-elsewhere"
    client.create_bucket(Bucket=elsewhere)
    for key in objects(client, s3.bucket):
        if key.startswith("saved/last/"):
            to = key.replace("saved/last/", "archive/2026/11/")
            client.copy({"Bucket": s3.bucket, "Key": key}, elsewhere, to)
            data = client.get_object(Bucket=elsewhere, Key=to)["Body"].read()
            assert s3.bucket.encode() not in data, f"{key} names its bucket"
    for key in objects(client, s3.bucket):
        client.delete_object(Bucket=s3.bucket, Key=key)
    client.delete_bucket(Bucket=s3.bucket)
    assert "archive/2026/11/savepoint.json" in objects(client, elsewhere)

    successor = RunningJob(
        numbers_flow(after, "successor"),
        f"s3://{elsewhere}/jobs",
        parallelism=3,
        restore=f"s3://{elsewhere}/archive/2026/11",
    )
    await successor.rows_in(after, 1_000)
    await successor.stop()
    check_each_once(before, after)
