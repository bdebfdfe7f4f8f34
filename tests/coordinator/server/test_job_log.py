"""Logs as JSON: job, generation, slot, checkpoint and operator are fields; what failed is logged once."""

import json
import logging

import msgspec
import pytest
from coordinator_world import started

from barrier_runtime.coordinator.json_lines import JsonLines
from barrier_runtime.coordinator.server.logs import JobLog, NewFailures
from barrier_runtime.coordinator.status.history import History
from barrier_runtime.coordinator.status.status import CheckpointStatus, FailureStatus
from barrier_runtime.state.store.memory import MemoryStore

DECLINED = CheckpointStatus(
    checkpoint=7, token=3, outcome="declined", reason="disk full", triggered_ms=1, duration_ms=5
)
DONE = CheckpointStatus(checkpoint=6, token=3, outcome="complete", triggered_ms=1, duration_ms=5)
FAILED = FailureStatus(3, 9, 1, "2/1", "totals", "ValueError: no number", True)


def lines(caplog: pytest.LogCaptureFixture, formatter: JsonLines) -> list[dict[str, object]]:
    return [json.loads(formatter.format(record)) for record in caplog.records]


def test_a_record_has_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    generation: list[int | None] = [None]
    log = JobLog(logging.getLogger("coordinator.job"), "flights", lambda: generation[0])
    with caplog.at_level(logging.INFO, "coordinator.job"):
        log.info("job %s: loading", "flights")
        generation[0] = 3
        log.warning("it failed", extra={"checkpoint": 7, "operator": "totals"})
    first, second = lines(caplog, JsonLines())
    assert (first["job"], first["message"]) == ("flights", "job flights: loading")
    assert "generation" not in first
    assert "checkpoint" not in first
    assert {key: second[key] for key in ("job", "generation", "checkpoint", "operator", "level")} == {
        "job": "flights",
        "generation": 3,
        "checkpoint": 7,
        "operator": "totals",
        "level": "warning",
    }


def test_a_slots_lines_say_whose_they_are_and_keep_stacks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "barrier_runtime.slot"):
        try:
            raise ValueError("no number")
        except ValueError:
            logging.getLogger("barrier_runtime.slot").warning("failed", exc_info=True, extra={"operator": "totals"})
    (line,) = lines(caplog, JsonLines({"job": "flights", "slot": 1}))
    assert (line["job"], line["slot"], line["operator"]) == ("flights", 1, "totals")
    assert "ValueError: no number" in str(line["traceback"])


def test_what_failed_is_told_once_and_what_was_before_is_not() -> None:
    ends, before = (
        NewFailures(),
        History(job="flights", run_id="r", history=(msgspec.structs.replace(DECLINED, token=2),)),
    )
    assert ends.look(before) == []
    now = msgspec.structs.replace(before, history=(*before.history, DONE, DECLINED), failures=(FAILED,))
    failure, checkpoint = ends.look(now)
    assert failure.text == "slot 1, totals failed: ValueError: no number"
    assert failure.fields == {"generation": 3, "slot": 1, "operator": "totals"}
    assert checkpoint.text == "checkpoint 7 did not complete (declined): disk full"
    assert checkpoint.fields == {"generation": 3, "checkpoint": 7}
    assert ends.look(now) == []


def test_a_job_knows_its_generation() -> None:
    coordinator, _, _ = started(MemoryStore())
    assert coordinator.protocol.token == coordinator.status.token
