"""Counts requests to an object store as S3 bills them."""

import copy
import threading
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

_READS = frozenset({"get"})
_FREE = frozenset({"delete"})


@dataclass(frozen=True)
class StoreCounts:
    """Deletions are free, and not counted."""

    writes: int = 0  # PUT, COPY, POST, LIST
    reads: int = 0  # GET, HEAD
    sent_bytes: int = 0
    received_bytes: int = 0


class StoreUse:
    """For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = self._reads = self._sent = self._received = 0

    def request(self, operation: str, requests: int = 1) -> None:
        """`operation`: an unknown operation counts as a write."""
        if operation in _FREE:
            return
        with self._lock:
            if operation in _READS:
                self._reads += requests
            else:
                self._writes += requests

    def sent(self, size: int) -> None:
        with self._lock:
            self._sent += size

    def received(self, size: int) -> None:
        with self._lock:
            self._received += size

    @property
    def counts(self) -> StoreCounts:
        with self._lock:
            return StoreCounts(self._writes, self._reads, self._sent, self._received)


@runtime_checkable
class Counted(Protocol):
    use: StoreUse


_Store = TypeVar("_Store")


def with_own_use(store: _Store) -> _Store:
    """Copy with separate counts; `store` itself if not counted."""
    if not isinstance(store, Counted):
        return store
    own = copy.copy(store)
    own.use = StoreUse()
    return own


def counts_of(store: object) -> StoreCounts:
    return store.use.counts if isinstance(store, Counted) else StoreCounts()
