"""What a person says when a marker is gone that must be there: how far the rows of one subtask are in the topic.

Each loss has a name: whose marker it was, and with which generation it began. An answer is for one loss only. The note
of the generation that acts on it (`kafka/sink/marker_notes`) is written before the marker, so a later loss has another
name: an answer that stays in the program says nothing about that one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from barrier_runtime.state.errors import Corrupt, InvalidJob

LostMarkers: TypeAlias = Mapping[str, int]  # by the name of a loss: the last checkpoint whose rows are in the topic


def checked_answers(given: Any) -> dict[str, int]:
    """Raises `InvalidJob` for what is no `LostMarkers`."""
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
    """`generation`: with which the marker began. `asked`: the checkpoint to be written, `last`: the latest one decided
    of this origin."""

    lineage: str
    subtask: int
    generation: int
    asked: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.lineage}/{self.subtask}/{self.generation}"

    def answer(self, answers: LostMarkers, where: str, topic: str, group: str) -> int:
        """The last checkpoint whose rows are in the topic. Raises `Corrupt` when nobody has said, and `InvalidJob` for
        one that is not decided: rows yet to come would be taken for written."""
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
