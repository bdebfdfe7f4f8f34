"""Stores for readers of another store."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectStore, PutOutcome


class ReadOnlyStore:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._store.get(key, offset, size)

    def get_file(self, key: str, path: Path) -> None:
        self._store.get_file(key, path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def put(self, key: str, data: bytes) -> None:
        raise self._refused("put", key)

    def put_file(self, key: str, path: Path) -> None:
        raise self._refused("put_file", key)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        raise self._refused("put_if_absent", key)

    def delete(self, keys: Iterable[str]) -> None:
        raise self._refused("delete", next(iter(keys), ""))

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        raise self._refused("publish", final)

    def _refused(self, operation: str, key: str) -> ProtocolViolation:
        return ProtocolViolation(
            f"{operation} of {self.url}/{key} by code that may only read this store: nothing was changed; please "
            "report this"
        )


class LinkedStore:
    """`scratch` with additional keys, links to objects of `source`.

    Other objects of `source` are invisible, and no object of `source` is changed.
    """

    def __init__(self, scratch: ObjectStore, source: ObjectStore) -> None:
        self._scratch = scratch
        self._source = ReadOnlyStore(source)
        self._links: dict[str, str] = {}

    def link(self, links: Mapping[str, str]) -> None:
        """Adds links: key of `source` -> key of this store."""
        self._links.update({to: key for key, to in links.items()})

    @property
    def url(self) -> str:
        return self._scratch.url

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        linked = self._links.get(key)
        return self._scratch.get(key, offset, size) if linked is None else self._source.get(linked, offset, size)

    def get_file(self, key: str, path: Path) -> None:
        linked = self._links.get(key)
        if linked is None:
            self._scratch.get_file(key, path)
        else:
            self._source.get_file(linked, path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._scratch.list(prefix)

    def put(self, key: str, data: bytes) -> None:
        self._check_own(key)
        self._scratch.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._check_own(key)
        self._scratch.put_file(key, path)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        self._check_own(key)
        return self._scratch.put_if_absent(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self._links.pop(key, None) is None:
                self._scratch.delete([key])

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        self._check_own(final)
        self._scratch.publish(staged, final, sha256)

    def _check_own(self, key: str) -> None:
        if key in self._links:
            raise ProtocolViolation(f"{self.url}/{key} belongs to another store and is only read; please report this")
