"""Maximum length of names in a store, checked before a decision that needs a longer name."""

from typing import Protocol, runtime_checkable

from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import MAX_KEY_BYTES

FILE_NAME_BYTES = 255  # limit of file systems, including HDFS
_AZURE_SEGMENT = 254


@runtime_checkable
class HasPrefix(Protocol):
    """A store whose own prefix counts towards the length of a key."""

    @property
    def key_prefix(self) -> str: ...


def too_long(key: str, store: ObjectStore) -> str:
    """Returns why the key is too long, as the end of a sentence; empty if the store takes the key."""
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
