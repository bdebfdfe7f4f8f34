"""Object storage in memory: no clock, no randomness, and faults that strike in the order of injection."""

import enum
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    PutOutcome,
    check_published,
)
from barrier_runtime.state.store.paths import check_key, check_prefix


class Fault(enum.Enum):
    FAIL_BEFORE = "the call fails and nothing happened"
    APPLY_THEN_FAIL = "it happened, and the answer is lost"
    LAND_LATE = "the answer is lost; it happens when the test calls land_late()"
    CONFLICT = "HTTP 409: another conditional write is under way; nothing happened"
    TRUNCATED_READ = "half of the bytes come"
    FLIPPED_BYTE = "one bit of the first byte is wrong"
    STALE_LIST = "the list is that of the moment of injection"
    IGNORE_CONDITIONS = "put_if_absent overwrites and says CREATED, as some S3-compatibles do"


_ONLY_FOR = {
    Fault.CONFLICT: "put_if_absent",
    Fault.TRUNCATED_READ: "get",
    Fault.FLIPPED_BYTE: "get",
    Fault.STALE_LIST: "list",
    Fault.IGNORE_CONDITIONS: "put_if_absent",
}


@dataclass
class _Injected:
    fault: Fault
    operation: str  # "put", "put_if_absent", "get", "list", "delete", "publish"; "": any
    key_part: str  # strikes only keys that contain this text
    times: int | None  # None: every time
    listing: tuple[ObjectInfo, ...] = ()


@dataclass
class _Object:
    data: bytes
    modified_ms: int
    etag: str


@dataclass
class MemoryStore:
    """Thread-safe. `now_ms` gives modification times."""

    name: str = "memory"
    now_ms: Callable[[], int] = field(default=lambda: 0, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, _Object] = {}
        self._versions = 0
        self._faults: list[_Injected] = []
        self._late: list[Callable[[], None]] = []
        self.calls: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    # ---- control by tests

    def inject(self, fault: Fault, operation: str = "", key_part: str = "", times: int | None = 1) -> None:
        with self._lock:
            listing = tuple(self._infos("")) if fault is Fault.STALE_LIST else ()
            self._faults.append(_Injected(fault, _ONLY_FOR.get(fault, operation), key_part, times, listing))

    def heal(self) -> None:
        """Late writes stay in flight."""
        with self._lock:
            self._faults.clear()

    def land_late(self) -> int:
        """Returns the number of executed writes."""
        with self._lock:
            late, self._late = self._late, []
            for arrive in late:
                arrive()
            return len(late)

    def keys(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._objects))

    def damage(self, key: str, data: bytes) -> None:
        """Replaces the bytes of an object without a new version."""
        with self._lock:
            self._objects[key].data = data

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            self._write("put", key, lambda: self._set(key, data))

    def put_file(self, key: str, path: Path) -> None:
        check_key(key)
        self.put(key, path.read_bytes())

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        check_key(key)
        with self._lock:
            fault = self._strike("put_if_absent", key)
            if fault in (Fault.FAIL_BEFORE, Fault.CONFLICT):
                return PutOutcome.UNKNOWN
            if fault is Fault.LAND_LATE:
                self._late.append(lambda: self._create(key, data))
                return PutOutcome.UNKNOWN
            if fault is Fault.IGNORE_CONDITIONS:
                self._set(key, data)
                return PutOutcome.CREATED
            created = key not in self._objects
            self._create(key, data)
            if fault is Fault.APPLY_THEN_FAIL:
                return PutOutcome.UNKNOWN
            return PutOutcome.CREATED if created else PutOutcome.EXISTS

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._get(key, "", offset, size)

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes:
        return self._get(key, etag, offset, size)

    def _get(self, key: str, etag: str, offset: int, size: int | None) -> bytes:
        check_key(key)
        with self._lock:
            fault = self._strike("get", key)
            if fault is Fault.FAIL_BEFORE:
                raise Unavailable(f"get of {self.url}/{key} failed: try again")
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(f"no object {self.url}/{key}")
        if etag and etag != found.etag:
            raise ObjectChanged(f"{self.url}/{key} is not the version {etag}")
        data = found.data[offset:] if size is None else found.data[offset : offset + size]
        if fault is Fault.TRUNCATED_READ:
            return data[: len(data) // 2]
        if fault is Fault.FLIPPED_BYTE and data:
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    def get_file(self, key: str, path: Path) -> None:
        data = self.get(key)
        with path.open("xb") as file:
            file.write(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            injected = self._take("list", prefix)
            if injected is not None and injected.fault is Fault.FAIL_BEFORE:
                raise Unavailable(f"list of {self.url}/{prefix} failed: try again")
            if injected is not None and injected.fault is Fault.STALE_LIST:
                infos = [info for info in injected.listing if info.key.startswith(prefix)]
            else:
                infos = list(self._infos(prefix))
        return iter(infos)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            check_key(key)
            with self._lock:
                self._write("delete", key, lambda key=key: self._drop(key))  # type: ignore[misc]

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        check_key(staged)
        check_key(final)
        with self._lock:
            self._write("publish", final, lambda: self._publish(staged, final, sha256))

    def _write(self, operation: str, key: str, apply: Callable[[], None]) -> None:
        fault = self._strike(operation, key)
        if fault is Fault.LAND_LATE:
            self._late.append(apply)
        elif fault is not Fault.FAIL_BEFORE:
            apply()
        if fault in (Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE):
            raise Unavailable(f"{operation} of {self.url}/{key} got no answer: try again")

    def _publish(self, staged: str, final: str, sha256: str) -> None:
        existing = self._objects.get(final)
        if existing is None and staged in self._objects:
            self._set(final, self._objects[staged].data)
        else:
            found = None if existing is None else hashlib.sha256(existing.data).hexdigest()
            check_published(self, staged, final, sha256, found)
        self._drop(staged)

    def _create(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            self._set(key, data)

    def _set(self, key: str, data: bytes) -> None:
        self._versions += 1
        self._objects[key] = _Object(bytes(data), self.now_ms(), f'"{self._versions}"')

    def _drop(self, key: str) -> None:
        self._objects.pop(key, None)

    def _infos(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(self._objects):
            if key.startswith(prefix):
                found = self._objects[key]
                yield ObjectInfo(key, len(found.data), found.modified_ms, found.etag)

    def _strike(self, operation: str, key: str) -> Fault | None:
        injected = self._take(operation, key)
        return injected.fault if injected else None

    def _take(self, operation: str, key: str) -> _Injected | None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        for index, injected in enumerate(self._faults):
            if injected.operation in ("", operation) and injected.key_part in key:
                if injected.times is not None:
                    injected.times -= 1
                    if injected.times == 0:
                        del self._faults[index]
                return injected
        return None
