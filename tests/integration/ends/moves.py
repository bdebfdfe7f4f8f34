"""Changes of a job under fire: rescales, replaced programs, and the strikes in between.

The harness writes an order into a file, `moves/<number>.json`; the program carries the order out and answers in
`moves/<number>.done`. A program that dies before the answer never answers: the next start does not repeat the order.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.requests import Replaced, Rescaled
from barrier_runtime.state.errors import BarrierRuntimeError
from tests.integration.ends.plan import Kind

MoveKind = Literal["rescale", "replace"]
_TIMEOUT_S = 60.0
_LOOK_S = 0.02


@dataclass(frozen=True)
class Move:
    kind: MoveKind
    gap_s: float  # from the moment the job got on
    strike: Kind | None = None  # while the change is under way
    strike_gap_s: float = 0.0
    hold_s: float = 0.0  # how long a server stays away


class Order(msgspec.Struct, frozen=True):
    kind: MoveKind
    parallelism: int


class Done(msgspec.Struct, frozen=True):
    """Result of an order. `pause_ms`: None if there was no change to make. `unexpected`: an error of foreign origin."""

    pause_ms: int | None = None
    error: str = ""
    unexpected: bool = False


@dataclass(frozen=True)
class Moved:
    """Outcome of a move. `error`: the reason why the job continued unchanged."""

    kind: MoveKind
    parallelism: int
    strike: Kind | None
    pause_ms: int | None
    error: str
    unexpected: bool = False

    @property
    def done(self) -> bool:
        return self.pause_ms is not None and not self.error


def plan_moves(seed: int, rescales: int, replaces: int, kills: int, server: bool) -> list[Move]:
    """`rescales` and `replaces` moves in an order drawn from the seed.

    During `kills` of the moves a process is struck; all possible kinds take turns.
    """
    draw = random.Random(seed)
    kinds: list[MoveKind] = ["rescale"] * rescales + ["replace"] * replaces
    draw.shuffle(kinds)
    victims: tuple[Kind, ...] = ("slot", "coordinator", "driver", "program", *(("server kill",) if server else ()))
    struck = draw.sample(range(len(kinds)), min(kills, len(kinds)))
    strikes = {at: victims[number % len(victims)] for number, at in enumerate(struck)}
    return [
        Move(
            kind,
            draw.uniform(0.0, 0.3),
            strikes.get(at),
            draw.uniform(0.0, 1.5),
            draw.uniform(0.3, 2.0) if strikes.get(at, "").startswith("server") else 0.0,
        )
        for at, kind in enumerate(kinds)
    ]


class Orders:
    """The harness's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = 0
        folder.mkdir(parents=True, exist_ok=True)

    def give(self, order: Order) -> int:
        self._given += 1
        _write(self._folder / f"{self._given}.json", msgspec.json.encode(order))
        return self._given

    def answer(self, number: int) -> Done | None:
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode((self._folder / f"{number}.done").read_bytes(), type=Done)
        return None


def next_order(folder: Path) -> int:
    """The number of the next order; called before any other process can see that the program runs."""
    return 1 + len(list(folder.glob("*.json")))


def take_orders(handle: JobHandle, folder: Path, number: int, build: Callable[[], Any]) -> None:
    """The program's side, for a thread of its own: orders from `number` on. `build`: makes the program that replaces
    the running program."""
    while True:
        path = folder / f"{number}.json"
        if path.exists():
            order = msgspec.json.decode(path.read_bytes(), type=Order)
            _write(folder / f"{number}.done", msgspec.json.encode(_carried_out(handle, order, build)))
            number += 1
        time.sleep(_LOOK_S)


def _carried_out(handle: JobHandle, order: Order, build: Callable[[], Any]) -> Done:
    try:
        if order.kind == "rescale":
            moved: Rescaled | Replaced = handle.rescale(order.parallelism, timeout=_TIMEOUT_S)
        else:
            moved = handle.replace(build(), timeout=_TIMEOUT_S)
    except BarrierRuntimeError as error:
        return Done(error=str(error) or type(error).__name__)
    except Exception as error:  # without an answer, the harness would wait until its timeout
        return Done(error=repr(error), unexpected=True)
    return Done(None if moved.checkpoint is None else moved.pause_ms)


def _write(path: Path, data: bytes) -> None:
    """Whole, or not at all."""
    written = path.with_suffix(".new")
    written.write_bytes(data)
    os.replace(written, path)
