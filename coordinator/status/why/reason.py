"""Explanation for people: a sentence, evidence and remedy, for command line, page and REST."""

import msgspec

from barrier_runtime.coordinator.status.statistics import shortened

_LONGEST_LINE = 300


class Reason(msgspec.Struct, frozen=True):
    """`cause`: a word for programs (see `checkpoint.CAUSES`); the rest: for people."""

    cause: str
    sentence: str
    evidence: tuple[str, ...]  # the weightiest first
    remedy: str

    def __str__(self) -> str:
        return "\n".join((self.sentence, *(f"  - {each}" for each in self.evidence), f"  What to do: {self.remedy}"))


class Answer(msgspec.Struct, frozen=True):
    """Answer to "why?". `otherwise`: the answer when nothing known is wrong."""

    reasons: tuple[Reason, ...]
    otherwise: str = ""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.reasons)) or self.otherwise


def line_of(error: str) -> str:
    """Returns the last line of a traceback, else the first line."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    line = "" if not lines else lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return shortened(line.rstrip("."), _LONGEST_LINE)


REMEDIES_FOR_SLOTS = {  # missing ones, by `JobSpec.carrier`
    "processes": "start missing slots with `barrier-runtime slot`, or use a smaller parallelism; a slot that the "
    "program starts says there why it does not come",
    "spark": "every slot occupies a core (spark.task.cpus) for as long as the job runs: stop a job, add executors, or "
    "use a smaller parallelism",
}
REMEDIES_FOR_SPARES = {
    "processes": "a spare is a process that the program starts, and says there why it does not come; or use fewer "
    "spare_slots",
    "spark": "give Spark a core for each spare besides the cores of the slots (parallelism + spare_slots)",
}
SKEWED_SOURCE_REMEDY = "give the source more splits (files, partitions), or `rebalance()` its rows"
