"""Copies of broadcast state: one per subtask of an operator, all equal, and one in each snapshot.
Design: docs/design/broadcast-state.md.
"""

import datetime
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from barrier_runtime.operators.base import Capture
from barrier_runtime.operators.state.stored_type import is_unchangeable
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import SHARED, FileRef, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

SUMMARY = f"{SHARED}broadcast"  # snapshot value of every subtask
_CONTENT = f"{SHARED}broadcast-"  # values of subtask 0, with a number
_CHUNK_ENTRIES = 1_024  # encoded at once


class StoredCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: str  # value of subtask 0 with the content
    # absent from at-least-once checkpoints
    entries: int = 0
    sha256: str = ""


class StoredCopies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    states: dict[str, StoredCopy]
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_SUMMARY = VersionedDecoder(
    value_format("{}: the summary of its broadcast state"), msgspec.msgpack.Decoder(StoredCopies)
)
_CHUNKS: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    key: msgspec.msgpack.Decoder(list[tuple[key, bytes]])  # type: ignore[valid-type]
    for key in (int, str, bytes, bool, float, datetime.date, datetime.datetime)
}
KEY_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in _CHUNKS}
_encode = msgspec.msgpack.Encoder().encode


class BroadcastCopy:
    """A subtask's copy: key -> encoded value, in the order of addition."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self.version = 1
        self._decode = decode
        self._entries: dict[Any, bytes] = {}
        self._read: dict[Any, Any] = {}  # decoded values, immutable ones only
        self._captured = False  # a snapshot reads `_entries`
        self._hashed = (0, "")  # (version, hash)

    def get(self, key: Any) -> Any:
        value = self._read.get(key)
        if value is None:
            data = self._entries.get(key)
            if data is None:
                return None
            value = self._decode(data)
            if is_unchangeable(value):
                self._read[key] = value
        return value

    def has(self, key: Any) -> bool:
        return key in self._entries

    def size(self) -> int:
        return len(self._entries)

    def keys(self) -> Iterator[Any]:
        return iter(self._entries)

    def put(self, key: Any, data: bytes) -> None:
        self._changing()[key] = data
        self._read.pop(key, None)

    def remove(self, key: Any) -> None:
        del self._changing()[key]
        self._read.pop(key, None)

    def clear(self) -> None:
        self.load({})

    def load(self, entries: dict[Any, bytes]) -> None:
        self.version += 1
        self._entries, self._captured = entries, False
        self._read = {}

    def begin(self) -> None:
        self._captured = True
        self._before = self.version, self._entries

    def put_back(self) -> None:
        version, entries = self._before
        if version != self.version:
            self.load(entries)
            self._captured = True  # a snapshot may still read the entries

    def capture(self) -> "CapturedCopy":
        """Returns the current content; later changes go to a new dict."""
        self._captured = True
        return CapturedCopy(self, self.version, self._entries)

    def hash_of(self, captured: "CapturedCopy") -> str:
        """Returns the hash of a content, computed once per version. Runs on a worker thread."""
        version, digest = self._hashed
        if version != captured.version:
            sha256 = hashlib.sha256()
            for chunk in captured.chunks():
                sha256.update(chunk)
            digest = sha256.hexdigest()
            self._hashed = captured.version, digest
        return digest

    def _changing(self) -> dict[Any, bytes]:
        self.version += 1
        if self._captured:
            self._entries, self._captured = dict(self._entries), False
        return self._entries


class CapturedCopy:
    def __init__(self, copy: BroadcastCopy, version: int, entries: Mapping[Any, bytes]) -> None:
        self.version = version
        self._copy = copy
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def chunks(self) -> Iterator[bytes]:
        """Yields lists of (key, encoded value), each after its length (4 bytes)."""
        entries = iter(self._entries.items())
        while chunk := list(islice(entries, _CHUNK_ENTRIES)):
            data = _encode(chunk)
            yield len(data).to_bytes(4, "big") + data

    def sha256(self) -> str:
        return self._copy.hash_of(self)


class BroadcastCopies:
    """Copies of a subtask, by state. `changes`: the handler that may write now, or empty."""

    def __init__(self, operator: str, subtask: int, exactly_once: bool, restored: Sequence[OperatorSnapshot]) -> None:
        self.changes = ""
        self._subtask = subtask
        self._exactly_once = exactly_once
        self._copies: dict[str, BroadcastCopy] = {}
        self._restored = contents_of(restored, f"operator {operator!r}")
        self._stored: dict[str, tuple[int, FileRef]] = {}  # value -> (version of the state, FileRef)

    def open(self, name: str, key: Any, decode: Callable[[bytes], Any]) -> BroadcastCopy:
        copy = self._copies[name] = BroadcastCopy(decode)
        content = self._restored.pop(name, None)
        if content is not None:
            copy.load(entries_of(content, key, name))
        return copy

    def opened(self) -> None:
        """Drops restored states that the program no longer uses, once all are open."""
        self._restored = {}

    def begin(self) -> None:
        if self.changes:
            for copy in self._copies.values():
                copy.begin()

    def put_back(self) -> None:
        if self.changes:
            for copy in self._copies.values():
                copy.put_back()

    def add_to(self, capture: Capture) -> None:
        if not self._copies:
            return
        captured = {name: copy.capture() for name, copy in self._copies.items()}
        values = {name: f"{_CONTENT}{number}" for number, name in enumerate(sorted(captured))}
        if self._subtask == 0:
            versions = {values[name]: each.version for name, each in captured.items()}
            capture.stored = {
                value: self._stored[value][1]
                for value, version in versions.items()
                if value in self._stored and self._stored[value][0] == version
            }
            capture.on_stored = partial(self._on_stored, versions)
        capture.blocking = partial(self._written, captured, values, frozenset(capture.stored))

    def _on_stored(self, versions: Mapping[str, int], objects: Mapping[str, FileRef]) -> None:
        self._stored = {value: (versions[value], ref) for value, ref in objects.items() if value in versions}

    def _written(
        self, captured: Mapping[str, CapturedCopy], values: Mapping[str, str], stored: frozenset[str]
    ) -> dict[str, bytes]:
        """Runs on a worker thread."""
        written: dict[str, bytes] = {}
        states: dict[str, StoredCopy] = {}
        for name, each in captured.items():
            states[name] = StoredCopy(values[name])
            if self._exactly_once:
                states[name] = StoredCopy(values[name], len(each), each.sha256())
            if self._subtask == 0 and values[name] not in stored:
                written[values[name]] = b"".join(each.chunks())
        return {SUMMARY: StoredCopies(states).encode(), **written}


def contents_of(restored: Sequence[OperatorSnapshot], where: str) -> dict[str, bytes]:
    found = {each.subtask: each for each in restored if SUMMARY in each.values}
    summaries = {subtask: _SUMMARY.decode(each.values[SUMMARY], where) for subtask, each in sorted(found.items())}
    if not summaries:
        return {}
    if 0 not in summaries:
        raise Corrupt(f"{where}: the checkpoint has no content of its broadcast state: restore from another checkpoint")
    contents: dict[str, bytes] = {}
    for name, first in summaries[0].states.items():
        content = contents[name] = found[0].values.get(first.value, b"")
        if first.sha256 and hashlib.sha256(content).hexdigest() != first.sha256:
            raise Corrupt(
                f"{where}: the content of broadcast state {name!r} is not what subtask 0 had at the barrier: restore "
                "from another checkpoint, and report this"
            )
        for subtask, summary in summaries.items():
            other = summary.states.get(name)
            if other is None or other.sha256 != first.sha256:
                raise Corrupt(
                    f"{where}: broadcast state {name!r} has {first.entries} entries in subtask 0, and other content "
                    f"({0 if other is None else other.entries} entries) in subtask {subtask}: what a handler of a "
                    "broadcast input writes must depend on its rows and on broadcast state alone, not on random "
                    "numbers, a clock, ctx.subtask or attributes; correct it, and restore from an earlier checkpoint"
                )
    return contents


def entries_of(content: bytes, key: Any, name: str) -> dict[Any, bytes]:
    entries: dict[Any, bytes] = {}
    decode, at = _CHUNKS[key].decode, 0
    while at < len(content):
        behind = at + 4 + int.from_bytes(content[at : at + 4], "big")
        try:
            entries.update(decode(content[at + 4 : behind]))
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"broadcast state {name!r}: its content cannot be read ({error}): restore from another checkpoint, and "
                "report this"
            ) from error
        at = behind
    return entries
