"""Contract of a carrier, which runs slots.

| call | Spark | processes |
|---|---|---|
| `submit` | a job with a task per slot, which Spark replaces alone | a process per slot, replaced when it dies |
| `cancel` | the job group is cancelled | the processes of the group are killed |
| `kill` | the task attempt is killed and starts again | the process is killed and starts again |
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from barrier_runtime.connectors.memory.batch_function import MakeFrame
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.spark.task import SlotSettings


class Carrier(Protocol):
    """Any thread may call any method.

    A group names the slots of one `submit`; the names of a job's groups begin with the same text.
    """

    def submit(self, settings: SlotSettings, slots: Sequence[int], group: str, hosts: Sequence[str] = ()) -> None:
        """Runs `slots` until each has left, and replaces dead slots. Raises if that becomes impossible.

        `hosts`: preferred.
        """

    def cancel(self, group: str) -> None:
        """Ends the slots of `group` without waiting, also of a submission that has not begun."""

    def kill(self, attempt: int, reason: str) -> bool:
        """Ends a slot; a replacement starts. False: no such slot runs."""
        ...

    def elsewhere(self, attempt: int) -> Sequence[str]:
        """Hosts with room for a slot, except that of `attempt`, unless only the executor of `attempt` ends."""
        ...

    def leaving(self, attempts: Collection[int]) -> Mapping[int, str]:
        """Those of `attempts` whose executor Spark decommissions, with the host."""
        ...

    @property
    def one_host(self) -> bool:
        """Returns whether slots never have another host."""
        ...

    def trouble(self) -> Exception | None:
        """Reason why no slot can run any more, or None."""

    def room(self, groups: str) -> "RoomOfCarrier | None":
        """Free cores for the job whose groups begin with `groups`; None if unknown."""

    def described(self, slots: int) -> str:
        """Text about the cores, for slots that did not register."""
        ...

    @property
    def frames(self) -> MakeFrame:
        """Makes data frames for functions of `for_each_batch`."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Variables that slots need and their processes do not inherit."""
        ...

    def close(self) -> None:
        """Ends the processes and sessions that this program started."""


class RoomOfCarrier(Protocol):
    def look(self) -> Room:
        """Returns the room of the job."""
        ...

    def complete(self) -> None:
        """Records that no slot is missing: `look` then omits earlier failures."""
