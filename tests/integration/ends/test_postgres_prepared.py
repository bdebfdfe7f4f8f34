"""Prepared transactions through kills of everything, the database too: none is lost, doubled or left behind."""

from pathlib import Path

import pytest

from examples.servers import PostgresServer
from tests.integration.ends import postgres_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.postgres_counts import KEYS, Reader, left_over, make_table


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_prepared_transactions_outlive_ten_kills(postgres: PostgresServer, tmp_path: Path) -> None:
    """R1, R3, T3, T8, T12: each subtask's rows appear by themselves, in their order, each once."""
    make_table(postgres.url)
    report = run_under_kills(
        Path(postgres_counts.__file__),
        {"rate": 500, "url": postgres.url, "sink": {"transactions": "prepared"}},
        folder=tmp_path,
        open_reader=lambda: Reader(postgres.url, since_last=False).look,
        make_audit=lambda: Numbers(KEYS),
        server=postgres,
        kills=10,
        seed=13,
        outage_s=6.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 10
    assert report.looks > 10
    assert left_over(postgres.url) == []
