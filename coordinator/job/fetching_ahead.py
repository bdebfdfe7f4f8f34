"""What slots fetch of a running job's checkpoints before it moves to others, in rounds. Pure.

A round names a checkpoint, and ends when every slot has answered: one that gets key groups has fetched those of it, and
no slot of now merges or compacts databases any more. The job works on meanwhile, so the first round takes as long as it
likes; each later one fetches only what came since, and is shorter. As a virtual machine is copied before it moves: what
is left for the pause is what came since the last round.

| the slots have answered for …    | then                                                                     |
|----------------------------------|--------------------------------------------------------------------------|
| less than the round's checkpoint | wait                                                                     |
| less than the newest             | a round more, to the newest                                              |
| the newest, or that of the fifth | a last round, to a checkpoint that begins now: databases that were       |
|                                  | compacted until now are written whole in it, and not in that of the move |
| the checkpoint of the last round | the sources may stop: little came since                                  |

From when the checkpoint of the last round is decided no other is taken (`holds_others`): the next one is the one to
move with, and what is new in it came since the last round, not since the one before.

Time that is over ends whatever round there is: in the first the change fails, in any later one the sources stop.
"""

import enum
from dataclasses import dataclass

_MOST_ROUNDS = 5


class Next(enum.Enum):
    WAIT = "wait"
    CHECKPOINT = "take a checkpoint, and tell its id to `taken`"
    STOP = "the sources may stop"


@dataclass
class FetchingAhead:
    rounds: int = 0  # begun
    checkpoint: int = 0  # of the round
    is_last: bool = False  # the round

    def next(self, fetched: int, newest: int, late: bool = False) -> Next:
        """`fetched`: the checkpoint for which each slot has answered. `newest`: decided."""
        if self.rounds == 0:
            self.rounds, self.checkpoint = 1, newest
        if fetched < self.checkpoint:
            return Next.STOP if late and self.rounds > 1 else Next.WAIT
        if self.is_last or late:
            return Next.STOP
        if fetched >= newest or self.rounds >= _MOST_ROUNDS:
            return Next.CHECKPOINT
        self.rounds, self.checkpoint = self.rounds + 1, newest
        return Next.WAIT

    def holds_others(self, newest: int) -> bool:
        """`newest`: decided."""
        return self.is_last and newest >= self.checkpoint

    def taken(self, checkpoint: int) -> None:
        self.rounds, self.checkpoint, self.is_last = self.rounds + 1, checkpoint, True
