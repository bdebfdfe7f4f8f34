"""Threads of this process that call `for_each_batch` functions, a thread per function.

Requests are in the job's storage (`connectors/memory/batch_function`), so they outlive the slot and the program.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from barrier_runtime.connectors.memory.batch_function import BatchCaller, BatchQueue, MakeFrame
from barrier_runtime.graph.logical import Plan, StepNode
from barrier_runtime.operators.user_code import stray_error
from barrier_runtime.state.errors import PERMANENT
from barrier_runtime.state.store.object_store import ObjectStore

log = logging.getLogger("barrier_runtime.job")

_FIRST_LOOK_S = 0.02
_LONGEST_LOOK_S = 1.0  # also the longest pause between two attempts
_LEAVE_S = 10.0
_Result = TypeVar("_Result")


class BatchFunctions:
    def __init__(self, plan: Plan, store: ObjectStore, make_frame: MakeFrame) -> None:
        self.trouble: Exception | None = None  # why a function is no longer called
        self._stopping = threading.Event()
        self._on_trouble: Callable[[], None] = lambda: None
        self._threads = [
            threading.Thread(target=self._follow, args=(caller, node.name), name=f"batch-{node.name}", daemon=True)
            for node in plan.nodes
            if isinstance(node, StepNode) and node.batch_call is not None and node.name is not None
            for caller in [
                BatchCaller(
                    BatchQueue(store, plan.name, node.name),
                    node.batch_call.function,
                    node.batch_call.attempts,
                    make_frame,
                )
            ]
        ]

    def start(self, on_trouble: Callable[[], None]) -> None:
        """`on_trouble`: called by a thread whose function has failed for good."""
        self._on_trouble = on_trouble
        for thread in self._threads:
            thread.start()

    async def watched(self, job: Coroutine[Any, Any, _Result]) -> _Result:
        """If a function fails for good, cancels the job and raises `trouble`."""
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(job)

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # the job closed the loop
                loop.call_soon_threadsafe(running.cancel)

        self.start(cancel)
        try:
            return await running
        except asyncio.CancelledError:
            if self.trouble is not None:
                raise self.trouble from None
            raise

    def __enter__(self) -> "BatchFunctions":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Prevents further calls; waits up to 10 s for a running call."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(_LEAVE_S)

    def _follow(self, caller: BatchCaller, name: str) -> None:
        look_s = _FIRST_LOOK_S
        while not self._stopping.wait(look_s):
            try:
                worked = caller.turn() and not caller.failures
            except PERMANENT as error:
                self.trouble = error
                self._on_trouble()
                return
            except Exception as error:
                log.warning("for_each_batch %r: cannot look for batches (%s); it is tried again", name, error)
                worked = False
            except BaseException as error:  # the thread would end without a word
                self.trouble = stray_error(error)
                self._on_trouble()
                return
            look_s = _FIRST_LOOK_S if worked else min(look_s * 1.5, _LONGEST_LOOK_S)


def has_batch_functions(plan: Plan) -> bool:
    return any(isinstance(node, StepNode) and node.batch_call is not None for node in plan.nodes)
