"""Runs a job with five sinks through rescales, replaces and kills, and reads every target all the time.

    python -m tests.integration.ends.run_moves --rescales 20 --replaces 5 --kills 12 --seed 1

The targets are Kafka, PostgreSQL, Redis, a Delta table and files, on real servers. Prints the findings of each target:
every figure but `rows` and `looks` has to be 0. Exit code 1 if a figure is not.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.servers import PostgresServer, kafka_server, postgres_server, redis_server
from tests.integration.ends import five_sinks
from tests.integration.ends.harness import Report, run_under_kills
from tests.integration.ends.kafka_feed import PARTITIONS
from tests.integration.ends.moves import plan_moves
from tests.integration.ends.postgres_counts import make_table
from tests.integration.ends.several import EachTarget

RATE = 500


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[tuple[dict[str, Any], PostgresServer]]:
    """The arguments of `five_sinks.build`, and the server that may be struck."""
    with kafka_server() as kafka, postgres_server() as postgres, redis_server() as redis:
        kafka.create_topic(five_sinks.TOPIC, PARTITIONS)
        make_table(postgres.url)
        settings = {
            "rate": RATE,
            "bootstrap": kafka.bootstrap,
            "postgres": postgres.url,
            "redis": redis.url,
            "delta": str(folder / "delta"),
            "files": str(folder / "files"),
        }
        yield settings, postgres


def moved_under_kills(
    folder: Path, rescales: int, replaces: int, kills: int, seed: int, *, postgres_every: int = 10
) -> tuple[Report, EachTarget]:
    judges: list[EachTarget] = []

    def judge() -> EachTarget:
        judges.append(five_sinks.judge_of_all())
        return judges[-1]

    with targets(folder) as (settings, postgres):
        report = run_under_kills(
            Path(five_sinks.__file__),
            settings,
            folder=folder,
            open_reader=lambda: five_sinks.looks_at_all(settings, postgres_every).look,
            make_audit=judge,
            server=postgres,
            seed=seed,
            moves=plan_moves(seed, rescales, replaces, kills, server=True),
            options={"master": "local[12,16]"},  # a replace has all slots twice for a while
        )
    return report, judges[-1]  # the fresh reader of the end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rescales", type=int, default=20)
    parser.add_argument("--replaces", type=int, default=5)
    parser.add_argument("--kills", type=int, default=12, help="changes during which something is struck")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="barrier-moves-") as folder:
        report, judged = moved_under_kills(Path(folder), chosen.rescales, chosen.replaces, chosen.kills, chosen.seed)
    print(f"{'target':10} {'rows':>8} {'lost':>5} {'doubled':>8} {'torn':>5} {'out of order':>13} {'wrong state':>12}")
    for name, figures in judged.by_target.items():
        print(
            f"{name:10} {figures.rows:8} {figures.lost:5} {figures.duplicated:8} {figures.torn:5} "
            f"{figures.out_of_order:13} {figures.wrong_state:12}"
        )
    pauses = sorted(each.pause_ms for each in report.moves if each.pause_ms is not None)
    print(f"{report.moved()}, {report.by_kind()} struck, pauses (ms) {pauses}")
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
