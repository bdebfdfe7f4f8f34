"""Probe of a store's conditional create: some S3-compatible stores ignore `If-None-Match`.

A store that passes gets a note, valid for 30 days, of the probed place, which no copy of the store shares.
"""

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none

_WRITERS = 8
_ATTEMPTS = 5
_COUNTS_FOR_MS = 30 * 24 * 3_600_000
_THIS_PROBE = 1  # a probe that checks more gets a new number


class _Proven(msgspec.Struct):
    probe: int
    place: str
    at_ms: int


_DECODER = msgspec.json.Decoder(_Proven)


def read_note(store: ObjectStore, prefix: str) -> bytes | None:
    return get_or_none(store, _note_key(prefix))


def prove_once(store: ObjectStore, prefix: str, now_ms: int) -> None:
    """Probes the store, unless a note below `prefix` says that the store has passed."""
    key, place = _note_key(prefix), str(getattr(store, "place", store.url))
    if _is_proven(read_note(store, prefix), place, now_ms):
        return
    probe_conditional_put(store, prefix)
    store.put(key, msgspec.json.encode(_Proven(_THIS_PROBE, place, now_ms)))


def _note_key(prefix: str) -> str:
    return f"{prefix}/proven.json"


def _is_proven(data: bytes | None, place: str, now_ms: int) -> bool:
    try:
        note = None if data is None else _DECODER.decode(data)
    except msgspec.MsgspecError:
        note = None
    known = note is not None and (note.probe, note.place) == (_THIS_PROBE, place)
    return known and note is not None and 0 <= now_ms - note.at_ms < _COUNTS_FOR_MS


def probe_conditional_put(
    store: ObjectStore, prefix: str, *, writers: int = _WRITERS, new_id: Callable[[], str] = lambda: uuid.uuid4().hex
) -> None:
    """Raises `InvalidJob` if `store` does not create objects exclusively below `prefix`.

    Raises `Unavailable` if the store does not answer. Leaves no objects, and never uses a key twice.
    """
    run = f"{prefix.rstrip('/')}/{new_id()}" if prefix.strip("/") else new_id()
    used: list[str] = []
    try:
        _create_twice(store, run, used)
        _create_in_parallel(store, run, used, writers)
    except Unavailable:
        raise
    except InvalidJob as error:
        raise InvalidJob(f"{store.url} cannot hold checkpoints: {error}") from error
    finally:
        with contextlib.suppress(BarrierRuntimeError):  # a remaining probe object is harmless
            store.delete(used)


def _create_twice(store: ObjectStore, run: str, used: list[str]) -> None:
    for attempt in range(_ATTEMPTS):
        key = f"{run}-twice-{attempt}"
        used.append(key)
        first = store.put_if_absent(key, b"first")
        if first is PutOutcome.UNKNOWN:
            continue
        if first is PutOutcome.EXISTS:
            raise InvalidJob(f"a new object {key} was said to exist already: use a store that works")
        second = store.put_if_absent(key, b"second")
        if second is PutOutcome.UNKNOWN:
            continue
        if second is PutOutcome.CREATED or store.get(key) != b"first":
            raise InvalidJob(
                "it overwrote an object that was to be created only if absent (it ignores If-None-Match), so two "
                "coordinators could both decide a checkpoint: use AWS S3, a recent MinIO, Ceph or R2, or a local folder"
            )
        return
    raise Unavailable(f"{store.url} did not answer {_ATTEMPTS} conditional puts: check the network and try again")


def _create_in_parallel(store: ObjectStore, run: str, used: list[str], writers: int) -> None:
    for attempt in range(_ATTEMPTS):
        key = f"{run}-parallel-{attempt}"
        used.append(key)
        bodies = [f"writer {writer}".encode() for writer in range(writers)]
        if writers == 1:
            outcomes = [store.put_if_absent(key, bodies[0])]
        else:
            with ThreadPoolExecutor(writers) as pool:
                outcomes = list(pool.map(lambda body, key=key: store.put_if_absent(key, body), bodies))
        created = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is PutOutcome.CREATED]
        if len(created) > 1 or (created and store.get(key) != created[0]):
            raise InvalidJob(
                f"{len(created)} of {writers} parallel writers were told that they created the same object: use a "
                "store whose conditional puts are atomic (AWS S3, a recent MinIO, Ceph or R2, or a local folder)"
            )
        if created:
            return
    raise Unavailable(f"{store.url} did not answer {_ATTEMPTS} rounds of parallel puts: check the network")
