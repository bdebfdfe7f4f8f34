"""Carrier of slots in processes of this machine."""

import itertools
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from barrier_runtime.carriers.slot_process import SlotOrder, encoded
from barrier_runtime.connectors.memory.batch_function import MakeFrame, arrow_table
from barrier_runtime.coordinator.client.embedded import how_it_ended
from barrier_runtime.spark.closure import pickled
from barrier_runtime.spark.task import SlotSettings
from barrier_runtime.state.texts import counted

log = logging.getLogger("barrier_runtime.job")

# Before any import: a module in the working directory must not take the place of ours.
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from barrier_runtime.carriers.slot_process import main; sys.exit(main())"
)
_FIRST_DELAY_S = 0.2  # before a process that died at once starts again; doubles
_MAX_DELAY_S = 10.0
_QUIET_S = 10.0  # a process that lived this long is replaced at once


@dataclass(frozen=True)
class _Running:
    group: str
    process: "subprocess.Popen[bytes]"
    held: socket.socket  # open while this program lives


class ProcessCarrier:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._attempts = itertools.count((int(time.time()) << 20) + secrets.randbits(10))  # above earlier carriers' ids
        self._running: dict[int, _Running] = {}
        self._cancelled: set[str] = set()
        self._closed = False
        self._last_end = ""

    def submit(self, settings: SlotSettings, slots: Sequence[int], group: str, hosts: Sequence[str] = ()) -> None:
        graph = settings.graph if isinstance(settings.graph, bytes) else pickled(settings.graph)
        orders = [_order(settings, graph, slot) for slot in slots]
        with ThreadPoolExecutor(max(1, len(orders)), thread_name_prefix="barrier-slot-process") as pool:
            list(pool.map(lambda order: self._carry(order, group), orders))

    def cancel(self, group: str) -> None:
        with self._lock:
            self._cancelled.add(group)
            self._changed.notify_all()
            for each in self._running.values():
                if each.group == group:
                    each.process.kill()

    def kill(self, attempt: int, reason: str) -> bool:
        with self._lock:
            found = self._running.get(attempt)
            if found is not None:
                found.process.kill()
        return found is not None

    def elsewhere(self, attempt: int) -> tuple[str, ...]:
        return ()

    def leaving(self, attempts: Collection[int]) -> dict[int, str]:
        return {}

    @property
    def one_host(self) -> bool:
        return True

    def pids(self) -> list[int]:
        with self._lock:
            return [each.process.pid for each in self._running.values()]

    def trouble(self) -> Exception | None:
        return None

    def room(self, groups: str) -> None:
        return None

    def described(self, slots: int) -> str:
        last = f"; the last process that ended: {self._last_end}" if self._last_end else ""
        here = counted(len(self.pids()), "process", "processes")
        return f"{here} of slots run on this machine{last}: see their messages above"

    @property
    def frames(self) -> MakeFrame:
        return arrow_table

    @property
    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            for each in self._running.values():
                each.process.kill()

    def _carry(self, order: SlotOrder, group: str) -> None:
        delay = _FIRST_DELAY_S
        left, died = False, dict[int, str]()
        while not left:
            began = time.monotonic()
            try:
                left, died = self._run(order, died, group)
            except OSError as error:  # processes, memory or descriptors are used up for the moment
                self._last_end = f"slot {order.slot} cannot start: {error}"
                log.warning("%s; it is tried again", self._last_end)
            if time.monotonic() - began > _QUIET_S:
                delay = _FIRST_DELAY_S
            elif not left:
                with self._lock:
                    self._changed.wait_for(lambda: self._over(group), delay)
                delay = min(2 * delay, _MAX_DELAY_S)

    def _run(self, order: SlotOrder, died: dict[int, str], group: str) -> tuple[bool, dict[int, str]]:
        """Returns whether the slot has left or was cancelled, and the signal of a death."""
        started = self._start(order, died, group)
        if started is None:
            return True, {}
        attempt, running = started
        code = running.process.wait()
        running.held.close()
        with self._lock:
            del self._running[attempt]
            self._last_end = f"slot {order.slot}, process {running.process.pid}, {how_it_ended(code)}"
        return code == 0, {running.process.pid: how_it_ended(code).removeprefix("died of ")} if code < 0 else {}

    def _start(self, order: SlotOrder, died: dict[int, str], group: str) -> tuple[int, _Running] | None:
        with self._lock:
            if self._over(group):
                return None
            attempt = next(self._attempts)
            ours, of_the_slot = socket.socketpair()
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(path=_importable())],
                    stdin=of_the_slot.fileno(),
                    start_new_session=True,  # Ctrl-C reaches only this program, which then ends the job
                )
            except OSError:
                ours.close()
                raise
            finally:
                of_the_slot.close()
            running = self._running[attempt] = _Running(group, process, ours)
        self._send(running, msgspec.structs.replace(order, attempt=attempt, died=died))
        return attempt, running

    def _send(self, running: _Running, order: SlotOrder) -> None:
        try:
            running.held.sendall(encoded(order))
        except OSError as error:  # the process died before reading the order
            log.debug("process %d did not take its order: %s", running.process.pid, error)

    def _over(self, group: str) -> bool:
        return self._closed or group in self._cancelled


def _order(settings: SlotSettings, graph: bytes, slot: int) -> SlotOrder:
    return SlotOrder(
        slot,
        0,
        graph,
        settings.options,
        settings.secret,
        settings.control_addresses,
        settings.storage_url,
        settings.name,
        settings.program,
        settings.succeeds,
    )


def _importable() -> list[str]:
    return list(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
