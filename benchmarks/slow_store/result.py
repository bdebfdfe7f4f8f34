"""What a cell of the slow store's benchmark found, and the file that keeps all of them."""

from pathlib import Path

import msgspec

Value = float | str | None


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """`figures` by name, times in ms unless the name says otherwise; `requests` per checkpoint, by operation and kind
    of key; `cores`: of job, emulator and proxy, each apart."""

    cell: str
    tree: str  # "now", or the commit that was measured beside it
    at: str
    seconds: float = 0.0  # that the cell took, start and end included
    figures: dict[str, Value] = {}
    requests: dict[str, float] = {}
    cores: dict[str, float] = {}
    error: str = ""


class Kept(msgspec.Struct):
    machine: dict[str, str] = {}
    command: str = ""
    cells: list[CellResult] = []

    def add(self, result: CellResult) -> None:
        """In the place of an earlier one of the same cell and tree."""
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
