"""Object store of a simulated process: remote, slow, and sometimes faulty.

The effect of a request may follow the process's death. All faults obey the contract of `state.store.object_store`,
except `flipped_byte`, `truncated_read` and `ignore_conditions`, which the checks above the store must detect.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectNotFound, PutOutcome
from barrier_runtime.testing.simulation.loop import SECOND, SimProcess, Simulation

_TRAVEL_US = (300, 4_000)
_GIVE_UP_US = (1 * SECOND, 10 * SECOND)
_FORGET_DELETED_US = 60 * SECOND


@dataclass
class StoreFaults:
    """Rates per call. Writes are put, put_file, put_if_absent, delete, publish.

    `held`: requests for keys with this prefix hang until `held_until_s`.
    """

    fail_before: float = 0.0  # no effect
    apply_then_fail: float = 0.0  # of writes: an effect, but no answer
    land_late: float = 0.0  # of writes: the client gives up, the effect comes up to `late_s` after the call
    late_s: float = 30.0
    conflict: float = 0.0  # of put_if_absent: HTTP 409, no effect
    slow: float = 0.0  # the answer comes up to `slow_s` later
    slow_s: float = 30.0
    truncated_read: float = 0.0  # of reads: half of the bytes
    flipped_byte: float = 0.0  # of reads: one bit is wrong
    stale_list: float = 0.0  # of lists: as of up to `stale_s` ago
    stale_s: float = 20.0
    ignore_conditions: bool = False  # put_if_absent overwrites and reports success
    outage_until_s: float = 0.0  # in virtual time; everything fails, or hangs until the client gives up
    held: str = ""
    held_until_s: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    deleted: deque[tuple[int, ObjectInfo]] = field(default_factory=deque)

    def heal(self) -> None:
        self.fail_before = self.apply_then_fail = self.land_late = self.conflict = self.slow = 0.0
        self.truncated_read = self.flipped_byte = self.stale_list = 0.0
        self.ignore_conditions = False
        self.outage_until_s = self.held_until_s = 0.0


class StoreWatcher(Protocol):
    def requested(self, actor: str, operation: str, key: str) -> None: ...

    def answered(self, actor: str, operation: str, key: str, data: bytes, outcome: PutOutcome) -> None: ...

    def got(self, actor: str, key: str, there: bool | None) -> None: ...


class SimStore:
    """`ObjectStore` of a process. Processes share `memory` and `faults`.

    During an effect `memory.actor` is the requesting process.
    """

    requests_at_once = 1

    def __init__(
        self,
        simulation: Simulation,
        process: SimProcess,
        memory: MemoryStore,
        faults: StoreFaults,
        watcher: StoreWatcher | None = None,
    ) -> None:
        self._simulation = simulation
        self._process = process
        self._memory = memory
        self._faults = faults
        self._watcher = watcher

    @property
    def url(self) -> str:
        return self._memory.url

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, lambda: self._memory.put(key, data))

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        def create() -> PutOutcome:
            if self._faults.ignore_conditions:
                self._memory.put(key, data)
                return PutOutcome.CREATED
            return self._memory.put_if_absent(key, data)

        outcome = PutOutcome.UNKNOWN
        try:
            if self._strikes("conflict", self._faults.conflict):
                self._call("put_if_absent", key, _nothing)
            else:
                outcome = self._write("put_if_absent", key, create)
        except Unavailable:
            outcome = PutOutcome.UNKNOWN
        if self._watcher is not None:
            self._watcher.answered(self._process.name, "put_if_absent", key, data, outcome)
        return outcome

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            data: bytes = self._call("get", key, lambda: self._memory.get(key, offset, size))
        except BarrierRuntimeError as error:
            self._got(key, False if isinstance(error, ObjectNotFound) else None)
            raise
        self._got(key, True)
        if data and self._strikes("truncated_read", self._faults.truncated_read):
            return data[: len(data) // 2]
        if data and self._strikes("flipped_byte", self._faults.flipped_byte):
            at = self._simulation.between_us(0, len(data) - 1)
            return data[:at] + bytes([data[at] ^ (1 << self._simulation.bits(3))]) + data[at + 1 :]
        return data

    def get_file(self, key: str, path: Path) -> None:
        data = self.get(key)
        with path.open("xb") as file:
            file.write(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        age_us = 0
        if self._strikes("stale_list", self._faults.stale_list):
            age_us = self._simulation.between_us(1, int(self._faults.stale_s * SECOND))
        infos: Sequence[ObjectInfo] = self._call("list", prefix, lambda: self._listing(prefix, age_us))
        return iter(infos)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes all keys by one request, which may fail half done."""
        keys = list(keys)
        some = keys
        if self._strikes("partial_delete", self._faults.fail_before):
            some = keys[: self._simulation.between_us(0, len(keys))]
        if self._watcher is not None:
            for key in keys:
                self._watcher.requested(self._process.name, "delete", key)

        def drop() -> None:
            for key in some:
                self._drop(key)
            if len(some) < len(keys):
                raise Unavailable(f"{len(keys) - len(some)} of {len(keys)} objects were not deleted: try again")

        self._write("delete", ",".join(keys), drop)

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        self._write("publish", final, lambda: self._memory.publish(staged, final, sha256))

    def _write(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        faults, simulation = self._faults, self._simulation
        if self._strikes("land_late", faults.land_late):
            simulation.jobs.running(operation)
            self._told(operation, key)
            late_us = simulation.between_us(0, int(faults.late_s * SECOND))
            simulation.after(late_us, self._lands, lambda: self._traced(operation, key, effect))
            self._no_answer(operation, key)
        if self._strikes("apply_then_fail", faults.apply_then_fail):
            self._call(operation, key, effect)
            self._no_answer(operation, key)
        return self._call(operation, key, effect)

    def _call(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        faults, simulation = self._faults, self._simulation
        self._told(operation, key)
        held_us = int(faults.held_until_s * SECOND) - simulation.now_us
        if held_us > 0 and key.startswith(faults.held):
            simulation.jobs.block(held_us)
        if simulation.now_us < faults.outage_until_s * SECOND:
            self._struck("outage")
            if simulation.bits(1):
                self._no_answer(operation, key)
            self._request(_nothing)
            raise Unavailable(f"{operation} of {self.url}/{key} failed: try again")
        if self._strikes("fail_before", faults.fail_before):
            self._request(_nothing)
            raise Unavailable(f"{operation} of {self.url}/{key} failed: try again")
        return self._request(lambda: self._traced(operation, key, effect))

    def _request(self, effect: Callable[[], Any]) -> Any:
        simulation = self._simulation
        there, back = simulation.between_us(*_TRAVEL_US), simulation.between_us(*_TRAVEL_US)
        if self._strikes("slow", self._faults.slow):
            slow = simulation.between_us(0, int(self._faults.slow_s * SECOND))
            there += slow // 2
            back += slow - slow // 2
        return simulation.jobs.request(there, effect, back)

    def _no_answer(self, operation: str, key: str) -> NoReturn:
        self._simulation.jobs.block(self._simulation.between_us(*_GIVE_UP_US))
        raise Unavailable(f"{operation} of {self.url}/{key} got no answer: try again")

    def _got(self, key: str, there: bool | None) -> None:
        if self._watcher is not None:
            self._watcher.got(self._process.name, key, there)

    def _told(self, operation: str, key: str) -> None:
        if self._watcher is not None and operation != "delete":
            self._watcher.requested(self._process.name, operation, key)

    def _traced(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        self._memory.actor = self._process.name  # type: ignore[attr-defined]
        try:
            result = effect()
        except Exception as error:
            self._simulation.trace("store", self._process.name, operation, key, type(error).__name__)
            raise
        outcome = result.value if isinstance(result, PutOutcome) else "done"
        self._simulation.trace("store", self._process.name, operation, key, outcome)
        return result

    def _lands(self, effect: Callable[[], Any]) -> None:
        try:
            effect()
        except BarrierRuntimeError as error:
            self._simulation.trace("landed late", self._process.name, type(error).__name__)

    def _drop(self, key: str) -> None:
        deleted, now = self._faults.deleted, self._simulation.now_us
        while deleted and deleted[0][0] < now - _FORGET_DELETED_US:
            deleted.popleft()
        if self._faults.stale_list > 0:
            deleted.extend((now, info) for info in self._memory.list(key) if info.key == key)
        self._memory.delete([key])

    def _listing(self, prefix: str, age_us: int) -> Sequence[ObjectInfo]:
        infos = [*self._memory.list(prefix)]
        if age_us == 0:
            return infos
        then_us = self._simulation.now_us - age_us
        then_ms = self._memory.now_ms() - age_us // 1000
        gone = [info for when, info in self._faults.deleted if when >= then_us and info.key.startswith(prefix)]
        known = {info.key: info for info in (*gone, *infos) if info.modified_ms <= then_ms}
        return sorted(known.values(), key=lambda info: info.key)

    def _strikes(self, fault: str, rate: float) -> bool:
        if rate > 0 and self._simulation.rng.random() < rate:
            self._struck(fault)
            return True
        return False

    def _struck(self, fault: str) -> None:
        seen = self._faults.seen
        seen[fault] = seen.get(fault, 0) + 1
        self._simulation.trace("fault", self._process.name, fault)


def _nothing() -> None:
    pass
