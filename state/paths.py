"""Every object key is built here and nowhere else, and no key leaves this file unchecked (behaviour B1).

Layout of one job below the store's root; see the protocol chapter of the documentation:

    <job>/log/<position, 20 digits>.json             one log record; immutable for ever
    <job>/checkpoints/<id>-<token>/manifest.json     written before the decision that names it
    <job>/data/<token>/<slot uuid>/<uuid>            snapshot files; a name is never used twice
    <job>/savepoints/<name>/...                      self-contained, owned by the user
    <job>/lease.json                                 which daemon is expected to lead; written again and again
    <job>/history.json                               counters and past checkpoints; written again and again
"""

import re
from dataclasses import dataclass

from state.errors import InvalidJob
from state.ids import check_job_id

MAX_KEY_BYTES = 1_024
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LOG_RECORD = re.compile(r"([0-9]{20})\.json")
_NUMBER = r"(0|[1-9][0-9]{0,18})"
_MANIFEST = re.compile(_NUMBER + "-" + _NUMBER + r"/manifest(?:-" + _SEGMENT.pattern + r")?\.json")
_DATA_FILE = re.compile(_NUMBER + "/" + _SEGMENT.pattern + "/" + _SEGMENT.pattern)


def check_key(key: str) -> str:
    """Return `key` if it is a safe relative key; raise `InvalidJob` with the reason otherwise."""
    reason = _why_unsafe(key)
    if reason:
        shown = key if len(key) <= 200 else key[:200] + "…"
        raise InvalidJob(
            f"object key {shown!r} {reason}: use a relative key of safe segments, at most {MAX_KEY_BYTES} bytes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Like `check_key`, for what `list` takes: may be empty (everything) or end with one slash."""
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
    """The keys of one job.

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
        """The position behind a key of this job's log; None for any other key."""
        match = _LOG_RECORD.fullmatch(key.removeprefix(self.log_prefix)) if key.startswith(self.log_prefix) else None
        return int(match.group(1)) if match else None

    # ---- checkpoints

    @property
    def checkpoints_prefix(self) -> str:
        return f"{self.job}/checkpoints/"

    def checkpoint_prefix(self, checkpoint: int, token: int) -> str:
        return f"{self.job}/checkpoints/{_number('checkpoint', checkpoint)}-{_number('token', token)}/"

    def manifest(self, checkpoint: int, token: int, attempt: str | None = None) -> str:
        """Key of a manifest. `attempt` makes the key unique when one checkpoint's manifest may be written again."""
        name = "manifest.json" if attempt is None else f"manifest-{_segment('attempt', attempt)}.json"
        return check_key(self.checkpoint_prefix(checkpoint, token) + name)

    def checkpoint_of(self, key: str) -> tuple[int, int] | None:
        """(checkpoint id, token) of a manifest of this job; None for any other key, also below `checkpoints_prefix`."""
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
        """The token under which a snapshot file was written; None for a key that is none of this job's data files."""
        if not key.startswith(self.data_prefix):
            return None
        match = _DATA_FILE.fullmatch(key.removeprefix(self.data_prefix))
        return int(match.group(1)) if match else None

    # ---- what is only for liveness and for people

    @property
    def lease(self) -> str:
        return check_key(f"{self.job}/lease.json")

    @property
    def history(self) -> str:
        return check_key(f"{self.job}/history.json")

    # ---- savepoints and probes

    def savepoint(self, name: str, file: str = "manifest.json") -> str:
        return check_key(f"{self.job}/savepoints/{_segment('savepoint name', name)}/{_segment('file', file)}")

    @property
    def probe_prefix(self) -> str:
        """Where the start-up probe of the store puts its short-lived objects."""
        return f"{self.job}/probe"
