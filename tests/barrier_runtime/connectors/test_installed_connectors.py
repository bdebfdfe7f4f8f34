"""A connector of another package is found by its entry point, and its sink keeps the promises of ours."""

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import Dataflow, InvalidJob
from barrier_runtime.connectors.installed import all_connectors, sinks_by_kind
from barrier_runtime.connectors.registry import CONNECTORS
from barrier_runtime.connectors.sink_value import make_sink
from barrier_runtime.testing import certify

PACKAGE = Path(__file__).resolve().parents[3] / "examples" / "sqlite_connector"
POINTS = "[barrier_runtime.connectors]\n"


def _install(folder: Path, name: str, entry_points: str) -> None:
    """What an installer writes beside a package."""
    info = folder / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(POINTS + entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, with the example's."""
    table = (PACKAGE / "pyproject.toml").read_text().partition('."barrier_runtime.connectors"]\n')[2]
    _install(tmp_path, "barrier_runtime_sqlite", table.partition("\n")[0].replace('"', ""))
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for module in [each for each in sys.modules if each.startswith("barrier_runtime_sqlite")]:
        del sys.modules[module]


def _rows(path: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return []
        found = database.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]


def test_a_connector_of_another_package_is_found_behind_ours(site: Path) -> None:
    assert [each.name for each in all_connectors()] == [*(each.name for each in CONNECTORS), "sqlite"]
    sink = make_sink("sqlite", {"path": str(site / "rows.db"), "table": "rows"})
    assert type(sink).__module__ == "barrier_runtime_sqlite.sink"
    assert sink.settings() == {"path": str(site / "rows.db"), "table": "rows"}


def test_a_flow_writes_through_a_sink_of_another_package(site: Path) -> None:
    sink = importlib.import_module("barrier_runtime_sqlite.sink").SqliteSink(str(site / "rows.db"), "numbers")
    flow = Dataflow("numbers")
    flow.rate("ticks", 10_000, 200).select(["value"]).sink("numbers", sink)
    flow.run_local(parallelism=2, checkpoint_interval=0.01)
    assert sorted(row["value"] for row in _rows(site / "rows.db", "numbers")) == list(range(200))


def test_a_column_without_a_type_is_refused_when_the_flow_is_written(site: Path) -> None:
    sink = importlib.import_module("barrier_runtime_sqlite.sink").SqliteSink(str(site / "rows.db"), "numbers")
    with pytest.raises(InvalidJob, match="SQLite has no type for column 'intended_at'"):
        Dataflow("numbers").rate("ticks", 10, 20).sink("numbers", sink)


@pytest.mark.slow
def test_the_sink_of_the_example_is_certified(site: Path) -> None:
    kind = importlib.import_module("barrier_runtime_sqlite.sink").SqliteSink
    schema = pa.schema([("id", pa.int64()), ("key", pa.string())])
    certify(
        lambda: kind(str(site / "rows.db"), "rows"),
        lambda: _rows(site / "rows.db", "rows"),
        make_row=lambda number: {"id": number, "key": f"k{number % 3}"},
        schema=schema,
        scenarios=40,
        inside=20,
        seeds=range(4),
        ordered=True,
    )


@pytest.mark.parametrize(
    ("entry_point", "told"),
    [
        (
            "broken = no_such_module:CONNECTOR",
            "'broken' of the package other cannot be loaded: No module named",
        ),
        ("broken = json:loads", "entry point 'broken' of the package other is .*: it has to name a Connector"),
    ],
)
def test_a_wrong_entry_point_is_told_with_its_package(site: Path, entry_point: str, told: str) -> None:
    _install(site, "other", entry_point)
    with pytest.raises(InvalidJob, match=told):
        all_connectors()


def test_two_sinks_of_one_kind_are_refused(site: Path) -> None:
    (site / "second.py").write_text(
        "from barrier_runtime.connectors.registry import *\n"
        "CONNECTOR = Connector('second', sinks=(Sinks((PublicClass('', 'S', 'sqlite', 'second'),), 'x', 'y'),))\n"
    )
    _install(site, "second", "second = second:CONNECTOR")
    with pytest.raises(InvalidJob, match="have the same kind 'sqlite': uninstall the package of one"):
        sinks_by_kind()
    sys.modules.pop("second")
