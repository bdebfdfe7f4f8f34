"""Parquet files of other writers are opened in a single place, which states the unit of INT96 times."""

import ast
from pathlib import Path

from tests.parsed import nodes

ROOT = Path(__file__).resolve().parents[2]
READS = {"ParquetFile", "read_table", "read_pandas", "ParquetDataset", "ParquetFileFormat", "dataset"}
OWN = {  # modules that read files which this package has written
    "barrier_runtime/connectors/memory/batch_function.py",
    "barrier_runtime/connectors/delta/compaction.py",
    "barrier_runtime/connectors/files/sink/compaction.py",
    "barrier_runtime/connectors/files/sink/sink.py",
    "barrier_runtime/connectors/postgres/changes/snapshot.py",
}


def test_parquet_files_of_others_are_opened_in_one_place() -> None:
    found = set()
    for file in (ROOT / "barrier_runtime").rglob("*.py"):
        for node in nodes(file):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            module = node.func.value
            if node.func.attr in READS and isinstance(module, ast.Name) and module.id in ("pq", "ds", "parquet"):
                found.add(file.relative_to(ROOT).as_posix())
            if node.func.attr == "to_pyarrow_dataset":
                assert "parquet_read_options" in {word.arg for word in node.keywords}, file
    assert found - OWN == {"barrier_runtime/connectors/parquet_format.py"}
