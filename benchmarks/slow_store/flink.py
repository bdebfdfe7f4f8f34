"""Flink on the slow store: the keyed count into files, and checkpoints, on the same S3 through Hadoop.

Rows are visible when the upload of their file is completed, according to the proxy's log; each row has the due time. A
checkpoint's duration is Flink's own figure; there are no phases.
"""

import json
import os
import select
import statistics
import subprocess
import time
from pathlib import Path

import boto3
import numpy as np

from benchmarks.engines.flink import LOG, completed, java_command, log4j
from benchmarks.engines.flink import settings as flink_settings
from benchmarks.engines.java_build import connectors
from benchmarks.idle import below
from benchmarks.slow_store.place import START_S, Place, Settings, numbers, place, result_of
from benchmarks.slow_store.requests import counted
from benchmarks.slow_store.result import CellResult
from benchmarks.slow_store.running import JobFailed, cpu_of
from benchmarks.spec import RunSpec

_AFTER_S = 5.0  # for the last rows of the measured time to become visible


def flink(settings: Settings, interval_s: float) -> CellResult:
    folder = settings.folder / "flink"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    (folder / "log4j.properties").write_text(log4j((folder / LOG).resolve()))
    spec = RunSpec(
        engine="flink",
        workload="keyed-count",
        measure="visible",
        source="generator",
        sink="measure",
        rate=settings.rate,
        keys=10_000,
        parallelism=2,
        interval_ms=round(interval_s * 1000),
        folder=str(folder.resolve()),
    )
    with place(settings, settings.delay) as where:
        assert where.proxy is not None
        chosen = {
            **flink_settings(spec),
            "execution.checkpointing.dir": f"{where.url}/ck",
            "s3.endpoint": where.proxy.endpoint,
            "s3.endpoint.region": "us-east-1",
            "s3.path.style.access": "true",
            "s3.access-key": "test",
            "s3.secret-key": "test",
        }
        command = java_command(spec, chosen, f"{where.url}/out", connectors("flink-s3"), sink="files")
        with (folder / "job.log").open("wb") as said:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        try:
            _until_running(process, folder / "job.log")
            time.sleep(settings.warm_up_s)
            begin, before = time.time(), {"job": cpu_of(below(process.pid)), **where.cpu_s()}
            time.sleep(settings.seconds)
            end, after = time.time(), {"job": cpu_of(below(process.pid)), **where.cpu_s()}
            time.sleep(_AFTER_S)
            requests = where.requests(begin, end)
            latency_ms = _latency_ms(where, begin, end)
        finally:
            process.kill()
            process.wait()
    done = [each for each in completed(folder / LOG) if begin <= each.at_ns / 1e9 < end]
    many = max(1, len(done))
    return result_of(
        settings,
        {
            "checkpoint": statistics.median(each.duration_ms for each in done) if done else None,
            "visible p50": float(np.percentile(latency_ms, 50)) if len(latency_ms) else None,
            "visible p99": float(np.percentile(latency_ms, 99)) if len(latency_ms) else None,
            "checkpoints": float(len(done)),
            "requests per checkpoint": len(requests) / many,
            "job's CPU ms per checkpoint": (after["job"] - before["job"]) * 1000 / many,
        },
        requests={name: number / many for name, number in numbers(counted(requests)).items()},
        cores={name: (after[name] - before[name]) / (end - begin) for name in after},
    )


def _until_running(process: "subprocess.Popen[bytes]", log: Path) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = process.stdout.readline()
        if line.startswith(b"bench: running"):
            os.set_blocking(process.stdout.fileno(), False)
            return
        if not line:
            break
    told = [line for line in log.read_text(errors="replace").splitlines() if "Exception" in line or "Error" in line]
    raise JobFailed(f"Flink does not run: {told[-1] if told else 'nothing was said'}")


def _latency_ms(where: Place, begin: float, end: float) -> "np.typing.NDArray[np.float64]":
    """Latency of the rows that were due in this time."""
    assert where.emulator is not None
    client = boto3.client("s3", endpoint_url=where.emulator.endpoint)
    found = []
    for request in where.requests(begin):
        if request.operation == "COMPLETE" and request.key.startswith("out/") and request.status == 200:
            body = client.get_object(Bucket=where.emulator.bucket, Key=request.key)["Body"].read()
            due = np.array([json.loads(line)["emitted"] for line in body.splitlines()], np.float64) / 1e9
            found.append((request.end - due[(due >= begin) & (due < end)]) * 1000)
    return np.concatenate([np.empty(0), *found])
