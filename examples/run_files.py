"""A folder of Parquet files that a job writes, as readers see the folder."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class ParquetFolder:
    """Ignores names that begin with "_" or "."; counts the rows of each file once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, int] = {}

    def count(self) -> int:
        for path in self.folder.glob("[!_.]*"):
            if path.name not in self._rows:
                self._rows[path.name] = pq.ParquetFile(path).metadata.num_rows
        return sum(self._rows.values())

    def rows(self) -> list[dict[str, Any]]:
        return [row for path in sorted(self.folder.glob("[!_.]*")) for row in pq.ParquetFile(path).read().to_pylist()]
