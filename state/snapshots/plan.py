"""Plans which files of a local checkpoint are uploaded, and how.

- An SST or a segment is reused only if a *completed* checkpoint of this incarnation has the file, or if the restore
  linked the file: an incarnation may give names of a former incarnation to other bytes.
- MANIFEST, CURRENT and the table of side-by-side databases are always uploaded: same name, other bytes. So is OPTIONS,
  which earlier releases stored.
- Large files become separate objects. Small files are packed into an object or, if tiny in total, into the manifest.
- No other file of a database's folder is uploaded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.kv.key_ranges import RANGES_FILE
from barrier_runtime.state.scratch import BESIDE, SEGMENT_FILE, database_of
from barrier_runtime.state.snapshots.snapshot import FileRef

_DATABASE_FILE = r"[0-9]{1,20}\.sst|CURRENT|MANIFEST-[0-9]{1,20}|OPTIONS-[0-9]{1,20}"
_SNAPSHOT_FILE = re.compile(
    rf"(?:{BESIDE})?(?:{_DATABASE_FILE})|{re.escape(RANGES_FILE)}|records\.kv|{SEGMENT_FILE.pattern}"
)
_WRITE_AHEAD_LOG = re.compile(r"\d{1,20}\.log")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_IN_FLIGHT_FILE = re.compile(r"in-flight-[0-9]{1,9}\.frames")
_NEVER_CHANGES = re.compile(rf"(?:{BESIDE})?[0-9]{{1,20}}\.sst|{SEGMENT_FILE.pattern}")


@dataclass(frozen=True)
class LocalFile:
    name: str
    size: int  # bytes


@dataclass(frozen=True)
class Thresholds:
    inline_bytes: int = 20_000  # total of a snapshot's inlined files
    pack_bytes: int = 1 << 20  # larger files become separate objects
    value_bytes: int = 4_096  # larger named values become separate objects


@dataclass(frozen=True)
class SnapshotPlan:
    reused: tuple[FileRef, ...]
    alone: tuple[LocalFile, ...]  # an object each
    packed: tuple[LocalFile, ...]  # together in an object
    inline: tuple[LocalFile, ...]  # in the manifest


def is_snapshot_file(name: str) -> bool:
    return _SNAPSHOT_FILE.fullmatch(name) is not None


def in_flight_file(number: int) -> str:
    return f"in-flight-{number}.frames"


def is_in_flight_file(name: str) -> bool:
    return _IN_FLIGHT_FILE.fullmatch(name) is not None


def is_value_name(name: str) -> bool:
    return _VALUE_NAME.fullmatch(name) is not None


def is_immutable(name: str) -> bool:
    return _NEVER_CHANGES.fullmatch(name) is not None


def plan_snapshot(
    files: Sequence[LocalFile], confirmed: Mapping[str, FileRef], thresholds: Thresholds | None = None
) -> SnapshotPlan:
    """`confirmed`: immutable files of the last completed or the restored checkpoint."""
    limits = thresholds or Thresholds()
    for file in files:
        if _WRITE_AHEAD_LOG.fullmatch(database_of(file.name)[1]) and file.size:
            raise ProtocolViolation(
                f"the checkpoint holds {file.size} bytes of write-ahead log {file.name}, but state is written without "
                "one: entries would be missing; please report this"
            )
    wanted = sorted((file for file in files if is_snapshot_file(file.name)), key=lambda file: file.name)
    reused = [confirmed[file.name] for file in wanted if _is_confirmed(file, confirmed)]
    fresh = [file for file in wanted if not _is_confirmed(file, confirmed)]
    small = tuple(file for file in fresh if file.size <= limits.pack_bytes)
    inlined_before = sum(ref.size for ref in reused if ref.inline is not None)
    tiny = inlined_before + sum(file.size for file in small) <= limits.inline_bytes
    return SnapshotPlan(
        reused=tuple(reused),
        alone=tuple(file for file in fresh if file.size > limits.pack_bytes),
        packed=() if tiny else small,
        inline=small if tiny else (),
    )


def _is_confirmed(file: LocalFile, confirmed: Mapping[str, FileRef]) -> bool:
    ref = confirmed.get(file.name)
    return is_immutable(file.name) and ref is not None and ref.size == file.size
