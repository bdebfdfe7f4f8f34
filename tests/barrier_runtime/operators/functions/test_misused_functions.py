"""Invalid results and calls of users' functions: each error names the function and the remedy."""

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JobFailed, ValueState
from barrier_runtime.operators.user_code import came_by_signal
from barrier_runtime.testing import KeyedHarness


async def coroutine(*given: Any) -> dict[str, int]:
    return {"k": 1}


async def generator(*given: Any) -> Any:
    yield {"k": 1}


def leaves(*given: Any) -> Any:
    sys.exit("nothing to do")


def _rows(flow: Dataflow) -> Any:
    return flow.from_iterator("in", lambda i, of: iter([{"k": 1}]), schema={"k": int}, splits=1)


MISUSES: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda rows: rows.key_by("k").process("p", lambda *given: coroutine(*given)),
        "gave a coroutine, and nobody awaits",
    ),
    (lambda rows: rows.key_by("k").process("p", lambda *given: generator()), "gave an async generator, and nobody"),
    (lambda rows: rows.process("p", lambda row, ctx: coroutine(row)), r"gave a coroutine.* belongs in lookup\("),
    (lambda rows: rows.flat_map(lambda row: coroutine(row)), "gave a coroutine, and nobody awaits it here"),
    (
        lambda rows: rows.flat_map(lambda row: row),
        r"it gave one row, and flat_map takes any number of them: return \[row",
    ),
    (
        lambda rows: rows.flat_map(lambda row: row, on_error="skip"),
        "it gave one row, and flat_map takes any number of them",
    ),
    (lambda rows: rows.map(leaves), "a function raised SystemExit: nothing to do, which is no Exception"),
    (lambda rows: rows.key_by("k").process("p", leaves), "a function raised SystemExit: nothing to do"),
]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(("step", "told"), MISUSES)
def test_what_nobody_takes_ends_the_job_with_the_remedy(step: Callable[[Any], Any], told: str) -> None:
    flow = Dataflow("misused")
    step(_rows(flow)).sink("out", CollectSink())
    with pytest.raises(JobFailed, match=told):
        flow.run_local(parallelism=1, restart="none")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_harness_says_it_as_well() -> None:
    with KeyedHarness(coroutine, key="k") as harness, pytest.raises(InvalidJob, match="gave a coroutine, and nobody"):
        harness.push({"k": 1})


def test_exit_of_a_programs_signal_handler_is_distinguished_from_a_functions_exit() -> None:
    before = signal.signal(signal.SIGTERM, leaves)
    try:
        with pytest.raises(SystemExit) as by_signal:
            signal.raise_signal(signal.SIGTERM)
        assert came_by_signal(by_signal.value)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(SystemExit) as by_function:
        leaves()
    assert not came_by_signal(by_function.value)


class Closing:
    seen = ValueState(int, default=0)

    def __init__(self, what: str) -> None:
        self._what = what

    def open(self, ctx: Any) -> None:
        self._ctx = ctx

    def process(self, key: int, row: dict[str, int], ctx: Any) -> dict[str, int]:
        return row

    def close(self) -> None:
        if self._what == "emits":
            self._ctx.emit("side", {"k": 1})
        else:
            self.seen.value += 1


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("emits", r"close\(\) emits into 'side', but rows go out only with a row"),
        ("writes", r"close\(\) uses self.seen"),
    ],
)
def test_what_close_gives_or_stores_is_refused(what: str, told: str) -> None:
    harness = KeyedHarness(Closing(what), key="k", side={"side": {"k": int}})
    harness.push({"k": 1})
    with pytest.raises(InvalidJob, match=told):
        harness.close()


def test_a_close_that_yields_is_refused_when_the_flow_is_written() -> None:
    class Yields:
        def process(self, key: int, row: dict[str, int], ctx: Any) -> dict[str, int]:
            return row

        def close(self) -> Any:
            yield {"k": 1}

    with pytest.raises(InvalidJob, match=r"close\(\) yields, but rows go out only with a row or a timer"):
        _rows(Dataflow("misused")).key_by("k").process("p", Yields)
