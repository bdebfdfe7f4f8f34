"""A connector is one row of the registry: folder, exports, pyproject and docs are compared with the row."""

import ast
import re
from pathlib import Path

import pytest

import barrier_runtime
from barrier_runtime.connectors.registry import CONNECTORS, Connector, PublicClass
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from tests.connectors_table import PAGE, with_tables
from tests.house.test_layers import SHARED
from tests.library_errors import LIBRARY_ERRORS
from tests.parsed import nodes, statements

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "barrier_runtime" / "connectors"
EXTRAS_OF_NO_CONNECTOR = {"coordinator", "spark", "s3", "clouds", "sketches", "otel", "testing", "bench", "docs", "dev"}
SOURCES = [each for row in CONNECTORS for sources in row.sources for each in sources.classes]
SINKS = [each for row in CONNECTORS for sinks in row.sinks for each in sinks.classes]

every_class = pytest.mark.parametrize("public", [*SOURCES, *SINKS], ids=lambda public: str(public.name))
with_library = pytest.mark.parametrize(
    "row", [row for row in CONNECTORS if row.library is not None], ids=lambda row: str(row.name)
)


def extras() -> dict[str, list[str]]:
    """Requirements of pyproject, by the extra's name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^(\w+) = (\[.*?\])$", table, re.MULTILINE | re.DOTALL)
    return {name: ast.literal_eval(value) for name, value in found}


def test_every_folder_has_a_row_and_every_row_a_folder() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/__init__.py")} - set(SHARED)
    assert sorted(row.name for row in CONNECTORS) == sorted(folders)


def test_errors_of_every_connectors_library_are_sorted() -> None:
    """Permanent errors, which a person must resolve, and passing errors: `tests/library_errors.py`."""
    sorted_out = {name for name, entry in LIBRARY_ERRORS.items() if entry.mended and entry.passing}
    assert sorted_out == {row.name for row in CONNECTORS}


def test_every_extra_is_of_one_row() -> None:
    ours = [row.library.extra for row in CONNECTORS if row.library is not None]
    assert sorted(ours) == sorted(extras().keys() - EXTRAS_OF_NO_CONNECTOR)


@with_library
def test_the_extra_installs_the_library_and_dev_has_it(row: Connector) -> None:
    assert row.library is not None
    names = [re.split(r"[\[<>=~!;]", each)[0].replace("-", "_") for each in extras()[row.library.extra]]
    assert names == [row.library.module]
    (own,) = [each for each in extras()["dev"] if each.startswith("barrier-runtime[")]
    assert row.library.extra in own.removeprefix("barrier-runtime[").removesuffix("]").split(",")


def test_every_source_says_what_its_positions_are_positions_in() -> None:
    """A job does not continue with positions in another system under an old name."""
    silent = []
    for path in sorted(FOLDER.rglob("*.py")):
        for each in nodes(path.relative_to(ROOT).as_posix()):
            if isinstance(each, ast.ClassDef) and "Protocol" not in {
                base.id for base in each.bases if isinstance(base, ast.Name)
            }:
                names = {of.name for of in each.body if isinstance(of, ast.FunctionDef)}
                text = ast.unparse(each)
                if {"splits", "reader"} <= names and "positions_in" not in text:
                    silent.append(f"{path.name}: {each.name}")
    assert silent == []


def test_every_sink_that_is_made_again_names_its_target() -> None:
    """Pending transactions are not restored into a sink of another target."""
    kinds = [getattr(barrier_runtime, public.name) for public in SINKS if public.kind]
    assert [each.__name__ for each in kinds if each.target is TwoPhaseCommitSink.target] == []


@with_library
def test_the_image_has_the_library(row: Connector) -> None:
    assert row.library is not None
    (given,) = re.findall(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert row.library.extra in given.split(",")


@with_library
def test_the_docs_say_why_the_library_was_chosen(row: Connector) -> None:
    assert row.library is not None
    dependencies = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert f"(`[{row.library.extra}]`)" in dependencies


@with_library
def test_the_doorway_imports_the_library(row: Connector) -> None:
    """The test of all doorways checks that no other module imports the library."""
    assert row.library is not None
    doorway = FOLDER / row.name / row.library.doorway
    imported = {
        name.split(".")[0]
        for path in (doorway.rglob("*.py") if doorway.is_dir() else [doorway])
        for node in statements(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert row.library.module in imported


@every_class
def test_a_class_of_a_row_is_public_and_lies_in_the_rows_folder(public: PublicClass) -> None:
    assert barrier_runtime._HOME.get(public.name) == public.module
    (row,) = [row for row in CONNECTORS for each in (*row.sources, *row.sinks) if public in each.classes]
    assert public.path.split(".")[0] == row.name
    assert getattr(barrier_runtime, public.name).__module__ == public.module


def test_every_public_source_and_sink_of_a_connector_is_in_a_row() -> None:
    below = {
        name
        for name, home in barrier_runtime._HOME.items()
        if home.startswith("barrier_runtime.connectors.") and name.endswith(("Source", "Sink"))
        if len(home.split(".")) > 3 and home.split(".")[2] not in SHARED
    }
    assert below == {each.name for each in (*SOURCES, *SINKS)}


def test_a_sink_has_the_kind_of_its_row() -> None:
    assert {each.name: each.kind for each in SINKS} == {
        each.name: getattr(barrier_runtime, each.name).kind for each in SINKS
    }


def test_every_method_that_reads_is_in_a_row() -> None:
    methods = [name for row in CONNECTORS for sources in row.sources for name in sources.methods]
    reading = {name for name in dir(barrier_runtime.Dataflow) if name.startswith("read_")}
    assert reading <= set(methods)
    assert [name for name in methods if not hasattr(barrier_runtime.Dataflow, name)] == []


def test_the_tables_of_connectors_are_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: make tables"
