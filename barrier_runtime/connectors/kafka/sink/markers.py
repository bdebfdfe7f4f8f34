"""Notes about the markers of origin subtasks, and an operator's answers about lost markers.

Each new marker has a *note*: an object with the next number and the generation that wrote the note. The first note is
written between the first marker and the first rows, each other note before the marker. Notes never change and are read
by name from number 1 on, because a listing may lack notes.

Notes of cancelled jobs stay: names lack the generation by which the coordinator deletes. A new note deletes notes of
earlier builds (one per generation, with the limits).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.connectors.kafka.sink.topic_limits import KafkaLimits, decode_limits, encode_limits
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt, Fenced, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import Format, VersionedDecoder

LostMarkers: TypeAlias = Mapping[str, int]  # by name of a loss: the last checkpoint whose rows are in the topic


def checked_answers(given: Any) -> dict[str, int]:
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
    """A lost marker, begun by `generation`.
    `asked`: the checkpoint to write; `last`: the origin's latest decided checkpoint. The name contains the generation,
    so an answer is valid for a single loss.
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
        """Last checkpoint whose rows are in the topic.

        Raises `Corrupt` without an answer, and `InvalidJob` for an undecided checkpoint: later rows would count as
        written.
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


NOTE_VERSION = 3  # versions 1 and 2 are the limits in notes of earlier builds


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    generation: int


_FORMAT = Format("{}", NOTE_VERSION, damaged="restore it from a backup", oldest=NOTE_VERSION)
_NOTE = VersionedDecoder(_FORMAT, msgspec.json.Decoder(_Note))
_NO_GENERATION = 0  # in names; unused by earlier builds
_LIMITS = 0  # instead of a note's number


class MarkerNotes:
    def __init__(self, context: SinkContext, where: str) -> None:
        self._context = context
        self._store = context.job_store
        self._paths = Paths(context.job)
        self._where = where

    def generation(self, lineage: str, subtask: int) -> int | None:
        """Generation that began the origin's last marker; None if there never was a marker."""
        noted = [self._last(lineage, subtask)[1], *self._of_earlier_builds(lineage, subtask)]
        return max(noted) or None

    def first(self, lineage: str, subtask: int) -> None:
        if self._read(lineage, subtask, 1) is None:
            self._put(lineage, subtask, 1)

    def another(self, lineage: str, subtask: int) -> None:
        """Records a replacement of a lost marker, which changes the name of a later loss. Idempotent."""
        number, generation = self._last(lineage, subtask)
        if generation != self._context.token:
            self._refuse_if_later(generation)
            self._put(lineage, subtask, number + 1)

    def _last(self, lineage: str, subtask: int) -> tuple[int, int]:
        number = generation = 0
        while (found := self._read(lineage, subtask, number + 1)) is not None:
            number, generation = number + 1, found
        return number, generation

    def _read(self, lineage: str, subtask: int, number: int) -> int | None:
        key = self._key(lineage, subtask, number)
        data = get_or_none(self._store, key)
        return None if data is None else _NOTE.decode(data, f"{self._store.url}/{key}").generation

    def _put(self, lineage: str, subtask: int, number: int) -> None:
        key = self._key(lineage, subtask, number)
        note = msgspec.json.encode(_Note(NOTE_VERSION, self._context.token))
        if self._store.put_if_absent(key, note) is not PutOutcome.CREATED:
            generation = self._read(lineage, subtask, number)
            if generation is None:
                raise Unavailable(f"{self._where}: nobody knows whether {self._store.url}/{key} was put: tried again")
            self._refuse_if_later(generation)
        self._store.delete(list(self._of_earlier_builds(lineage, subtask).values()))

    def _refuse_if_later(self, generation: int) -> None:
        if generation > self._context.token:
            raise Fenced(
                f"{self._where}: generation {generation} has begun a marker; generation {self._context.token} stops"
            )

    def _key(self, lineage: str, subtask: int, number: int) -> str:
        return self._paths.delivery_note(self._context.sink, lineage, subtask, number, _NO_GENERATION)

    def _of_earlier_builds(self, lineage: str, subtask: int) -> dict[int, str]:
        prefix = self._paths.delivery_notes_prefix(self._context.sink, lineage, subtask)
        keys = [info.key for info in self._store.list(prefix)]
        named = [(said[1], key) for key in keys if (said := self._paths.delivery_of(key)) is not None]
        return {generation: key for generation, key in named if generation != _NO_GENERATION}

    def keep_limits(self, lineage: str, subtask: int, limits: KafkaLimits) -> None:
        self._store.put(self._key(lineage, subtask, _LIMITS), encode_limits(limits))

    def limits(self, lineage: str, subtask: int) -> KafkaLimits | None:
        key = self._key(lineage, subtask, _LIMITS)
        data = get_or_none(self._store, key)
        if data is None and (earlier := self._of_earlier_builds(lineage, subtask)):
            key = earlier[max(earlier)]
            data = self._store.get(key)
        return None if data is None else decode_limits(data, f"{self._store.url}/{key}")
