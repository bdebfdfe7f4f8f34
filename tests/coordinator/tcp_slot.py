"""A slot's control connection over real TCP, blocking: handshake, framing and messages of the production code."""

import os
import socket
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from barrier_runtime.coordinator.wire.codec import decode_to_slot, encode
from barrier_runtime.coordinator.wire.handshake import NONCE_BYTES, Initiator
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CancelGeneration,
    Committed,
    Deploy,
    EndSources,
    Heartbeat,
    Register,
    Restored,
    SlotClaims,
    Start,
    SubtaskEnded,
    SubtaskId,
    ToCoordinator,
    ToSlot,
    Trigger,
    TryElsewhere,
)
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot

Kind = TypeVar("Kind", bound=ToSlot)


class TcpSlot:
    answers = False  # questions

    def __init__(self, job: str, run_id: str, secret: bytes, index: int, attempt: int = 0) -> None:
        self.job, self.run_id, self.secret = job, run_id, secret
        self.index, self.attempt = index, attempt
        self.uuid = f"slot-{index}-{attempt}-{os.urandom(4).hex()}"
        self.token, self.phase, self.highest = 0, "idle", 0
        self.committed: dict[str, int] = {}
        self.drained = False
        self.versions: dict[str, str] = {}
        self.inbox: list[ToSlot] = []
        self.told: list[str] = []  # messages of standby daemons
        self._socket: socket.socket | None = None

    def connect(self, address: tuple[str, int], timeout_s: float = 120.0) -> "TcpSlot":
        """Connects, authenticates and registers, with retries until the coordinator answers."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._try_connect(address)
                return self
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _try_connect(self, address: tuple[str, int]) -> None:
        connection = socket.create_connection(address, timeout=120)
        claims = msgspec.msgpack.encode(SlotClaims(self.index, self.uuid))
        initiator = Initiator(
            self.secret,
            job=self.job,
            run_id=self.run_id,
            purpose="control",
            claims=claims,
            nonce=os.urandom(NONCE_BYTES),
        )
        connection.sendall(initiator.hello())
        while initiator.session is None:
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("refused")
            connection.sendall(initiator.feed(data))
        self._framing = initiator.session.framing()
        self._socket = connection
        self._pending = self._framing.feed(initiator.unread())
        self.say(
            Register(
                slot=self.index,
                uuid=self.uuid,
                pid=os.getpid(),
                host="test",
                task_attempt=self.attempt,
                data_host="127.0.0.1",
                data_port=1,
                token=self.token,
                phase=self.phase,
                highest_checkpoint=self.highest,
                committed=dict(self.committed),
                drained=self.drained,
                versions=self.versions,
                answers=self.answers,
            )
        )

    def seek(self, addresses: Sequence[tuple[str, int]], timeout_s: float = 120.0) -> tuple[str, int]:
        """Tries the daemons in turn until one serves; returns the address, with the first message still unread."""
        deadline = time.monotonic() + timeout_s
        while True:
            for address in addresses:
                try:
                    self._try_connect(address)
                    message = decode_to_slot(self._next())
                except OSError:
                    continue
                if not isinstance(message, TryElsewhere):
                    return address
                self.told.append(message.reason)
                self.close()
            assert time.monotonic() < deadline, f"nobody serves slot {self.index}: {self.told[-1:]}"
            time.sleep(0.02)

    def _next(self) -> bytes:
        """Returns the next message's bytes, without consuming the message."""
        while not self._pending:
            data = self._connection.recv(65536)
            if not data:
                raise ConnectionResetError("the coordinator is gone")
            self._pending = self._framing.feed(data)
        return self._pending[0]

    @property
    def _connection(self) -> socket.socket:
        """The open connection. Raises `ConnectionError` after `close`, which another thread may have called."""
        if (connection := self._socket) is None:
            raise ConnectionError("the connection was closed")
        return connection

    def say(self, message: ToCoordinator) -> None:
        self._connection.sendall(self._framing.frame(encode(message)))

    def receive(self) -> ToSlot:
        """Returns the next message. Raises `ConnectionError` if the coordinator is gone."""
        message = decode_to_slot(self._next())
        self._pending.pop(0)
        self.inbox.append(message)
        if isinstance(message, Deploy):
            self.token, self.phase, self.drained = message.token, "restoring", message.drained
            self.say(Restored(self.token))
        elif isinstance(message, Start):
            self.phase = "running"
        elif isinstance(message, EndSources):
            self.drained = True
        elif isinstance(message, CancelGeneration):
            self.phase = "idle"
        elif isinstance(message, Trigger):
            self.highest = max(self.highest, message.checkpoint)
        return message

    def until(self, kind: type[Kind]) -> Kind:
        """Returns the next message of this kind; skips others."""
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

    def ack(self, checkpoint: int, **objects: FileRef) -> None:
        """Acknowledges a checkpoint with `objects` as files of the state."""
        for chain in (0, 1):
            snapshot = OperatorSnapshot("numbers", self.index, 2, {"position": b"1"}, objects=objects)
            operators = (snapshot,) if chain == 0 else ()
            self.say(Ack(self.token, checkpoint, SubtaskId(chain, self.index), operators))

    def end(self) -> None:
        for chain in (0, 1):
            self.say(SubtaskEnded(self.token, SubtaskId(chain, self.index)))

    def commit(self, checkpoint: int) -> None:
        self.committed[f"out/{self.index}"] = checkpoint
        self.say(Committed(self.token, checkpoint, "out", self.index))

    def heartbeat(self) -> None:
        self.say(Heartbeat(self.token, {"records": 1.0}))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
