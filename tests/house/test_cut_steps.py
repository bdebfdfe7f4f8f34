"""The table of steps that tests cut in many ways (`cut_steps`) has every public method that makes a step."""

import inspect

from cut_steps import STEPS

from barrier_runtime.api.connected import ConnectedStreams
from barrier_runtime.api.steps import Steps
from barrier_runtime.api.stream import BroadcastStream, KeyedStream, Stream, TypedKeyedStream, TypedStream
from barrier_runtime.api.windowed import WindowedStream

STREAMS = (Stream, KeyedStream, WindowedStream, ConnectedStreams, BroadcastStream)
FOR_CHECKERS = {TypedStream, TypedKeyedStream}  # of which no stream is made
NO_STEPS = {
    "Stream.sink": "gives no stream, and reads no event time",
    "KeyedStream.sink": "as Stream.sink, behind an exchange by key",
    "Stream.for_each_batch": "gives no stream: its function gets the rows of a checkpoint, which follows the clock",
    "Stream.stable": "emits after the decision of a checkpoint, which an inline job has not",
    "Stream.followed_by": "as Stream.union, with an order of sources that the slot keeps, not the step",
    "Stream.top": "as WindowedStream.top, of the same windows",
    "Stream.typed": "as Stream.select",
    "Stream.take": "gives no stream",
    "Stream.show": "gives no stream",
    "Stream.preview": "gives no stream",
}


def test_each_public_method_of_a_stream_is_in_the_table_or_makes_no_step() -> None:
    public = {
        f"{stream.__name__}.{name}"
        for stream in STREAMS
        for name, _ in inspect.getmembers(stream, inspect.isfunction)
        if not name.startswith("_")
    }
    tried = {method for step in STEPS.values() for method in step.of}
    assert public - tried - NO_STEPS.keys() == set(), "add a step to tests/barrier_runtime/cut_steps.py"
    assert (tried | NO_STEPS.keys()) - public == set(), "the table names methods that are gone"


def test_all_streams_are_known_here() -> None:
    """Classes of streams are those to which steps are added, and the results of `window` and `connect`."""
    found, todo = set(), [Steps]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        found.add(kind)
    assert {kind for kind in found if not inspect.isabstract(kind)} - FOR_CHECKERS <= set(STREAMS)
