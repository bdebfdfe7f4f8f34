"""Result of a cell of the slow store's benchmark, and the file of all results."""

from pathlib import Path

import msgspec

Value = float | str | None


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a cell.

    `figures` by name, in ms unless the name has another unit; `requests` per checkpoint, by operation and kind of key;
    `cores` of job, emulator and proxy separately."""

    cell: str
    tree: str  # "now", or the commit that was measured for comparison
    at: str
    seconds: float = 0.0  # duration of the cell, with start and end
    figures: dict[str, Value] = {}
    requests: dict[str, float] = {}
    cores: dict[str, float] = {}
    error: str = ""


class Kept(msgspec.Struct):
    machine: dict[str, str] = {}
    command: str = ""
    cells: list[CellResult] = []

    def add(self, result: CellResult) -> None:
        """Replaces an earlier result of the same cell and tree."""
        self.cells = [each for each in self.cells if (each.cell, each.tree) != (result.cell, result.tree)]
        self.cells.append(result)

    def find(self, cell: str, tree: str) -> CellResult | None:
        return next((each for each in self.cells if (each.cell, each.tree) == (cell, tree)), None)


_DECODER = msgspec.json.Decoder(Kept)


def load(file: Path) -> Kept:
    return _DECODER.decode(file.read_bytes()) if file.exists() else Kept()


def save(file: Path, kept: Kept) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
