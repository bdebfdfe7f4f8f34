"""A soak with commits slower than the interval: memory, staged objects, open commits, latency.

All of these must stay bounded. Rows go to files on a store so late that a commit takes longer than the time between two
checkpoints, during the whole run. Checkpoints go to a folder, so that they complete in time. The program prints a line
every minute; at the end it prints the slope of each figure over the second half, per minute.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.machine import describe
from benchmarks.slow_store.emulator import EmulatedS3
from benchmarks.slow_store.job import Event, Order
from benchmarks.slow_store.place import Settings, place
from benchmarks.slow_store.running import running

INTERVAL_S = 0.1
_LATE = 120.0  # seconds within which a soak must end, once the length is over


class Minute(msgspec.Struct, frozen=True):
    at_s: float
    resident_mb: float
    staged: int  # objects below `_staging/` that were written and not removed yet
    behind: int  # checkpoints that are complete and not visible
    checkpoints_per_s: float
    commit_ms: float | None
    p50: float | None
    p99: float | None
    condition: str


def soak(settings: Settings, minutes: float, out: Path) -> int:
    """Prints and stores the summary. Returns 1 if a figure grew without bound."""
    found: list[Minute] = []
    lines = [
        "| min | resident MB | staged objects | behind | checkpoints/s | commit ms | visible p50 | p99 | condition |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    print(describe(), *lines, sep="\n", flush=True)
    with place(settings, None) as folder, place(settings, settings.delay) as where:
        order = Order(
            store=f"{folder.url}/ck",
            target=f"{where.url}/out",
            interval_s=INTERVAL_S,
            rate=settings.rate,
            warm_up_s=settings.warm_up_s,
            seconds=minutes * 60,
            minute_s=min(60.0, minutes * 15),
        )
        with running(order, settings.folder / "job", settings.tree) as job:
            begin = job.until("begin", 180.0)
            until = time.monotonic() + minutes * 60 + _LATE
            last, completed = begin, 0
            while time.monotonic() < until:
                event = job.next(until - time.monotonic())
                if event is None or event.kind not in ("minute", "end"):
                    continue
                minute = _minute(event, begin, last, completed, job.resident_mb(), _staged(where.emulator))
                assert event.figures is not None
                last, completed = event, event.figures.completed
                found.append(minute)
                lines.append(_line(minute))
                print(lines[-1], flush=True)
                if event.kind == "end":
                    break
    told, bounded = verdict(found)
    lines += ["", told, "", describe(), ""]
    print(told)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines))
    return 0 if bounded else 1


def _minute(event: Event, begin: Event, last: Event, completed: int, resident_mb: float, staged: int) -> Minute:
    figures = event.figures
    assert figures is not None
    commits = [each.commit for each in figures.checkpoints if each.commit is not None]
    return Minute(
        at_s=event.at - begin.at,
        resident_mb=resident_mb,
        staged=staged,
        behind=figures.behind,
        checkpoints_per_s=(figures.completed - completed) / max(0.001, event.at - last.at),
        commit_ms=statistics.median(commits) if commits else None,
        p50=figures.visible_p50,
        p99=figures.visible_p99,
        condition=figures.condition,
    )


def _staged(emulator: EmulatedS3 | None) -> int:
    import boto3

    assert emulator is not None
    pages = boto3.client("s3", endpoint_url=emulator.endpoint).get_paginator("list_objects_v2")
    found = pages.paginate(Bucket=emulator.bucket, Prefix="out/_staging/")
    return sum(page.get("KeyCount", 0) for page in found)


def _line(minute: Minute) -> str:
    def told(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    cells = [f"{minute.at_s / 60:.1f}", told(minute.resident_mb), str(minute.staged), str(minute.behind)]
    cells += [f"{minute.checkpoints_per_s:.1f}", told(minute.commit_ms), told(minute.p50), told(minute.p99)]
    return "| " + " | ".join([*cells, minute.condition]) + " |"


# Growth per minute that counts: a share of the mean, with a lower limit.
_MAY_GROW = {"resident_mb": (0.02, 2.0), "staged": (0.05, 2.0), "behind": (0.05, 0.5), "p50": (0.05, 50.0)}
_MAY_GROW |= {"p99": (0.05, 100.0)}


def verdict(minutes: Sequence[Minute], interval_s: float = INTERVAL_S) -> tuple[str, bool]:
    """(Slopes of the second half, whether all are in bounds and commits were slower than the interval)."""
    half = [minute for minute in minutes if minute.at_s >= minutes[-1].at_s / 2]
    told, bounded = [], len(half) > 1
    for name, (share, least) in _MAY_GROW.items():
        pairs = [(each.at_s / 60, value) for each in half if (value := getattr(each, name)) is not None]
        if len(pairs) < 2:
            told.append(f"{name}: not known")
            continue
        slope = statistics.linear_regression(*zip(*pairs, strict=True)).slope
        mean = statistics.mean(value for _, value in pairs)
        grows = slope > max(least, share * mean)
        bounded = bounded and not grows
        told.append(f"{name} {slope:+,.2f} of {mean:,.0f}{' (grows)' if grows else ''}")
    commits = [minute.commit_ms for minute in half if minute.commit_ms is not None]
    slower = bool(commits) and statistics.median(commits) > interval_s * 1000
    said = "bounded" if bounded else "NOT bounded"
    if not slower:
        said += f", but commits took less than the interval of {interval_s * 1000:.0f} ms: give a longer --delay"
    return f"per minute, second half: {'; '.join(told)}: {said}", bounded and slower
