"""Points of the protocol at which a checked flow may die."""

from dataclasses import dataclass
from typing import Literal

Victim = Literal["process", "program"]  # "program": the driver, the coordinator and all slots

PHASES = {  # in checkpoint order; each text is about the process that acts
    "fence": "the coordinator has begun a generation in the log and told nobody",
    "restore": "a slot is told what to restore",
    "recover": "a sink is about to finish what the restored checkpoint decided",
    "restored": "a slot has restored its state and not said so yet",
    "start": "a slot is told to start",
    "barrier": "a slot hears of a new checkpoint",
    "pre-commit": "a sink is about to make its rows durable",
    "pre-committed": "a sink has made its rows durable, and nothing is decided",
    "upload": "a slot has uploaded a file of its snapshot",
    "ack": "a slot is about to say that it has taken the snapshot",
    "manifest": "the coordinator has written what the checkpoint consists of, and nothing is decided",
    "decision": "the checkpoint is decided in the log, and nobody knows",
    "completed": "a slot hears that the checkpoint is decided",
    "commit": "a sink is about to commit",
    "committed": "a sink has committed, and nobody knows",
    "commit globally": "a slot is told to make the rows of all subtasks visible",
    "told": "a slot is about to say that everything is committed",
    "delete": "the coordinator deletes files of an older checkpoint",
    "finish": "the coordinator has written the end of the job and told nobody",
}


@dataclass(frozen=True)
class CrashPoint:
    """Occurrence number `nth` (from 1) of `phase` in a run."""

    phase: str
    nth: int
    victim: Victim

    def __str__(self) -> str:
        who = "the process" if self.victim == "process" else "the whole program"
        return f"{who} dies in phase {self.phase!r} (time {self.nth}): {PHASES[self.phase]}"


@dataclass(frozen=True)
class FlowScenario:
    """Run of a flow; `again`: a repetition of the run that gave the expected rows."""

    seed: int
    parallelism: int
    crash: CrashPoint | None = None
    again: bool = False

    @property
    def name(self) -> str:
        parts = [str(self.seed), str(self.parallelism)]
        if self.crash is not None:
            parts += [self.crash.phase, str(self.crash.nth), self.crash.victim]
        elif self.again:
            parts.append("again")
        return "/".join(parts)

    def __str__(self) -> str:
        slots = f"seed {self.seed}, {self.parallelism} slot{'s' if self.parallelism > 1 else ''}, "
        if self.crash is not None:
            return slots + str(self.crash)
        return slots + ("no crash, the same run once more" if self.again else "no crash")


def named(name: str) -> FlowScenario:
    """Raises `ValueError` for an unknown name."""
    parts = name.split("/")
    if len(parts) == 2:
        return FlowScenario(int(parts[0]), int(parts[1]))
    if len(parts) == 3 and parts[2] == "again":
        return FlowScenario(int(parts[0]), int(parts[1]), again=True)
    seed, parallelism, phase, nth, victim = parts
    if phase not in PHASES or victim not in ("process", "program"):
        raise ValueError(name)
    return FlowScenario(int(seed), int(parallelism), CrashPoint(phase, int(nth), victim))  # type: ignore[arg-type]
