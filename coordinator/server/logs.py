"""Log output of daemon and jobs, with possible secrets masked."""

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload, slow_sink, slow_upload
from barrier_runtime.coordinator.status.history import History

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type on Python 3.10
import logging
import sys
import traceback
from pathlib import Path

from barrier_runtime.coordinator.json_lines import JsonLines, Masked


def configure(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    lines = (
        JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    handler.setFormatter(Masked(lines))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("asyncio", "uvicorn", "botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def place_of(error: Exception) -> str:
    """Type and place of an error for an answer: the error's text may contain a secret."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {at.name} ({Path(at.filename).name}:{at.lineno})"


class JobLog(_Adapter):
    """Adds the job, and the generation once known, to each record; `extra=` adds further fields."""

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


class NewFailures:
    """Failures since the last look; none at first: a predecessor logged old failures."""

    def __init__(self) -> None:
        self._before: set[tuple[str, int, int]] | None = None

    def look(self, history: History) -> list[End]:
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
        before, self._before = self._before, set(found)
        return [] if before is None else [end for key, end in found.items() if key not in before]


class SlowLines:
    """A warning when slow commits or uploads begin, an info at the end."""

    def __init__(self) -> None:
        self._before: tuple[SlowCommit | SlowUpload, ...] = ()

    def look(self, known: tuple[SlowCommit | SlowUpload, ...]) -> list[tuple[int, str]]:
        before, self._before = self._before, known
        if known == before:
            return []
        began = [(logging.WARNING, _begun(each)) for each in known if each not in before]
        return began + [(logging.INFO, _over(each)) for each in before if each not in known]


def _begun(slow: SlowCommit | SlowUpload) -> str:
    return f"slow_commit: {slow_sink(slow)}" if isinstance(slow, SlowCommit) else f"slow_upload: {slow_upload(slow)}"


def _over(slow: SlowCommit | SlowUpload) -> str:
    who = f"sink {slow.sink} keeps" if isinstance(slow, SlowCommit) else f"uploads of {slow.operator} keep"
    return f"{who} up with checkpoints"
