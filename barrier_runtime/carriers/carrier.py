"""Contract of what runs slots: tasks of Spark, or processes of this machine.

| call | Spark | processes |
|---|---|---|
| `submit` | a job with a task per slot, which Spark replaces alone | a process per slot, replaced when it dies |
| `cancel` | the job group is cancelled | the processes of the group are killed |
| `kill` | the task attempt is killed and starts again | the process is killed and starts again |
"""

from collections.abc import Sequence
from typing import Protocol

from barrier_runtime.connectors.memory.batch_function import MakeFrame
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.spark.task import SlotSettings


class Carrier(Protocol):
    """Runs slots. Any thread may call any method.

    A group names the slots of one `submit`; the names of a job's groups begin with the same text.
    """

    def submit(self, settings: SlotSettings, slots: Sequence[int], group: str) -> None:
        """Runs `slots` until each has left, and replaces a slot that dies. Raises if that becomes impossible."""

    def cancel(self, group: str) -> None:
        """Ends the slots of `group` without waiting, also of a submission that has not begun yet."""

    def kill(self, attempt: int, reason: str) -> bool:
        """Ends a slot by the number of its attempt; a replacement starts. False if no such slot runs."""
        ...

    def trouble(self) -> Exception | None:
        """Reason why no slot can run any more; None while slots can run."""

    def room(self, groups: str) -> "RoomOfCarrier | None":
        """View of free cores for the job whose groups begin with `groups`; None if nothing is known."""

    def described(self, slots: int) -> str:
        """Describes the cores, for `slots` slots that did not register."""
        ...

    @property
    def frames(self) -> MakeFrame:
        """Makes the data frames for functions of `for_each_batch`."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Variables that slots need and their processes do not inherit."""
        ...

    def close(self) -> None:
        """Ends what this program started to carry slots."""


class RoomOfCarrier(Protocol):
    """Cores for the slots of one job."""

    def look(self) -> Room:
        """Cores, their holders, and slots that are starting."""
        ...

    def complete(self) -> None:
        """No slot is missing: earlier troubles do not explain a later loss."""
