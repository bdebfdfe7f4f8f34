"""How long a name may be in a store, asked before anything is decided that would need a longer one."""

from typing import Protocol, runtime_checkable

from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import MAX_KEY_BYTES

FILE_NAME_BYTES = 255  # of file systems, HDFS among them
_AZURE_SEGMENT = 254


@runtime_checkable
class HasPrefix(Protocol):
    """A store that counts a prefix of its own into the length of a key."""

    @property
    def key_prefix(self) -> str: ...


def too_long(key: str, store: ObjectStore) -> str:
    """Why the store takes no object of this name, as the end of a sentence; empty when it does."""
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
