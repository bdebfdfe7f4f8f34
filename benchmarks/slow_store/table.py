"""The slow store's results as Markdown: a line per figure, a column per commit, and explanations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.slow_store.cells import CHOSEN, GRID
from benchmarks.slow_store.result import CellResult, Kept

_AS = {"COPY": "PUT", "PART": "PUT", "START PARTS": "PUT", "COMPLETE": "PUT", "HEAD": "GET", "LIST": "GET"}
_AS |= {"DELETE MANY": "DELETE", "ABORT": "DELETE"}

_NONE = "-"
_FAILED = "failed, see below"

Found = dict[str, CellResult]


@dataclass(frozen=True)
class Line:
    """A line of the table: the required cells, and the text from their results."""

    label: str
    cells: tuple[str, ...]
    text: Callable[[Found], str]
    aim: str = ""


def _number(found: Found, cell: str, figure: str) -> str:
    value = found[cell].figures.get(figure)
    if value is None:
        return _NONE
    if isinstance(value, str):
        return value
    return f"{value:,.1f}" if abs(value) < 10 and value != round(value) else f"{value:,.0f}"


def _figures(cell: str, *parts: str) -> Callable[[Found], str]:
    """Text of the named figures; parts in angle brackets are literal."""

    def text(found: Found) -> str:
        return "".join(part[1:-1] if part.startswith("<") else _number(found, cell, part) for part in parts)

    return text


def _stream(cell: str) -> Callable[[Found], str]:
    return _figures(cell, "visible p50", "<, >", "visible p99", "<; behind at the end: >", "behind at the end")


def _cpu_share(found: Found) -> str:
    """Share of a core: requests of a checkpoint per second, times processor time of each kind."""
    known = found["CPU of requests"].figures
    total_ms = 0.0
    for name, many in found["files, 1 s"].requests.items():
        operation = next((each for each in _AS if name.startswith(each)), name.partition(" ")[0])
        operation = "PUT IF" if name.startswith("PUT IF") else _AS.get(operation, operation)
        each_ms = known.get(f"CPU ms {operation}")
        total_ms += many * (each_ms if isinstance(each_ms, float) else 0.0)
    return f"{total_ms / 10:.1f} % ({_number(found, 'CPU of requests', 'CPU ms')} ms a request)"


def _both(first: str, second: str, figure: str, unit: str = "") -> Callable[[Found], str]:
    return lambda found: f"{_number(found, first, figure)}, {_number(found, second, figure)}{unit}"


_READING = (
    "JSON lines, 1 slot",
    "JSON lines from a folder, 1 slot",
    "Parquet, 1 slot",
    "Parquet from a folder, 1 slot",
)

LINES = (
    Line(
        "every 1 s: checkpoint / commit / visible p50, p99",
        ("files, 1 s",),
        _figures("files, 1 s", "checkpoint", "< / >", "commit", "< / >", "visible p50", "<, >", "visible p99"),
        "100 / 80 / 700, 1,250",
    ),
    Line(
        "… ack / manifest / decision",
        ("files, 1 s",),
        _figures("files, 1 s", "ack", "< / >", "manifest", "< / >", "decision"),
    ),
    Line(
        "… requests in a row to the decision, of the commit",
        ("files, 1 s",),
        _figures("files, 1 s", "waits to the decision", "<, >", "waits of the commit"),
        "2, 2",
    ),
    Line("every 0.2 s: visible p50, p99", ("files, 0.2 s",), _stream("files, 0.2 s"), "320, 600"),
    Line("every 0.1 s: visible p50, p99", ("files, 0.1 s",), _stream("files, 0.1 s"), "280, 550"),
    Line(
        "Flink, the same files and store: checkpoint / visible p50, p99, every 1 s",
        ("Flink, files, 1 s",),
        _figures("Flink, files, 1 s", "checkpoint", "< / >", "visible p50", "<, >", "visible p99"),
    ),
    Line(
        "… every 0.2 s",
        ("Flink, files, 0.2 s",),
        _figures("Flink, files, 0.2 s", "checkpoint", "< / >", "visible p50", "<, >", "visible p99"),
    ),
    Line("Delta, every 1 s, `commit_every=0`: visible p50, p99", ("Delta, 1 s",), _stream("Delta, 1 s"), "800, 1,400"),
    Line(
        "Iceberg, local: ms per commit (CPU), medians of the first and the last of all commits",
        ("Iceberg, commits",),
        _figures(
            "Iceberg, commits",
            *("ms per commit, first", "< (>", "CPU ms per commit, first", "<), >", "ms per commit, last", "< (>"),
            *("CPU ms per commit, last", "<); >", "compared", "< of >", "commits"),
        ),
        "flat",
    ),
    *(
        Line(
            f"Iceberg, a commit with {many} before it: ms (CPU); requests",
            (f"Iceberg on the store, {many} commits",),
            _figures(
                f"Iceberg on the store, {many} commits",
                *("ms per commit", "< (>", "CPU ms per commit", "<); >", "requests per commit"),
            ),
            "flat",
        )
        for many in ("300", "20,000")
    ),
    *(
        Line(
            f"{table}, `commit_every=30`: mean size of a file, MB; files, MB in all",
            (f"{table}, file sizes",),
            _figures(f"{table}, file sizes", *("mean MB", "<; >", "files", "<, >", "MB")),
            "32",
        )
        for table in ("Delta", "Iceberg")
    ),
    Line(
        "PostgreSQL behind 5 ms, every 1 s: commit; answers waited for per checkpoint",
        ("PostgreSQL behind 5 ms, 1 s",),
        _figures("PostgreSQL behind 5 ms, 1 s", "commit", "<; >", "requests per checkpoint"),
        "45",
    ),
    Line(
        "PostgreSQL behind 5 ms, every 0.1 s: visible p50, p99",
        ("PostgreSQL behind 5 ms, 0.1 s",),
        _stream("PostgreSQL behind 5 ms, 0.1 s"),
        "180, 320",
    ),
    Line("requests per checkpoint (all)", ("files, 1 s",), _figures("files, 1 s", "requests per checkpoint"), "10"),
    Line("CPU of requests at one checkpoint a second", ("files, 1 s", "CPU of requests"), _cpu_share, "1.5 %"),
    Line(
        "restart to first row, 45 records and a long log (ms)",
        ("restart, 45 records", "restart, long log"),
        _both("restart, 45 records", "restart, long log", "until the first row"),
        "1,200, 1,200",
    ),
    Line(
        "… requests, of them in a row",
        ("restart, 45 records", "restart, long log"),
        lambda found: "; ".join(
            _figures(cell, "requests until the first row", "<, >", "waits until the first row")(found)
            for cell in ("restart, 45 records", "restart, long log")
        ),
    ),
    Line(
        "restart until its rows are visible (a checkpoint every 0.5 s), 45 records and a long log (ms)",
        ("restart, 45 records", "restart, long log"),
        _both("restart, 45 records", "restart, long log", "until rows are visible"),
        "2,000, 2,000",
    ),
    Line(
        "… requests, of them in a row",
        ("restart, 45 records", "restart, long log"),
        lambda found: "; ".join(
            _figures(cell, "requests until visible", "<, >", "waits until visible")(found)
            for cell in ("restart, 45 records", "restart, long log")
        ),
        "15 in a row",
    ),
    Line(
        "small files, 1 slot; 4 slots (files/s)",
        ("small files, 1 slot", "small files, 4 slots"),
        _both("small files, 1 slot", "small files, 4 slots", "files/s"),
        "300, 1,000",
    ),
    Line(
        "large JSON lines, 1 slot: rows/s from the store, from a folder",
        ("JSON lines, 1 slot", "JSON lines from a folder, 1 slot"),
        _both("JSON lines, 1 slot", "JSON lines from a folder, 1 slot", "rows/s"),
        "80 % of the folder's",
    ),
    Line(
        "Parquet, 1 slot: rows/s from the store, from a folder",
        ("Parquet, 1 slot", "Parquet from a folder, 1 slot"),
        _both("Parquet, 1 slot", "Parquet from a folder, 1 slot", "rows/s"),
        "80 % of the folder's",
    ),
    Line(
        "… million rows per second of the job's processor time: JSON lines from the store, a folder; Parquet",
        _READING,
        lambda found: "; ".join(
            ", ".join(_number(found, cell, "million rows per core") for cell in pair)
            for pair in (_READING[:2], _READING[2:])
        ),
    ),
    Line(
        "kill of a slot until the job runs again (Spark, 200,000 keys; ms), folder",
        ("kill of a slot", "kill of a slot, folder"),
        _both("kill of a slot", "kill of a slot, folder", "runs again"),
        "0.3 s above the folder's",
    ),
)


def markdown(kept: Kept) -> str:
    trees = sorted({each.tree for each in kept.cells}, key=lambda tree: tree == "now")
    parts = [_chosen(kept, trees), _requests(kept, trees), _shares(kept), _grid(kept), _errors(kept)]
    machine = ", ".join(f"{name} {value}" for name, value in kept.machine.items())
    return "\n".join([*filter(None, parts), f"Command: `{kept.command}`. {machine}.", ""])


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _chosen(kept: Kept, trees: Sequence[str]) -> str:
    rows = []
    for line in LINES:
        texts = []
        for tree in trees:
            found = {name: cell for name in line.cells if (cell := kept.find(name, tree)) is not None}
            failed = len(found) < len(line.cells)
            broken = any(cell.error for cell in found.values())
            texts.append(_FAILED if broken else _NONE if failed else line.text(found))
        if any(text != _NONE for text in texts):
            rows.append([line.label, *texts, line.aim])
    return _rows(["files, 2 slots, 10,000 rows/s", *trees, "aim"], rows) if rows else ""


def _requests(kept: Kept, trees: Sequence[str]) -> str:
    """Requests of a checkpoint of the files."""
    found = {tree: cell for tree in trees if (cell := kept.find("files, 1 s", tree)) is not None and cell.requests}
    names = sorted({name for cell in found.values() for name in cell.requests})
    rows = [[name, *(f"{found[tree].requests.get(name, 0.0):.1f}" for tree in found)] for name in names]
    return _rows(["requests per checkpoint, files, every 1 s", *found], rows) if rows else ""


def _shares(kept: Kept) -> str:
    """Used cores of each process, and each cell's duration."""
    rows = []
    for cell in kept.cells:
        if cell.cell in CHOSEN:
            shares = [f"{cell.cores[name]:.2f}" if name in cell.cores else "" for name in ("job", "emulator", "proxy")]
            cpu = cell.figures.get("job's CPU ms per checkpoint")
            rows.append([cell.cell, cell.tree, cell.at, *shares, f"{cpu:,.0f}" if isinstance(cpu, float) else ""])
    head = ["cell", "commit", "at", "cores: job", "emulator", "proxy", "job's CPU ms per checkpoint"]
    return _rows(head, rows) if rows else ""


_GRID_FIGURES: tuple[str, ...] = ("ack", "manifest", "decision", "commit", "visible p50", "visible p99")
_GRID_FIGURES += ("behind at the end", "requests per checkpoint", "job's CPU ms per checkpoint")


def _grid(kept: Kept) -> str:
    rows = []
    for name in GRID:
        for cell in kept.cells:
            if cell.cell == name and not cell.error:
                figures = [_number({name: cell}, name, figure) for figure in _GRID_FIGURES]
                rows.append(
                    [name, cell.tree, *figures, *(f"{cell.cores.get(part, 0.0):.2f}" for part in ("job", "emulator"))]
                )
    return _rows(["cell", "commit", *_GRID_FIGURES, "cores: job", "emulator"], rows) if rows else ""


def _errors(kept: Kept) -> str:
    return "".join(f"- {each.cell} ({each.tree}) failed: {each.error}\n" for each in kept.cells if each.error)
