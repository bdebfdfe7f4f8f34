"""Records what `why` was not tuned on: other flows, rates, intervals, stores and parallelism than `record.py` has.

    python tests/recorded_checkpoints/held_out.py [cause …]

Three slots, checkpoints in S3 behind a proxy that can delay requests (`tests/integration/chaos/store_proxy`), two
sinks, windows in event time beside state per key; each cause has a separate run, and there are two normal runs.
Writes `held_out/<cause>.json.xz`.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import record
from record import HERE, PLANTED, file, keep, stalled, starved, until

from barrier_runtime import Dataflow, Tumbling, count, sum_
from examples.servers import s3_server
from tests.integration.chaos.store_proxy import Fault, ProxyControl, store_proxy

import held_out_planted  # isort: skip  # found by the path that `record` sets

CAUSES = (
    *("normal", "normal-quick", "step", "skew", "precommit", "store", "large", "slow-keyed", "starved", "stalled"),
    "partition",
)
BEFORE = 25
STORE_DELAY_S = 0.45
WORST_MS = 1_200
KEPT_OF_A_CAUSE = 40
SLOTS = 3


def orders(name: str, out: Path) -> Dataflow:
    """2,400 rows/s by a Python function, state per key into one sink, sums of seconds into another."""
    made = Dataflow(name)
    rows = made.rate("orders", 2_400, 10**9, keys=3_000, event_time="intended_at").map(
        held_out_planted.price,
        schema={"key": "int64", "value": "int64", "price": "int64", "intended_at": "timestamp[ns, UTC]"},
    )
    baskets = rows.key_by("key").process(
        "baskets", held_out_planted.Basket, schema={"key": "int64", "value": "int64", "total": "int64"}
    )
    baskets.sink("baskets-out", held_out_planted.Sink(str(out / "baskets")))
    sums = (
        rows.key_by("key")
        .window("sums", Tumbling(timedelta(seconds=1)), event_time="intended_at")
        .aggregate(n=count(), price=sum_("price"))
    )
    sums.sink("sums-out", held_out_planted.Sink(str(out / "sums")))
    return made


def ticks(name: str, out: Path) -> Dataflow:
    """9,000 rows/s without user functions: running counts, a file sink."""
    made = Dataflow(name)
    rows = made.rate("ticks", 9_000, 10**9, keys=500)
    rows.key_by("key").aggregate("counts", n=count()).sink("out", held_out_planted.Sink(str(out)))
    return made


@contextlib.contextmanager
def delayed(proxy: ProxyControl) -> Iterator[None]:
    proxy.set(Fault("delay", delay_s=STORE_DELAY_S))
    yield
    proxy.set(Fault())


def one(spark: Any, cause: str, proxy: ProxyControl, url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="held-out-") as folder:
        make, interval = (ticks, 0.2) if cause == "normal-quick" else (orders, 0.7)
        run = record.Run(
            spark,
            make(f"held-out-{cause}", Path(folder) / "out"),
            f"{url}/{cause}",
            parallelism=SLOTS,
            interval=interval,
        )
        with run.handle:
            until(lambda: run.checkpoints().completed >= 5, 300)
            run.completed(105 if cause.startswith("normal") else BEFORE)
            first = run.last() + 1
            if cause in ("starved", "stalled", "store"):
                slow = {
                    "starved": lambda: starved(run, 2),
                    "stalled": lambda: stalled(run, 2, 2.2),
                    "store": lambda: delayed(proxy),
                }[cause]
                with slow():
                    until(lambda: cause == "stalled" or run.worst_since(first) >= WORST_MS)
                run.completed(1)
            elif not cause.startswith("normal"):
                with file(cause):
                    until(lambda: not (PLANTED / cause).exists() or run.worst_since(first) >= WORST_MS)
                    if cause == "partition":
                        time.sleep(held_out_planted.PARTITION_S)
                run.completed(2)
            keep(run, cause, first, HERE / "held_out", 100 if cause.startswith("normal") else KEPT_OF_A_CAUSE)


def main(causes: list[str]) -> None:
    from barrier_runtime.spark.session import make_session

    with s3_server() as server, store_proxy(server.port) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint  # before Spark's JVM and the coordinator are started
        spark = make_session("held-out", "local[4]", {})
        spark.sparkContext.setLogLevel("OFF")
        try:
            for cause in causes or CAUSES:
                one(spark, cause, proxy, server.url)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
