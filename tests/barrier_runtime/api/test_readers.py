"""The `read_…` methods have the arguments of their source class; event time is set in the source or in the method."""

import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CsvSource, Dataflow, InvalidJob, RateSource, Tumbling, count
from barrier_runtime.api import sources
from barrier_runtime.graph.logical import SourceNode

SECOND = timedelta(seconds=1)
TIMES: Any = {"event_time": "intended_at", "max_out_of_orderness": SECOND, "idle_timeout": SECOND}


def _node(flow: Dataflow) -> SourceNode:
    node = flow.plan.nodes[0]
    assert isinstance(node, SourceNode)
    return node


@pytest.mark.parametrize(
    "read",
    [
        lambda flow: flow.rate(
            "ticks", 10, 5, event_time="intended_at", max_out_of_orderness=SECOND, idle_timeout=SECOND
        ),
        lambda flow: flow.source("ticks", RateSource(10, 5, **TIMES)),
        lambda flow: flow.source("ticks", RateSource(10, 5), **TIMES),
        lambda flow: flow.source(
            "ticks", RateSource(10, 5, event_time="intended_at", idle_timeout=SECOND), max_out_of_orderness=SECOND
        ),
    ],
)
def test_event_time_means_the_same_in_the_source_and_beside_it(read) -> None:  # type: ignore[no-untyped-def]
    flow = Dataflow("ticking")
    counted = read(flow).key_by("value").window("w", Tumbling(SECOND), event_time="intended_at").aggregate(n=count())
    assert counted.schema.names == ["value", "window_start", "window_end", "n"]
    node = _node(flow)
    assert (node.event_time, node.max_out_of_orderness_ms, node.idle_timeout_ms) == ("intended_at", 1000, 1000)


def test_event_time_that_is_said_twice_differently_is_refused() -> None:
    source = RateSource(10, 5, event_time="intended_at")
    with pytest.raises(InvalidJob, match="'value' beside the source and 'intended_at' in it: leave one"):
        Dataflow("twice").source("ticks", source, event_time="value")
    Dataflow("agreed").source("ticks", source, event_time="intended_at")


def test_a_reading_method_shows_the_arguments_and_the_text_of_its_class() -> None:
    flow = Dataflow("shown")
    shown = inspect.signature(flow.read_csv)
    names = list(inspect.signature(CsvSource).parameters)
    assert sorted(shown.parameters) == sorted(["name", *names])
    assert list(shown.parameters)[:2] == ["name", "paths"]
    assert "CSV files with a header line" in str(flow.read_csv.__doc__)
    assert flow.read_csv.__name__ == "read_csv"


def test_every_class_of_sources_is_found_by_its_name() -> None:
    assert [getattr(sources, name).__name__ for name in sources._HOME] == list(sources._HOME)
    with pytest.raises(AttributeError, match="no attribute 'XmlSource'"):
        sources.XmlSource  # noqa: B018


@pytest.mark.slow
def test_a_flow_loads_only_what_it_uses(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("n\n1\n")
    code = (
        "import sys\nfrom barrier_runtime import Dataflow, JsonlSink\n"
        f"rows = Dataflow('few').read_csv('rows', {str(tmp_path)!r})\n"
        "rows.filter('n > 0').sink('out', JsonlSink('out'))\n"
        "print(*(name for name in sys.modules if name.startswith('barrier_runtime')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    unused = ("kafka", "postgres", "rabbitmq", "kinesis", "operators.joins", "sessions", "windows.aggregate")
    assert [name for name in loaded for part in unused if f".{part}" in name] == []
