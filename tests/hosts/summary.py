"""Result of a run as plain data, and the table that people read."""

from collections.abc import Sequence

import msgspec
import numpy as np

from tests.integration.chaos.verdict import Figures

_HEAD = (
    "fault: kind and length; noticed: seconds until the coordinator's status changed; recovery: seconds from the end "
    "of the fault until rows due after that end are visible; quiet: longest time without new output from the fault on"
)
ZEROS = ("lost", "duplicated", "out_of_order", "wrong_state", "torn", "wrong_observations")


class Injury(msgspec.Struct, frozen=True):
    """A fault that was injected, and its effects. Times in seconds."""

    fault: str
    seconds: float
    generations: int  # begun because of the fault
    noticed_s: float | None  # None: not noticed, or the coordinator did not answer
    recovery_s: float
    quiet_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    clean: bool
    why_not: tuple[str, ...]
    injuries: tuple[Injury, ...]
    rows: dict[str, int]  # by sink
    observations: dict[str, int]
    zeros: dict[str, int]  # over all sinks and observations
    daemons: int
    slot_timeout_s: float
    seconds: float
    load_average: float


def zeros(views: Sequence[Figures]) -> dict[str, int]:
    return {name: sum(getattr(each, name) for each in views) for name in ZEROS}


def table(result: Result) -> str:
    columns = (
        f"{'count':>6}{'noticed p50':>13}{'max':>7}{'recovery p50':>14}{'max':>7}{'quiet max':>11}{'generations':>13}"
    )
    lines = [f"{'fault':<44}{columns}"]
    kinds = dict.fromkeys((each.fault, each.seconds) for each in result.injuries)
    for fault, seconds in kinds:
        mine = [each for each in result.injuries if (each.fault, each.seconds) == (fault, seconds)]
        noticed = [each.noticed_s for each in mine if each.noticed_s is not None]
        recovery = [each.recovery_s for each in mine]
        generations = sum(each.generations for each in mine)
        lines.append(
            f"{f'{fault}, {seconds:g} s':<44}{len(mine):>6}{_p50(noticed):>13}{_max(noticed):>7}{_p50(recovery):>14}"
            f"{_max(recovery):>7}{_max([each.quiet_s for each in mine]):>11}{generations:>13}"
        )
    lines += [
        f"({_HEAD})",
        "",
        ", ".join(f"{name} {number}" for name, number in result.zeros.items()),
        f"{sum(result.rows.values()):,} rows of {len(result.rows)} sinks in {sum(result.observations.values()):,} "
        f"observations; {result.daemons} daemons, slot_timeout {result.slot_timeout_s:g} s; {result.seconds:.0f} s, "
        f"load {result.load_average:.1f}",
        "CLEAN" if result.clean else "NOT CLEAN: " + "; ".join(result.why_not),
    ]
    return "\n".join(lines)


def _p50(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f}" if values else "-"


def _max(values: Sequence[float]) -> str:
    return f"{max(values):.1f}" if values else "-"
