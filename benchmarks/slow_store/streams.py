"""Cells of endless streams: checkpoints, commits and visible latency; files, tables, databases."""

import contextlib
import statistics
from collections.abc import Sequence

from benchmarks.slow_store.delay import Delay
from benchmarks.slow_store.job import Checkpoint, Order
from benchmarks.slow_store.place import START_S, Place, Settings, numbers, place, result_of, stream_order, with_fields
from benchmarks.slow_store.requests import Request, counted, in_sequence
from benchmarks.slow_store.result import CellResult, Value
from benchmarks.slow_store.running import running
from benchmarks.slow_store.servers import slow_postgres
from examples.servers import kafka_server
from examples.servers.postgres import postgres_server


def stream(settings: Settings, sink: str, delay: Delay | None, interval_s: float, slots: int) -> CellResult:
    """Generated rows, counted by key, into files or a table on the store, or into Kafka or PostgreSQL.

    Kafka and PostgreSQL answer without delay."""
    with contextlib.ExitStack() as kept:
        where = kept.enter_context(place(settings, delay))
        order = stream_order(settings, where.url, sink, interval_s, slots)
        if sink == "kafka":
            broker = kept.enter_context(kafka_server())
            broker.create_topic("counts", slots)
            order = with_fields(order, target="counts", properties={"bootstrap": broker.bootstrap})
        elif sink == "postgres":
            order = _into_table(order, kept.enter_context(postgres_server()).url)
        return _streamed(settings, order, where)


def postgres_behind(settings: Settings, delay: Delay, interval_s: float) -> CellResult:
    """Rows into PostgreSQL with late answers; checkpoints go to a folder. Figures count waits for answers."""
    with place(settings, None) as where, slow_postgres(delay) as (url, proxy):
        where.proxy = proxy
        order = _into_table(stream_order(settings, where.url, "postgres", interval_s, 2), url)
        return _streamed(settings, order, where)


def _into_table(order: Order, url: str) -> Order:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("create table counts (key bigint, value bigint, n bigint)")
    return with_fields(order, target=url, properties={"table": "counts"})


def _streamed(settings: Settings, order: Order, where: Place) -> CellResult:
    with running(order, settings.folder / "job", settings.tree) as job:
        begin = job.until("begin", START_S + order.warm_up_s)
        before = {"job": job.cpu_s(), **where.cpu_s()}
        end = job.until("end", order.seconds + 60.0)
        after = {"job": job.cpu_s(), **where.cpu_s()}
        resident_mb = job.resident_mb()
    assert end.figures is not None
    took = end.at - begin.at
    done = max(1, end.figures.completed)
    requests = where.requests(begin.at, end.at)
    figures: dict[str, Value] = {
        **phases(end.figures.checkpoints),
        "visible p50": end.figures.visible_p50,
        "visible p99": end.figures.visible_p99,
        "checkpoints": end.figures.completed,
        "behind at the end": end.figures.behind,
        "condition": end.figures.condition,
        "slow commits told": end.figures.slow_commits,
        "job's CPU ms per checkpoint": (after["job"] - before["job"]) * 1000 / done,
        "resident MB": resident_mb,
        "requests per checkpoint": len(requests) / done if where.proxy is not None else None,
        **waits(end.figures.checkpoints, requests),
    }
    return result_of(
        settings,
        figures,
        requests={name: many / done for name, many in numbers(counted(requests)).items()},
        cores={name: (after[name] - before[name]) / took for name in after},
    )


def phases(checkpoints: Sequence[Checkpoint]) -> dict[str, Value]:
    """Medians of completed checkpoints."""
    done = [each for each in checkpoints if each.decision is not None]
    found: dict[str, Value] = {}
    for name in ("total", "ack", "manifest", "decision", "commit"):
        values = [getattr(each, name) for each in done]
        known = [value for value in values if value is not None]
        found["checkpoint" if name == "total" else name] = statistics.median(known) if known else None
    return found


def waits(checkpoints: Sequence[Checkpoint], requests: Sequence[Request]) -> dict[str, Value]:
    """Medians of the longest chains of sequential requests: trigger to decision, and decision to last commit.

    Only checkpoints that do not overlap the checkpoint before count."""
    decided, committed = [], []
    before_ms = 0.0
    for each in sorted(checkpoints, key=lambda found: found.number):
        if each.commit is None:
            continue
        began, decision = each.triggered_ms / 1000, (each.triggered_ms + each.total) / 1000
        end = decision + each.commit / 1000
        if each.triggered_ms >= before_ms:
            decided.append(in_sequence([r for r in requests if began <= r.at and r.end <= decision + 0.002]))
            committed.append(in_sequence([r for r in requests if decision - 0.002 <= r.at and r.end <= end + 0.002]))
        before_ms = end * 1000
    return {
        "waits to the decision": statistics.median(decided) if requests and decided else None,
        "waits of the commit": statistics.median(committed) if requests and committed else None,
    }
