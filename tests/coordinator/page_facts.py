"""A job's status with everything that the page can show, for tests of the page."""

from barrier_runtime.coordinator.status.status import (
    LATENCY_BOUNDS_MS,
    ChainStatus,
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    CommitTrouble,
    FailureStatus,
    JobStatus,
    LatencyPoint,
    LatencyStatus,
    RecoveryStatus,
    SavepointStatus,
    SlotStatus,
    SourceStatus,
    SubtaskPhases,
    TakeoverStatus,
)

NOW_MS = 1_790_000_000_000
TRACEBACK = "Traceback (most recent call last):\n  File \"app.py\", line 7, in price\nKeyError: 'price'"


def checkpoint(number: int, token: int = 3, outcome: str = "complete", **more: object) -> CheckpointStatus:
    """Of the second `number - 150` seconds before now: 100 ms until the acks, 5 for each of the steps behind them."""
    subtasks = (
        SubtaskPhases(1, 1, 90, 10.0, 20.0, 5.0, 50.0, slowest="count", new_bytes=900, full_bytes=5_000, rows=400),
        SubtaskPhases(0, 0, 40, 5.0, 0.0, 5.0, 20.0),
    )
    known = {
        "checkpoint": number,
        "token": token,
        "outcome": outcome,
        "triggered_ms": NOW_MS - 1_000 * (150 - number),
        "duration_ms": 110,
        "ack_duration_ms": 100,
        "persist_duration_ms": 5,
        "decide_duration_ms": 5,
        "commit_duration_ms": 12,
        "new_bytes": 12_345,
        "full_bytes": 6_789_000,
        "parts": 4,
        "subtasks": subtasks,
        "state_bytes": {"count": 5_000, "bids": 12},
    }
    return CheckpointStatus(**{**known, **more})  # type: ignore[arg-type]


def status(**more: object) -> JobStatus:
    """100 checkpoints, of which 120 failed; generation 3 began before 100; one takeover; one sink in trouble."""
    history = tuple(
        checkpoint(number, 1 if number < 100 else 3)
        if number != 120
        else checkpoint(120, 3, "declined", reason="subtask 1/0 refused: disk full", ack_duration_ms=None, subtasks=())
        for number in range(50, 150)
    )
    spread = tuple(min(1_000, 20 * (index + 1) ** 2) for index in range(len(LATENCY_BOUNDS_MS)))
    latency = LatencyStatus(p50=4.2, p99=31.0, max=220.0, count=1_000, p999=120.0, buckets=spread)
    hour = tuple(LatencyPoint(NOW_MS - 60_000 * ago, 4.0, 30.0, 90.0, 200.0, 100) for ago in range(59, -1, -1))
    known = {
        "job": "flights",
        "run_id": "run-1",
        "submitter": "ann@host pid 12",
        "phase": "running",
        "outcome": None,
        "condition": "RUNNING",
        "condition_since_ms": NOW_MS - 40_000,
        "reason": "",
        "error": None,
        "fenced_by": None,
        "token": 3,
        "generations": 2,
        "leader": "a-1",
        "parallelism": 2,
        "max_parallelism": 128,
        "slots": tuple(
            SlotStatus(
                index, f"u{index}", 100 + index, "host", index, "running", 120, {"rss_bytes": 2e8, "records": 7e4}
            )
            for index in range(2)
        ),
        "missing_slots": (),
        "checkpoints": CheckpointsStatus(
            triggered=101, completed=99, failed=1, in_progress=(150,), last_completed=history[-1], history=history
        ),
        "recoveries": (
            RecoveryStatus(1, "the job starts", NOW_MS - 101_000, NOW_MS - 100_500, NOW_MS - 100_000, 1_000),
            RecoveryStatus(
                3, "slot 1 is lost: process 101 died of SIGKILL", NOW_MS - 51_000, None, NOW_MS - 50_400, 600
            ),
        ),
        "watermark_ms": NOW_MS - 2_500,
        "records": 140_000,
        "latency": {"files:processed": latency, "files:visible": latency},
        "latency_last_minute": {"files:processed": latency, "files:visible": latency},
        "commits": CommitsStatus(
            {"files/0": 149, "files/1": 146}, (CommitTrouble("files/1", 147, 3, "the disk is full"),)
        ),
        "kill": (),
        "options": {"checkpoint_interval": 1, "restore": "latest"},
        "restored_checkpoint": 99,
        "chains": (
            ChainStatus(
                chain=0,
                operators=("bids", "parse"),
                is_source=True,
                busy=0.9,
                backpressured=0.0,
                idle=0.1,
                rows_in_per_s=7_000.0,
                rows_out_per_s=6_900.0,
                busiest=0.95,
                busiest_slot=1,
            ),
            ChainStatus(
                chain=1,
                operators=("count", "files"),
                inputs=(0,),
                sinks=("files",),
                busy=0.2,
                backpressured=0.6,
                idle=0.1,
                rows_in_per_s=6_900.0,
                rows_out_per_s=10.0,
            ),
        ),
        "sources": (
            SourceStatus(source="bids", watermark_ms=NOW_MS - 2_500, lag_ms=2_500, split="part-3", split_slot=1),
        ),
        "latency_hour": {"files:processed": hour, "files:visible": hour},
        "failures": (FailureStatus(1, NOW_MS - 51_000, 1, "1/1", "count", TRACEBACK, True),),
        "savepoints": (
            SavepointStatus(
                id="s",
                url="s3://bucket/s?endpoint=x",
                state="done",
                checkpoint=145,
                asked_ms=NOW_MS - 5_000,
                ended_ms=NOW_MS - 4_000,
            ),
        ),
        "takeovers": (TakeoverStatus(3, "b-1", NOW_MS - 20_000),),
    }
    return JobStatus(**{**known, **more})  # type: ignore[arg-type]
