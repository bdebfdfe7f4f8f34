"""`/metrics`: the status of every job as Prometheus' text, as its own library writes it (a test compares the two), in
less than half of that library's time: a large job has thousands of lines, and is asked for every few seconds."""

import math
from collections.abc import Iterable

from barrier_runtime.coordinator.status.exposed import DURATION, FAMILIES, Family, durations, is_told, samples
from barrier_runtime.coordinator.status.status import JobStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(jobs: Iterable[JobStatus], now_ms: int) -> bytes:
    """Of jobs that run, and of those that ended within the last hour."""
    lines: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    for job in jobs:
        if is_told(job, now_ms):
            _add(lines, job)
    return "".join(
        f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n{''.join(told)}"
        for family, told in lines.items()
        if told
    ).encode()


def _add(lines: dict[Family, list[str]], job: JobStatus) -> None:
    name = job.job.translate(_ESCAPES)
    shapes = {family: _shape(family) for family in lines}
    for family, labels, figure in samples(job):
        shape, places = shapes[family]
        values = (name, *(label.translate(_ESCAPES) for label in labels))
        lines[family].append(shape % (*[values[place] for place in places], _number(figure)))
    counted = durations(job)
    bounds = [(str(bound), count) for bound, count in counted.counts]
    lines[DURATION] += [
        f'{DURATION.name}_bucket{{job="{name}",le="{bound}"}} {count}\n'
        for bound, count in [*bounds, ("+Inf", counted.total)]
    ]
    lines[DURATION].append(f'{DURATION.name}_count{{job="{name}"}} {counted.total}\n')
    lines[DURATION].append(f'{DURATION.name}_sum{{job="{name}"}} {counted.sum_s!r}\n')


def _shape(family: Family) -> tuple[str, list[int]]:
    """A line with room for values, and which of them go there: the job's name, then those of the family's labels."""
    names = ("job", *family.labels)
    places = sorted(range(len(names)), key=names.__getitem__)
    given = ",".join(f'{names[place]}="%s"' for place in places)
    return f"{family.name}{{{given}}} %s\n", places


def _number(figure: float) -> str:
    if math.isfinite(figure):
        return repr(figure)
    return "NaN" if math.isnan(figure) else "+Inf" if figure > 0 else "-Inf"
