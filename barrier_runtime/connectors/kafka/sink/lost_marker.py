"""An operator's answer about a lost marker: how far the rows of a subtask are in the topic.

The name of a loss contains the marker's origin and the generation that began the marker, so an answer is valid for a
single loss. The generation that uses an answer writes a note (`kafka/sink/marker_notes`) before the marker, so a later
loss has another name, and old answers may stay in the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from barrier_runtime.state.errors import Corrupt, InvalidJob

LostMarkers: TypeAlias = Mapping[str, int]  # by name of a loss: the last checkpoint whose rows are in the topic


def checked_answers(given: Any) -> dict[str, int]:
    """Returns `given` as a dict. Raises `InvalidJob` unless it is a `LostMarkers`."""
    right = isinstance(given, Mapping) and all(
        isinstance(name, str) and type(checkpoint) is int and checkpoint >= 0 for name, checkpoint in given.items()
    )
    if not right:
        raise InvalidJob(
            f"KafkaSink: lost_marker={given!r}: pass what the error asks for, a dict such as {{'0a1b/0/3': 17}}"
        )
    return dict(given)


@dataclass(frozen=True)
class Loss:
    """A lost marker. `generation`: the generation that began the marker.

    `asked`: the checkpoint to be written; `last`: the latest decided checkpoint of this origin.
    """

    lineage: str
    subtask: int
    generation: int
    asked: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.lineage}/{self.subtask}/{self.generation}"

    def answer(self, answers: LostMarkers, where: str, topic: str, group: str) -> int:
        """Returns the last checkpoint whose rows are in the topic.

        Raises `Corrupt` without an answer, and `InvalidJob` for an undecided checkpoint, whose later rows would count
        as written.
        """
        checkpoint = answers.get(self.name)
        if checkpoint is None:
            several = f", {self.last} if all up to checkpoint {self.last} are" if self.last > self.asked else ""
            raise Corrupt(
                f"{where}: nobody knows whether checkpoint {self.asked} of subtask {self.subtask} is in topic "
                f"{topic!r}: its marker (consumer group {group!r}) is gone. Markers expire after the brokers' "
                "offsets.retention.minutes, or go with the topic. Look which rows are there, then start the job with "
                f"KafkaSink(lost_marker={{{self.name!r}: n}}): n is {self.asked} if the rows of that checkpoint are "
                f"there{several}, {self.asked - 1} if they are not"
            )
        if checkpoint > self.last:
            raise InvalidJob(
                f"{where}: lost_marker={{{self.name!r}: {checkpoint}}} says more than there can be in topic {topic!r}: "
                f"the last checkpoint decided of subtask {self.subtask} is {self.last}: correct it"
            )
        return checkpoint
