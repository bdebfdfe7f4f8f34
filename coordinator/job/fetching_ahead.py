"""What slots fetch of a running job's checkpoints before it moves to them, in rounds. Pure.

A round names a checkpoint, and ends when every slot that gets key groups has fetched those of it. The job works on
meanwhile, so the first round takes as long as it likes; each later one fetches only what came since, and is shorter. As
a virtual machine is copied before it moves: what is left for the pause is what came since the last round.

| the slots have fetched …         | then                                                                     |
|----------------------------------|--------------------------------------------------------------------------|
| less than the round's checkpoint | wait                                                                     |
| less than the newest             | a round more, to the newest                                              |
| the newest, which is not fresh   | a last round, to a checkpoint that is taken for it                       |
| the newest, another is under way | a last round, to that one: sources would stop behind it all the same     |
| the newest, which is fresh       | the sources may stop: little came since                                  |
| the checkpoint of the last round | the same, whatever came since: another would be as long (that of the     |
|                                  | fifth, too: checkpoints come quicker than they can be fetched)           |

From when the checkpoint of the last round is decided no other is taken (`holds_others`): the next one is the one to
move with, and what is new in it came since the last round, not since the one before.

Time that is over ends whatever round there is: in the first the change fails, in any later one the sources stop.
"""

import enum
from dataclasses import dataclass

_FRESH_MS = 300  # a checkpoint that was decided since then
_MOST_ROUNDS = 5


class Next(enum.Enum):
    WAIT = "wait"
    CHECKPOINT = "take a checkpoint, and tell its id to `taken`"
    STOP = "the sources may stop"


@dataclass
class FetchingAhead:
    rounds: int = 0  # begun
    checkpoint: int = 0  # of the round
    was_taken: bool = False  # for the last round

    def next(self, fetched: int, newest: int, age_ms: int, under_way: bool = False, late: bool = False) -> Next:
        """`fetched`: what each slot has. `age_ms`: since the newest checkpoint was decided. `under_way`: another is."""
        if self.rounds == 0:
            self.rounds, self.checkpoint = 1, newest
        if fetched < self.checkpoint:
            return Next.STOP if late and self.rounds > 1 else Next.WAIT
        if self._is_last or late or (fetched >= newest and age_ms <= _FRESH_MS and not under_way):
            return Next.STOP
        if fetched >= newest:
            return Next.CHECKPOINT
        self.rounds, self.checkpoint = self.rounds + 1, newest
        return Next.WAIT

    @property
    def _is_last(self) -> bool:
        return self.was_taken or self.rounds >= _MOST_ROUNDS

    def holds_others(self, newest: int) -> bool:
        """`newest`: decided."""
        return self._is_last and newest >= self.checkpoint

    def taken(self, checkpoint: int) -> None:
        self.rounds, self.checkpoint, self.was_taken = self.rounds + 1, checkpoint, True
