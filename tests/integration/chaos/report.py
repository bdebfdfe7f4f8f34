"""The report of a run: figures as plain data, recovery times, and the table people read."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tests.integration.chaos.nemesis import Strike
from tests.integration.chaos.plan import KILLS

RECOVERY = (
    "from the strike to the commit record after which, in both sinks, every split shows rows that were due after the "
    "strike (restart, takeover: after the end of the old run); only strikes at a healthy job with no other strike "
    "until it had recovered"
)


class RecoveryTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    count: int
    p50: float
    p99: float
    max: float


class Leftovers(msgspec.Struct, frozen=True):
    processes: tuple[str, ...]
    ports: tuple[int, ...]
    directories: tuple[str, ...]
    of_spark: tuple[str, ...]  # directories that Spark leaves when killed; not counted as faults

    @property
    def none(self) -> bool:
        return not (self.processes or self.ports or self.directories)


class SinkFigures(msgspec.Struct, frozen=True):
    rows: int
    observations: int
    wrong_observations: int
    lost: int
    duplicated: int
    out_of_order: int
    wrong_state: int
    torn: int
    examples: tuple[str, ...]


class Unexpected(msgspec.Struct, frozen=True):
    start: int
    code: int
    tail: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    clean: bool
    why_not: tuple[str, ...]
    seed: int
    minutes: float
    burn: int
    load_average: float
    strikes: dict[str, int]
    kills: dict[str, int]
    kills_in_all: int
    kills_during_recovery: int  # when the job was not running, or the status was unknown
    unavailable: dict[str, int]
    spoiled_requests: dict[str, int]
    starts_of_the_program: int
    unexpected_ends: tuple[Unexpected, ...]
    generations: int  # seen by looking once a second
    recovery_seconds: dict[str, RecoveryTimes]
    recovery_means: str = RECOVERY
    compound_recovery_seconds: RecoveryTimes | None
    healthy_within_s: float | None  # after the last fault; None: never
    healthy_bound_s: float
    observed: dict[str, SinkFigures]  # by the reader during the run
    final: dict[str, SinkFigures]  # the whole result, read anew
    unrecorded_files: tuple[str, ...]
    changed_files: tuple[str, ...]
    sinks_agree: bool
    leftovers: Leftovers | None


def recoveries(
    strikes: Sequence[Strike], committed_after: Callable[[int], int | None]
) -> tuple[dict[str, RecoveryTimes], RecoveryTimes | None]:
    """(by kind for single strikes, over all bursts and strikes into recoveries from the last strike of each)."""
    single: dict[str, list[float]] = {}
    compound: list[float] = []
    for number, strike in enumerate(strikes):
        if strike.detail == "nobody there":
            continue
        recovered_ns = committed_after(strike.at_ns)
        next_ns = strikes[number + 1].at_ns if number + 1 < len(strikes) else None
        if recovered_ns is None or (next_ns is not None and next_ns < recovered_ns):
            continue
        seconds = (recovered_ns - strike.at_ns) / 1e9
        if strike.healthy_before:
            single.setdefault(strike.action.kind, []).append(seconds)
        else:
            compound.append(seconds)
    return {kind: _times(each) for kind, each in sorted(single.items())}, _times(compound) if compound else None


def _times(seconds: list[float]) -> RecoveryTimes:
    p50, p99 = np.percentile(seconds, [50, 99])
    return RecoveryTimes(len(seconds), round(float(p50), 2), round(float(p99), 2), round(max(seconds), 2))


def counted(strikes: Sequence[Strike]) -> tuple[dict[str, int], dict[str, int], int]:
    """(strikes by kind, kills by kind, kills while the job was not running)."""
    done = [strike for strike in strikes if strike.detail != "nobody there"]
    kills = [strike for strike in done if strike.action.kind in KILLS and strike.kills]
    during = sum(strike.phase != "running" for strike in kills)
    return (
        dict(Counter(strike.action.kind for strike in done)),
        dict(Counter(strike.action.kind for strike in kills)),
        during,
    )


def table(result: Result) -> str:
    lines = [f"chaos, seed {result.seed}, {result.minutes:g} minutes, {result.burn} busy processes beside it", ""]
    lines.append(f"{'recovery, seconds':<22}{'count':>6}{'p50':>8}{'p99':>8}{'max':>8}")
    for kind, times in result.recovery_seconds.items():
        lines.append(f"{kind:<22}{times.count:>6}{times.p50:>8.2f}{times.p99:>8.2f}{times.max:>8.2f}")
    if result.compound_recovery_seconds is not None:
        times = result.compound_recovery_seconds
        lines.append(f"{'bursts and such':<22}{times.count:>6}{times.p50:>8.2f}{times.p99:>8.2f}{times.max:>8.2f}")
    lines += [f"({result.recovery_means})", ""]
    names = ("rows", "observations", "wrong_observations", "lost", "duplicated", "out_of_order", "wrong_state", "torn")
    views = [
        *((f"observed, {sink}", figures) for sink, figures in result.observed.items()),
        *((f"final, {sink}", figures) for sink, figures in result.final.items()),
    ]
    lines.append(f"{'':<20}" + "".join(f"{title:>18}" for title, _ in views))
    for name in names:
        lines.append(f"{name:<20}" + "".join(f"{getattr(figures, name):>18,}" for _, figures in views))
    healthy = "never" if result.healthy_within_s is None else f"{result.healthy_within_s:.1f} s"
    lines += [
        "",
        f"kills: {result.kills_in_all} ({', '.join(f'{kind} {n}' for kind, n in result.kills.items())}), "
        f"{result.kills_during_recovery} of them while the job was not running",
        f"all strikes: {', '.join(f'{kind} {n}' for kind, n in result.strikes.items())}",
        f"requests to the store spoiled: {', '.join(f'{name} {n}' for name, n in result.spoiled_requests.items())}",
        f"the program was started {result.starts_of_the_program} times, "
        f"ended {len(result.unexpected_ends)} times by itself; generations: {result.generations}",
        f"healthy after the last fault: {healthy} (bound {result.healthy_bound_s:g} s)",
    ]
    if result.unavailable:
        lines.append(f"not possible on this machine: {', '.join(result.unavailable)}")
    if result.leftovers is not None:
        left = result.leftovers
        lines.append(
            f"left behind: {len(left.processes)} processes, {len(left.ports)} ports, "
            f"{len(left.directories)} directories (and {len(left.of_spark)} of Spark's own)"
        )
    lines.append("CLEAN" if result.clean else "NOT CLEAN: " + "; ".join(result.why_not))
    return "\n".join(lines)
