"""Cost of a wide job for the coordinator: fake slots on the real wire, a real daemon.

    python -m benchmarks.wide_jobs 2 16 64 256

A fake slot registers, sends a heartbeat every second, and acknowledges and commits each checkpoint at once. Both
subtasks have a snapshot; the keyed state of the second subtask has `--files` files. Processor time is the daemon's:
first of checkpoints without heartbeats (acknowledgements show that the slots live), then with heartbeats, whose cost is
the difference.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CancelGeneration,
    ChainSpec,
    CheckpointComplete,
    CheckpointOptions,
    Committed,
    Deploy,
    Heartbeat,
    JobSpec,
    Register,
    Restored,
    SlotClaims,
    Start,
    SubtaskId,
    ToSlot,
    Trigger,
)
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot

_JOB = "wide"
_START_S = 300.0
_SOURCE, _SINK = "numbers", "out"


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str, str]]:
    """(process, URL, token) of a coordinator with the store in `folder`."""
    token, file = secrets.token_hex(32), folder / "bench.token"
    file.touch(mode=0o600)
    file.write_text(token)
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=4_096) for _ in range(2)]
    fds = [each.fileno() for each in sockets]
    command = [sys.executable, "-m", "barrier_runtime.coordinator.server.daemon", "--storage", str(folder / "store")]
    command += ["--token-file", str(file), "--control-fd", str(fds[0]), "--http-fd", str(fds[1])]
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, pass_fds=fds)
    try:
        yield process, f"http://127.0.0.1:{sockets[1].getsockname()[1]}", token
    finally:
        process.kill()
        process.wait()
        for each in sockets:
            each.close()


class FakeSlot:
    """A slot without rows: acknowledges and commits at once."""

    def __init__(self, slot: int, parallelism: int, files: int, store: Path) -> None:
        self.slot = slot
        self.uuid = secrets.token_hex(16)
        self.started = False
        self.completed = 0
        self._parallelism = parallelism
        self._store = store
        self._files = [self._file() for _ in range(files)]
        self._token = 0
        self._phase: Literal["idle", "running"] = "idle"

    def connect(self, address: tuple[str, int], secret: bytes, run_id: str) -> "asyncio.Task[None]":
        claims = msgspec.msgpack.encode(SlotClaims(self.slot, self.uuid))
        self._link = TcpControlLink((address,), secret, _JOB, run_id, claims, self._register, self._receive)
        return asyncio.ensure_future(self._link.run())

    def beat(self) -> None:
        figures = {"rss_bytes": 1e8, f"{_SOURCE}.rows": 1.0, f"{_SINK}.rows": 2.0, "busy_ms": 5.0}
        self._link.send(Heartbeat(self._token, figures, sent_at_ms=int(time.time() * 1000)))

    def _register(self) -> None:
        self._link.send(
            Register(
                slot=self.slot,
                uuid=self.uuid,
                pid=1_000 + self.slot,
                host=f"host{self.slot // 4}",
                task_attempt=self.slot + 1,
                data_host="127.0.0.1",
                data_port=40_000,
                token=self._token,
                phase=self._phase,
            )
        )

    def _receive(self, message: ToSlot) -> None:
        if isinstance(message, CancelGeneration):
            self._token, self._phase = message.token, "idle"
        elif isinstance(message, Deploy):
            self._token, self._phase = message.token, "running"
            self._link.send(Restored(self._token))
        elif isinstance(message, Start):
            self.started = True
        elif isinstance(message, Trigger):
            for chain, snapshot in enumerate(self._snapshots()):
                subtask = SubtaskId(chain, self.slot)
                self._link.send(Ack(self._token, message.checkpoint, subtask, (snapshot,)))
        elif isinstance(message, CheckpointComplete):
            self.completed = message.checkpoint
            self._link.send(Committed(self._token, message.checkpoint, _SINK, self.slot))

    def _snapshots(self) -> tuple[OperatorSnapshot, OperatorSnapshot]:
        self._files = [*self._files[1:], self._file()]
        groups = max(128, self._parallelism)
        width = groups // self._parallelism
        first = self.slot * width
        size = 100_000
        keyed = KeyedSnapshot(
            "rocksdb",
            groups,
            first,
            groups - 1 if self.slot == self._parallelism - 1 else first + width - 1,
            {"n": 1, "@timers": 2},
            tuple(self._files),
            full_bytes=size * len(self._files),
            new_bytes=size,
        )
        source = OperatorSnapshot(_SOURCE, self.slot, self._parallelism, {"positions": os.urandom(100)})
        return source, OperatorSnapshot(_SINK, self.slot, self._parallelism, {"pending": os.urandom(300)}, keyed)

    def _file(self) -> FileRef:
        """Stored without its bytes, for the daemon to delete."""
        name = secrets.token_hex(16)
        file = FileRef(f"{name[:6]}.sst", 100_000, name * 2, f"{_JOB}/data/1/{self.uuid}/{name}")
        stored = self._store / str(file.key)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.touch()
        return file


def description(parallelism: int, interval_s: float) -> JobSpec:
    chains = (
        ChainSpec(chain=0, operators=(_SOURCE,), stateful=(_SOURCE,), is_source=True),
        ChainSpec(chain=1, operators=(_SINK,), stateful=(_SINK,), sinks=(_SINK,), inputs=(0,)),
    )
    return JobSpec(
        job=_JOB,
        run_id="run1",
        submitter="benchmark",
        parallelism=parallelism,
        max_parallelism=max(128, parallelism),
        chains=chains,
        checkpoints=CheckpointOptions(interval_ms=int(interval_s * 1000)),
    )


async def measured(parallelism: int, arguments: argparse.Namespace) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)) as (process, url, token):
        client = CoordinatorClient(url, token)
        while True:
            with contextlib.suppress(Unavailable):
                reply = await asyncio.to_thread(client.submit, description(parallelism, arguments.interval))
                break
            await asyncio.sleep(0.1)
        store = Path(folder) / "store"
        slots = [FakeSlot(slot, parallelism, arguments.files, store) for slot in range(parallelism)]
        began, usage = time.monotonic(), psutil.Process(process.pid)
        address, secret = (reply.control_host, reply.control_port), bytes.fromhex(reply.secret)
        tasks = [slot.connect(address, secret, "run1") for slot in slots]
        try:
            await _until(lambda: all(slot.started for slot in slots), began)
            start_s = time.monotonic() - began
            await _until(lambda: slots[0].completed > 1, began)
            without, count, _ = await _spent(usage, slots[0], arguments)
            tasks.append(asyncio.ensure_future(_beats(slots)))
            spent, beside, seconds = await _spent(usage, slots[0], arguments)
            each_ms = 1000 * without / count
            beats_ms = (1000 * spent - each_ms * beside) / seconds
            memory = usage.memory_info().rss >> 20
        finally:
            for task in tasks:
                task.cancel()
    return f"| {parallelism:,} | {start_s:.1f} | {count} | {each_ms:.1f} | {beats_ms:.1f} | {memory} |"


async def _spent(usage: psutil.Process, slot: FakeSlot, arguments: argparse.Namespace) -> tuple[float, int, float]:
    """(the daemon's processor seconds, checkpoints, seconds) of a measurement from checkpoint to checkpoint."""
    first = await _next_checkpoint(slot)
    began, cpu = time.monotonic(), usage.cpu_times()
    while time.monotonic() - began < arguments.seconds or slot.completed - first < arguments.checkpoints:
        if time.monotonic() - began > arguments.seconds + _START_S:
            raise SystemExit(f"no {arguments.checkpoints} checkpoints in time")
        last = await _next_checkpoint(slot)
    now = usage.cpu_times()
    return now.user + now.system - cpu.user - cpu.system, last - first, time.monotonic() - began


async def _next_checkpoint(slot: FakeSlot) -> int:
    """Waits for the next completed checkpoint, and until its commits have been handled."""
    before, began = slot.completed, time.monotonic()
    await _until(lambda: slot.completed > before, began)
    await asyncio.sleep(0.3)
    return slot.completed


async def _beats(slots: list[FakeSlot]) -> None:
    while True:
        for slot in slots:
            slot.beat()
        await asyncio.sleep(1.0)


async def _until(condition: Callable[[], bool], began: float) -> None:
    while not condition():
        if time.monotonic() - began > _START_S:
            raise SystemExit(f"the job did not start within {_START_S:.0f} s")
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_jobs", description=__doc__.splitlines()[0])
    parser.add_argument("widths", nargs="*", type=int, default=[2, 16, 64, 256], metavar="SLOTS")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured per width (%(default)s)")
    parser.add_argument("--checkpoints", type=int, default=10, help="at least (%(default)s)")
    parser.add_argument("--files", type=int, default=5, help="of keyed state, per slot (%(default)s)")
    arguments = parser.parse_args()
    print("| slots | s to start | checkpoints | CPU ms per checkpoint | per second of heartbeats | daemon's MiB |")
    print("|---|---|---|---|---|---|")
    for width in arguments.widths:
        print(asyncio.run(measured(width, arguments)), flush=True)


if __name__ == "__main__":
    main()
