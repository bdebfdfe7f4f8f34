"""What the log says of one job, with the fields that programs look for (`coordinator/json_lines`)."""

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barrier_runtime.coordinator.checkpoints.slow_commits import SlowCommit, slow_sink
from barrier_runtime.coordinator.checkpoints.slow_uploads import SlowUpload, slow_upload
from barrier_runtime.coordinator.status.history import History

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type on Python 3.10


class JobLog(_Adapter):
    """Each record has the job, and its generation once there is one; `extra=` adds to that."""

    def __init__(self, log: logging.Logger, job: str, generation: Callable[[], int | None]) -> None:
        super().__init__(log)
        self._job = job
        self._generation = generation

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = {"job": self._job, "generation": self._generation(), **(kwargs.get("extra") or {})}
        return msg, {**kwargs, "extra": fields}


@dataclass(frozen=True)
class End:
    text: str
    fields: dict[str, Any]


class NewEnds:
    """Checkpoints and subtasks that failed since the last look. What is found at first was told before."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int, int]] | None = None

    def look(self, history: History) -> list[End]:
        """Pure but for what it remembers: the keys of this history."""
        found: dict[tuple[str, int, int], End] = {}
        for failure in history.failures:
            fields = {"generation": failure.token, "slot": failure.slot, "operator": failure.operator or None}
            where = f"slot {failure.slot}, {failure.operator}" if failure.operator else f"slot {failure.slot}"
            first = failure.error.strip().splitlines()[-1] if failure.error.strip() else "no reason was given"
            found[("failure", failure.token, failure.slot)] = End(f"{where} failed: {first}", fields)
        for record in history.history:
            if record.outcome != "complete":
                fields = {"generation": record.token, "checkpoint": record.checkpoint}
                text = f"checkpoint {record.checkpoint} did not complete ({record.outcome}): {record.reason}"
                found[("checkpoint", record.token, record.checkpoint)] = End(text, fields)
        told, self._told = self._told, set(found)
        return [] if told is None else [end for key, end in found.items() if key not in told]


class SlowLines:
    """Commits and uploads that are slower than checkpoints: a warning when that begins, a word when it is over."""

    def __init__(self) -> None:
        self._told: tuple[SlowCommit | SlowUpload, ...] = ()

    def look(self, known: tuple[SlowCommit | SlowUpload, ...]) -> list[tuple[int, str]]:
        """(level, text)."""
        told, self._told = self._told, known
        if known == told:
            return []
        began = [(logging.WARNING, _begun(each)) for each in known if each not in told]
        return began + [(logging.INFO, _over(each)) for each in told if each not in known]


def _begun(slow: SlowCommit | SlowUpload) -> str:
    return f"slow_commit: {slow_sink(slow)}" if isinstance(slow, SlowCommit) else f"slow_upload: {slow_upload(slow)}"


def _over(slow: SlowCommit | SlowUpload) -> str:
    who = f"sink {slow.sink} keeps" if isinstance(slow, SlowCommit) else f"uploads of {slow.operator} keep"
    return f"{who} up with checkpoints"
