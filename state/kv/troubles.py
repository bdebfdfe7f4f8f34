"""What an error of RocksDB is for who uses a database: damaged, or to be tried again; with the remedy."""

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable


def is_full_disk(error: Exception) -> bool:
    return "No space left on device" in str(error)


def trouble(what: str, error: Exception) -> BarrierRuntimeError:
    text = str(error)
    if "orruption" in text:
        return Corrupt(f"{what}: {text}; restore from another checkpoint, or check this machine's disk")
    if is_full_disk(error):
        return Unavailable(f"{what}: {text}; free some disk space, it is tried again")
    if "While lock file" in text or "lock hold by" in text:  # not just "lock": folders may be called so
        return Unavailable(f"{what}: {text}; another process still holds it, it is tried in a fresh folder")
    return Unavailable(f"{what}: {text}; it is tried again")
