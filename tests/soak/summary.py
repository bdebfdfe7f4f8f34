"""Result of a soak as plain data, and the table that people read. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tests.soak.samples import Minute, Sampled
from tests.soak.slopes import Life, Limit, Slope, slope
from tests.soak.workload import INTERVAL_S

_OF_A_PROCESS: dict[str, Limit] = {
    "resident_mb": Limit(0.03, 3.0),
    "descriptors": Limit(0.02, 1.0),
    "threads": Limit(0.02, 1.0),
}
_LOG_RECORDS = 3600 / INTERVAL_S + 180  # an hour's checkpoints and generations: each has a record for ever
_OF_THE_JOB: dict[str, tuple[Callable[[Minute], float | None], Limit]] = {
    "objects": (lambda minute: minute.stored.objects, Limit(0.03, 10.0)),
    "objects_mb": (lambda minute: minute.stored.objects_mb, Limit(0.03, 1.0)),
    "log_records": (lambda minute: minute.stored.log_records, Limit(0.0, _LOG_RECORDS)),
    "local_mb": (lambda minute: minute.stored.local_mb, Limit(0.03, 3.0)),
    "p50_ms": (lambda minute: None if minute.latency is None else minute.latency.p50, Limit(0.1, 50.0)),
    "p99.9_ms": (lambda minute: None if minute.latency is None else minute.latency.p999, Limit(0.1, 1_000.0)),
}
SHORTEST_H = 0.25  # of samples: processes grow while they warm up
_ROLES = ("slot", "driver", "coordinator", "other")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    clean: bool
    why_not: tuple[str, ...]
    hours: float
    rate: float
    capacity: float | None  # rows per second; None: the rate was given
    seed: int
    kills: dict[str, int]
    starts_of_the_program: int
    generations: int
    rows: dict[str, int]  # by output
    findings: dict[str, int]
    minutes: tuple[Minute, ...]
    output_files: int
    told: tuple[str, ...]  # machine, command and load


class Figure(msgspec.Struct, frozen=True):
    name: str
    slope: Slope | None
    verdict: str


def figures(minutes: Sequence[Minute], warm_up_s: float) -> Iterator[Figure]:
    """The first `warm_up_s` of a process, and of the job, do not count."""
    for role in _ROLES:
        lives = _lives(minutes, role, warm_up_s)
        for name, limit in _OF_A_PROCESS.items() if lives else ():
            found = [[(at_s / 3600, getattr(each, name)) for at_s, each in life] for life in lives]
            yield _figure(f"{role}: {name}", found, limit)
    warm = [minute for minute in minutes if minute.at_s >= warm_up_s]
    for name, (value, limit) in _OF_THE_JOB.items():
        life = [(minute.at_s / 3600, found) for minute in warm if (found := value(minute)) is not None]
        yield _figure(name, [life], limit)


def table(result: Result, warm_up_s: float) -> str:
    lines = [
        f"{result.hours:g} h, {result.rate:,.0f} rows/s"
        + (" (given)" if result.capacity is None else f" of {result.capacity:,.0f} that the job can take")
        + f", seed {result.seed}, {sum(result.kills.values())} kills: "
        + ", ".join(f"{number} {kind}" for kind, number in result.kills.items()),
        f"{result.starts_of_the_program} starts of the program, {result.generations} generations, "
        + ", ".join(f"{number:,} {name}" for name, number in result.rows.items()),
        "",
        "| figure | mean | per hour | samples | verdict |",
        "|---|---|---|---|---|",
    ]
    for each in figures(result.minutes, warm_up_s):
        if each.slope is None:
            lines.append(f"| {each.name} | | | | {each.verdict} |")
            continue
        grown = f"{each.slope.per_hour:+,.2f} ± {2 * each.slope.error:,.2f}"
        lines.append(f"| {each.name} | {each.slope.mean:,.1f} | {grown} | {each.slope.samples} | {each.verdict} |")
    lines += [
        f"(samples per minute; the first {warm_up_s:.0f} s of a process do not count; ± two standard errors; processes "
        "of a role have a common slope and levels of their own)",
        f"{result.output_files} files of output, which nothing deletes; the log has a record for ever per checkpoint "
        f"and generation: flat means at most {_LOG_RECORDS:,.0f} an hour",
        ", ".join(f"{name} {number}" for name, number in result.findings.items()),
        *result.told,
        "CLEAN" if result.clean else "NOT CLEAN: " + "; ".join(result.why_not),
    ]
    return "\n".join(lines)


def minute_line(minute: Minute) -> str:
    late, kept = minute.latency, minute.stored
    parts = [
        f"{minute.at_s / 60:6.1f} min  {minute.rows:,} rows",
        "no new row" if late is None else f"p50 {late.p50:,.0f} ms, p99.9 {late.p999:,.0f} ms",
        "MB: " + ", ".join(f"{each.role} {each.resident_mb:.0f}" for each in minute.processes),
        f"{kept.objects} objects of {kept.objects_mb:.1f} MB, {kept.log_records} in the log",
        f"local {kept.local_mb:.1f} MB",
        f"{minute.kills} kills, load {minute.load:.1f}",
    ]
    return "; ".join(parts)


def _figure(name: str, lives: Sequence[Life], limit: Limit) -> Figure:
    found = slope(lives)
    times = [at_h for life in lives for at_h, _ in life]
    short = found is None or max(times) - min(times) < SHORTEST_H
    return Figure(name, found, "too short" if found is None or short else found.verdict(limit))


def _lives(minutes: Sequence[Minute], role: str, warm_up_s: float) -> list[list[tuple[float, Sampled]]]:
    lives = defaultdict[tuple[int, int], list[tuple[float, Sampled]]](list)
    for minute in minutes:
        for each in minute.processes:
            if each.role == role and each.age_s >= warm_up_s:
                lives[each.pid, each.started].append((minute.at_s, each))
    return list(lives.values())
