"""Upserts of a deterministic job under kills of everything, ClickHouse too: every key ends with its last row."""

from pathlib import Path

import pytest

from examples.servers import ClickHouseServer
from tests.integration.ends import clickhouse_counts
from tests.integration.ends.clickhouse_counts import fences, look, make_table
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.redis_counts import Overwritten

KEYS = 50


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_key_has_its_last_row_after_kills_of_everything(clickhouse: ClickHouseServer, tmp_path: Path) -> None:
    """R3: slots, coordinators, the whole program and the server are killed; versions keep zombies below."""
    make_table(clickhouse.port)
    report = run_under_kills(
        Path(clickhouse_counts.__file__),
        {"rate": 1_000, "keys": KEYS, "url": clickhouse.url},
        folder=tmp_path,
        open_reader=lambda: lambda: look(clickhouse.port),
        make_audit=lambda: Overwritten(KEYS),
        server=clickhouse,
        kills=5,
        seed=53,
        outage_s=4.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 5
    assert report.by_kind().get("server kill", 0) >= 1, str(report)
    assert report.looks > 20
    assert fences(clickhouse.port) == 1
