"""Counted numbers reach a table of MariaDB through kills of everything, the database too, as whole checkpoints."""

from pathlib import Path

import pytest

from examples.servers import MariaServer
from tests.integration.ends import mysql_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.mysql_counts import KEYS, Reader, left_over, make_table


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_table_is_filled_through_kills_of_everything_in_whole_checkpoints(
    mariadb: MariaServer, tmp_path: Path
) -> None:
    """R3, T3, T12: slots, coordinators, the program and the server are killed."""
    make_table(mariadb)
    report = run_under_kills(
        Path(mysql_counts.__file__),
        {"rate": 1_000, "url": mariadb.url},
        folder=tmp_path,
        open_reader=lambda: Reader(mariadb).look,
        make_audit=lambda: Numbers(KEYS, together=True),
        server=mariadb,
        kills=5,
        seed=41,
        outage_s=4.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 5
    assert report.by_kind().get("server kill", 0) >= 1, str(report)
    assert report.looks > 20
    assert left_over(mariadb) == []
