"""Upserts of a deterministic job under kills of everything, Redis too: every key ends with its last row."""

from pathlib import Path

import pytest

from examples.servers import RedisServer
from tests.integration.ends import redis_counts
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.redis_counts import Overwritten, look

KEYS = 50


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_key_has_its_last_row_after_kills_of_everything(redis: RedisServer, tmp_path: Path) -> None:
    """R1, R3: slots, coordinators, the whole program and the server are killed; zombies are refused by the fence."""
    report = run_under_kills(
        Path(redis_counts.__file__),
        {"rate": 1_000, "keys": KEYS, "url": redis.url},
        folder=tmp_path,
        open_reader=lambda: lambda: look(redis.url),
        make_audit=lambda: Overwritten(KEYS),
        server=redis,
        kills=8,
        seed=31,
        outage_s=4.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 8
    assert report.looks > 20
