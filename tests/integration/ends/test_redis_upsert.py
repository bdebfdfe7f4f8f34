"""Upserts of a deterministic job under kills of everything, Redis too: every key ends with its last row."""

from pathlib import Path
from typing import Any

import pytest
import redis as client

from examples.servers import RedisServer
from tests.integration.ends import redis_counts
from tests.integration.ends.audit import Latest
from tests.integration.ends.harness import run_under_kills

KEYS = 50


class Overwritten(Latest):
    """A replay writes what was there before, so a key may go back for a while; every value must have the count that
    belongs to it, no key may vanish, and in the end all must have arrived."""

    def observe(self, where: str, seen: Any) -> None:
        self._reached = dict.fromkeys(self._reached, -1)
        super().observe(where, seen)


def look(url: str) -> dict[int, tuple[int, int]]:
    with client.Redis.from_url(url, decode_responses=True, socket_timeout=2) as database:
        keys = list(database.scan_iter(f"{redis_counts.PREFIX}*", count=1_000))
        pipe = database.pipeline(transaction=True)
        for key in keys:
            pipe.hgetall(key)
        rows = pipe.execute()
    names = [int(key.removeprefix(redis_counts.PREFIX)) for key in keys]
    return {name: (int(row["value"]), int(row["n"])) for name, row in zip(names, rows, strict=True)}


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
    assert report.looks > 50
