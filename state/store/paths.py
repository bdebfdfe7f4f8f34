"""Builds and checks every object key of a job; no other module builds keys.

<job>/log/<position, 20 digits>.json             a log record; never changes
<job>/checkpoints/<id>-<token>/manifest.json     written before the decision that names the manifest
<job>/data/<token>/<slot uuid>/<uuid>            snapshot files; a name is never used twice
<job>/write-ahead/<sink>/staged/<token>/...      undelivered rows of a sink; the sink deletes them
<job>/write-ahead/<sink>/delivered/<lineage>/... delivered checkpoints, for targets that do not remember them
<job>/write-ahead/<sink>/asked/<lineage>/...     batches that wait for the program's function; the sink deletes them
<job>/sources/<source>/current.json              the valid `<id>` of the line below; put once, or again by a fresh start
<job>/sources/<source>/<id>/<file>               rows of a source, stored before the job starts
<job>/pins/<checkpoint>-<seconds>-<id>           a reader needs that or a later checkpoint for that time
<job>/pins/used                                  a pin has existed: deletions list pins only then
<job>/lease.json                                 the daemon expected to lead; written repeatedly
<job>/log-hint.json                              a recent log position; written repeatedly
<job>/history.json                               counters and past checkpoints; written repeatedly
<job>/probe/<id>-...                             objects of the probe at a start, which deletes them
<job>/probe/proven.json                          the store has passed: later starts skip the probe
"""

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.texts import shortened

MAX_KEY_BYTES = 1_024
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LOG_RECORD = re.compile(r"([0-9]{20})\.json")
_NUMBER = r"(0|[1-9][0-9]{0,18})"
_MANIFEST = re.compile(_NUMBER + "-" + _NUMBER + r"/manifest(?:-" + _SEGMENT.pattern + r")?\.json")
_STAGED_ROWS = re.compile(
    _SEGMENT.pattern + "/staged/" + _NUMBER + "/" + _NUMBER + "-" + _NUMBER + "-" + _SEGMENT.pattern
)
_DELIVERY_NOTE = re.compile(
    _SEGMENT.pattern + "/delivered/" + _SEGMENT.pattern + "/" + _NUMBER + "/([0-9]{20})-" + _NUMBER
)
_ASKED_BATCH = re.compile(_SEGMENT.pattern + "/asked/" + _SEGMENT.pattern + "/([0-9]{20})-" + _NUMBER)
_STAGED_SOURCE = re.compile(_SEGMENT.pattern + "/(current[.]json|" + _SEGMENT.pattern + "/" + _SEGMENT.pattern + ")")
_OF_SAVEPOINTS = "(?!(savepoint[.]json|claimed-by)$)"  # excludes a savepoint's own files
_DATA_FILE = re.compile(_NUMBER + "/" + _SEGMENT.pattern + "/" + _OF_SAVEPOINTS + _SEGMENT.pattern)


def check_key(key: str) -> str:
    """Raises `InvalidJob` unless `key` is safe and relative."""
    reason = _why_unsafe(key)
    if reason:
        raise InvalidJob(
            f"object key {shortened(key)!r} {reason}: use a relative key of safe "
            f"segments, at most {MAX_KEY_BYTES} bytes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """As `check_key`; may be empty or end with a slash."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else prefix)
    return prefix


def _why_unsafe(key: str) -> str:
    if not key:
        return "is empty"
    if key.startswith("/"):
        return "is absolute"
    if key.endswith("/"):
        return "ends with a slash"
    if "\\" in key:
        return "contains a backslash"
    if _CONTROL.search(key):
        return "contains a control character"
    if _SURROGATE.search(key):
        return "is not valid Unicode"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes"
    for segment in key.split("/"):
        if not segment:
            return "has an empty segment"
        if segment in (".", ".."):
            return f"has a {segment!r} segment"
    return ""


def _segment(what: str, value: str) -> str:
    if not _SEGMENT.fullmatch(value):
        raise InvalidJob(
            f"{what} {value[:100]!r} is not allowed in an object key: use 1 to 128 letters, digits, '_', '.' or '-', "
            "starting with a letter or digit"
        )
    return value


def _number(what: str, value: int) -> int:
    if value < 0:
        raise InvalidJob(f"{what} {value} is not allowed in an object key: use a number that is not negative")
    return value


@dataclass(frozen=True)
class Paths:
    """Keys of a job.

    >>> Paths("flights").log_record(3)
    'flights/log/00000000000000000003.json'
    """

    job: str

    def __post_init__(self) -> None:
        check_job_id(self.job)

    # ---- decision log

    @property
    def log_prefix(self) -> str:
        return f"{self.job}/log/"

    def log_record(self, position: int) -> str:
        return check_key(f"{self.job}/log/{_number('log position', position):020d}.json")

    def log_position(self, key: str) -> int | None:
        match = _LOG_RECORD.fullmatch(key.removeprefix(self.log_prefix)) if key.startswith(self.log_prefix) else None
        return int(match.group(1)) if match else None

    @property
    def log_hint(self) -> str:
        return check_key(f"{self.job}/log-hint.json")

    # ---- checkpoints

    @property
    def checkpoints_prefix(self) -> str:
        return f"{self.job}/checkpoints/"

    def checkpoint_prefix(self, checkpoint: int, token: int) -> str:
        return f"{self.job}/checkpoints/{_number('checkpoint', checkpoint)}-{_number('token', token)}/"

    def manifest(self, checkpoint: int, token: int, attempt: str | None = None) -> str:
        """`attempt`: unique, if the manifest may be written again."""
        name = "manifest.json" if attempt is None else f"manifest-{_segment('attempt', attempt)}.json"
        return check_key(self.checkpoint_prefix(checkpoint, token) + name)

    def checkpoint_of(self, key: str) -> tuple[int, int] | None:
        if not key.startswith(self.checkpoints_prefix):
            return None
        match = _MANIFEST.fullmatch(key.removeprefix(self.checkpoints_prefix))
        return (int(match.group(1)), int(match.group(2))) if match else None

    # ---- snapshot files

    @property
    def data_prefix(self) -> str:
        return f"{self.job}/data/"

    def data_token_prefix(self, token: int) -> str:
        return f"{self.job}/data/{_number('token', token)}/"

    def data_file(self, token: int, slot_uuid: str, file_uuid: str) -> str:
        slot, file = _segment("slot uuid", slot_uuid), _segment("file uuid", file_uuid)
        return check_key(f"{self.data_token_prefix(token)}{slot}/{file}")

    def data_token(self, key: str) -> int | None:
        """Token of the generation that wrote a snapshot file; None: another key."""
        if not key.startswith(self.data_prefix):
            return None
        match = _DATA_FILE.fullmatch(key.removeprefix(self.data_prefix))
        return int(match.group(1)) if match else None

    # ---- rows of write-ahead sinks

    @property
    def write_ahead_prefix(self) -> str:
        return f"{self.job}/write-ahead/"

    def staged_rows_prefix(self, sink: str) -> str:
        return f"{self.write_ahead_prefix}{_segment('sink', sink)}/staged/"

    def staged_rows(self, sink: str, token: int, subtask: int, number: int, unique: str) -> str:
        """`number` counts the objects of the subtask's incarnation `unique`."""
        name = f"{_number('subtask', subtask)}-{_number('number', number)}-{_segment('unique name', unique)}"
        return check_key(f"{self.staged_rows_prefix(sink)}{_number('token', token)}/{name}")

    def staged_rows_origin(self, key: str) -> tuple[int, int] | None:
        if not key.startswith(self.write_ahead_prefix):
            return None
        match = _STAGED_ROWS.fullmatch(key.removeprefix(self.write_ahead_prefix))
        return (int(match.group(1)), int(match.group(2))) if match else None

    def delivery_notes_prefix(self, sink: str, lineage: str, subtask: int) -> str:
        parts = f"{_segment('sink', sink)}/delivered/{_segment('lineage', lineage)}/{_number('subtask', subtask)}"
        return f"{self.write_ahead_prefix}{parts}/"

    def delivery_note(self, sink: str, lineage: str, subtask: int, checkpoint: int, token: int) -> str:
        """Key of the note that all rows of `subtask` up to `checkpoint` are delivered.

        `token`: of the generation that staged the last rows; 0: the target knows the checkpoints, and `checkpoint` is
        the number of a note (`kafka/sink/markers`).
        """
        name = f"{_number('checkpoint', checkpoint):020d}-{_number('token', token)}"
        return check_key(self.delivery_notes_prefix(sink, lineage, subtask) + name)

    def delivery_of(self, key: str) -> tuple[int, int] | None:
        if not key.startswith(self.write_ahead_prefix):
            return None
        match = _DELIVERY_NOTE.fullmatch(key.removeprefix(self.write_ahead_prefix))
        return (int(match.group(2)), int(match.group(3))) if match else None

    def asked_prefix(self, sink: str, lineage: str | None = None) -> str:
        prefix = f"{self.write_ahead_prefix}{_segment('sink', sink)}/asked/"
        return prefix if lineage is None else f"{prefix}{_segment('lineage', lineage)}/"

    def asked_batch(self, sink: str, lineage: str, checkpoint: int, token: int) -> str:
        """Key of the request to call the program's function for rows that generation `token` has staged."""
        name = f"{_number('checkpoint', checkpoint):020d}-{_number('token', token)}"
        return check_key(self.asked_prefix(sink, lineage) + name)

    def asked_of(self, key: str) -> tuple[int, int] | None:
        if not key.startswith(self.write_ahead_prefix):
            return None
        match = _ASKED_BATCH.fullmatch(key.removeprefix(self.write_ahead_prefix))
        return (int(match.group(1)), int(match.group(2))) if match else None

    # ---- staged rows of sources

    def staged_source_prefix(self, source: str) -> str:
        return f"{self.job}/sources/{_segment('source', source)}/"

    def staged_source_current(self, source: str) -> str:
        return check_key(f"{self.staged_source_prefix(source)}current.json")

    def staged_source_file(self, source: str, id: str, file: str) -> str:
        return check_key(f"{self.staged_source_prefix(source)}{_segment('id', id)}/{_segment('file', file)}")

    def is_staged_source(self, key: str) -> bool:
        return _STAGED_SOURCE.fullmatch(key.removeprefix(f"{self.job}/sources/")) is not None and key.startswith(
            f"{self.job}/sources/"
        )

    # ---- lease and history

    @property
    def lease(self) -> str:
        return check_key(f"{self.job}/lease.json")

    @property
    def history(self) -> str:
        return check_key(f"{self.job}/history.json")

    # ---- readers of checkpoints

    @property
    def pins_prefix(self) -> str:
        return f"{self.job}/pins/"

    @property
    def pins_used(self) -> str:
        return check_key(f"{self.pins_prefix}used")

    def pin(self, name: str) -> str:
        return check_key(f"{self.pins_prefix}{_segment('pin', name)}")

    # ---- probes

    @property
    def probe_prefix(self) -> str:
        return f"{self.job}/probe"


FILE_NAME_BYTES = 255  # limit of file systems
_AZURE_SEGMENT = 254


@runtime_checkable
class HasPrefix(Protocol):
    """The prefix counts towards the length of a key."""

    @property
    def key_prefix(self) -> str: ...


def too_long(key: str, store: ObjectStore) -> str:
    """Reason, as the end of a sentence; empty if the store takes the key."""
    scheme = store.url.partition("://")[0]
    most = {"s3": MAX_KEY_BYTES, "gs": MAX_KEY_BYTES, "memory": MAX_KEY_BYTES, "abfss": _AZURE_SEGMENT}
    allowed = most.get(scheme, FILE_NAME_BYTES)
    longest = max(len(segment.encode()) for segment in key.split("/"))
    if longest > allowed:
        return f"has a name of {longest} bytes, and {allowed} are allowed in {store.url}"
    whole = len((store.key_prefix + key if isinstance(store, HasPrefix) else key).encode())
    if whole > MAX_KEY_BYTES:
        return f"has a key of {whole} bytes, and {MAX_KEY_BYTES} are allowed in {store.url}"
    return ""
