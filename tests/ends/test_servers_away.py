"""A server that goes away under a job: the job waits, logs the outage once, and loses or doubles no row."""

import logging
import threading
import uuid
from typing import Any

import psycopg
import pytest

from barrier_runtime import Dataflow, PostgresSink
from barrier_runtime.runtime import opening
from examples.servers import postgres_server
from tests.waiting import until


@pytest.mark.slow
def test_job_outlives_a_database_that_is_down_for_longer_than_its_restarts_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T4: the database is also down at the start."""
    monkeypatch.setattr(opening, "_OPEN_AGAIN_MOST_S", 0.2)
    attempts: list[str] = []
    opened = opening.OpenChains._open_chain

    def counted(self: Any, chain: Any) -> None:
        attempts.append(chain)
        opened(self, chain)

    monkeypatch.setattr(opening.OpenChains, "_open_chain", counted)
    rows = 10_000  # many more than are visible at the second outage
    with postgres_server() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE numbers (value bigint)")
        flow = Dataflow(f"away-{uuid.uuid4().hex[:8]}")
        source = flow.rate("numbers", 1_000, rows).select(["value"])
        source.sink("out", PostgresSink(server.url, "numbers"))
        results: list[Any] = []
        server.kill()
        job = threading.Thread(
            target=lambda: results.append(flow.run_local(checkpoint_interval=0.2, restart_attempts=2))
        )
        with caplog.at_level(logging.WARNING):
            job.start()
            until(lambda: len(attempts) >= 8, "it was tried to open the sink")
            server.start()
            until(lambda: _count(server.url) > 500, "rows came")
            server.kill()
            before = len(attempts)
            until(lambda: len(attempts) >= before + 8, "it was tried to open the sink again")
            server.start()
            job.join()
        assert _count(server.url) == rows
        assert len(results) == 1, "the job ended well, although two restarts were allowed"
        assert sum("Traceback" in record.getMessage() or record.exc_info is not None for record in caplog.records) == 0


def _count(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(DISTINCT value), count(*) FROM numbers").fetchone()
        assert found is not None
        assert found[0] == found[1]
        return int(found[0])
