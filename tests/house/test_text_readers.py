"""Meanings of text do not depend on a library's defaults: every reader of CSV or JSON names the spellings of null."""

import ast

from tests.house.test_layers import modules
from tests.parsed import nodes

IMPORTERS = {
    "pyarrow.csv": {
        "barrier_runtime/connectors/files/source/csv_rows.py",
        "barrier_runtime/connectors/postgres/changes/snapshot.py",  # `copy … to stdout (format csv)`
        "barrier_runtime/connectors/postgres/columns.py",  # writes for `copy … from stdin`
        "barrier_runtime/connectors/sink_bases/encoders.py",
    },
    "pyarrow.json": {"barrier_runtime/data/json_lines.py"},
}
SPELLINGS = {"null_values", "strings_can_be_null", "quoted_strings_can_be_null"}


def imported(module: str) -> set[str]:
    return {each.name for node in nodes(module) if isinstance(node, ast.Import) for each in node.names}


def test_csv_and_json_are_read_and_written_in_few_places() -> None:
    found = {library: {module for module in modules() if library in imported(module)} for library in IMPORTERS}
    assert found == IMPORTERS


def test_every_reader_of_csv_names_the_spellings_of_null() -> None:
    calls = [
        (module, node)
        for module in IMPORTERS["pyarrow.csv"]
        for node in nodes(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".ConvertOptions")
    ]
    assert len(calls) == 2
    for module, call in calls:
        assert {keyword.arg for keyword in call.keywords} >= SPELLINGS, module
