"""Errors of libraries at every connector: either an operator must fix them and the job fails, or they are retried.

The table is `tests/library_errors.py`. A message names connector and place, and ends with the remedy.
"""

import importlib
import re

import pytest

from barrier_runtime import CollectSink
from barrier_runtime.connectors.registry import CONNECTORS, PublicClass
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.runtime.error_reports import STAGING, SinkTrouble, of_source
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.outside_errors import must_be_mended
from tests.library_errors import LIBRARY_ERRORS, RAW_MENDED, RAW_PASSING, WHERE, LibraryErrors

_REMEDY = re.compile(
    r"correct|filter|grant|give |install|set |create|shorten|allow|declare|set up|make the folder|use another|lack",
    re.I,
)
_RAW = re.compile(r"^\w*(?:Error|Invalid|Exception)\b: ")


def reached(entry: LibraryErrors, error: Exception) -> Exception:
    """Returns the engine's error for `error` raised by the connector's library."""
    found = error if entry.translate is None else entry.translate(error)
    return SinkTrouble(CollectSink(), "orders", 0).of(found, STAGING)


def cases(which: str) -> list[object]:
    return [
        pytest.param(entry, error, id=f"{name}: {type(error).__name__} {str(error)[:30]}")
        for name, entry in LIBRARY_ERRORS.items()
        for error in getattr(entry, which)
    ]


@pytest.mark.parametrize(("entry", "error"), cases("mended"))
def test_an_error_that_a_person_must_mend_ends_the_job_with_the_remedy(entry: LibraryErrors, error: Exception) -> None:
    found = reached(entry, error)
    assert isinstance(found, InvalidJob), found
    text = str(found)
    assert any(name in text for name in entry.names), text
    assert _REMEDY.search(text.partition(": ")[2]), text
    assert not _RAW.match(text.removeprefix("Traceback")), text


@pytest.mark.parametrize(("entry", "error"), cases("passing"))
def test_an_error_that_may_pass_is_tried_again(entry: LibraryErrors, error: Exception) -> None:
    found = reached(entry, error)
    assert not must_be_mended(found), found
    assert isinstance(found, Unavailable) or WHERE in str(found), (
        "an outage is no failure of the program, or it is named"
    )


SINKS = [each for row in CONNECTORS for sinks in row.sinks for each in sinks.classes]
SOURCES = [each for row in CONNECTORS for sources in row.sources for each in sources.classes]


@pytest.mark.parametrize("public", SINKS, ids=lambda public: str(public.name))
def test_whatever_reaches_the_engine_names_the_sink_and_the_remedy(public: PublicClass) -> None:
    kind = getattr(importlib.import_module(public.module), public.name)
    trouble = SinkTrouble(kind.__new__(kind), "orders", 3)
    for error in RAW_MENDED:
        found = trouble.of(error, STAGING)
        assert isinstance(found, InvalidJob)
        assert str(found).startswith(f"sink 'orders' ({public.name}), subtask 3: rows cannot be staged: "), found
        assert str(found).endswith("; then start the job again")
        assert _REMEDY.search(str(found))
        assert "The decided rows are kept, and are committed as soon as" in trouble.commit_failed(error)
    for error in RAW_PASSING:
        assert not must_be_mended(trouble.of(error, STAGING)), error
        assert trouble.commit_failed(error) == f"{type(error).__name__}: {error}", "the target may be down for a while"


@pytest.mark.parametrize("public", SOURCES, ids=lambda public: str(public.name))
def test_whatever_reaches_the_engine_names_the_source_and_the_remedy(public: PublicClass) -> None:
    kind = getattr(importlib.import_module(public.module), public.name)
    spec = SourceSpec("orders", kind.__new__(kind), ())
    for error in RAW_MENDED:
        found = of_source(error, spec, 3, "part-1", 17)
        assert isinstance(found, InvalidJob)
        assert str(found).startswith(f"source 'orders' ({public.name}), subtask 3, split 'part-1', after row 17: "), (
            found
        )
        assert str(found).endswith("; then start the job again")
        assert _REMEDY.search(str(found))
    for error in RAW_PASSING:
        assert of_source(error, spec, 3) is error
