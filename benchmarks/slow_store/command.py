"""`python -m benchmarks slow-store`: selected cells or all, in turn with another checkout; a table."""

import argparse
import dataclasses
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from benchmarks.machine import command, facts
from benchmarks.progress import Progress
from benchmarks.slow_store.cells import CHOSEN, GRID, NAMED, OF_NO_TREE, Cell
from benchmarks.slow_store.place import Settings
from benchmarks.slow_store.proxy import add_delay, delay_of
from benchmarks.slow_store.result import CellResult, Kept, load, save
from benchmarks.slow_store.soak import soak
from benchmarks.slow_store.table import markdown

RECORD = Path(__file__).parents[1] / "slow-store.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="the whole grid, too (three hours)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cells whose names begin so; again for more")
    parser.add_argument("--add", action="store_true", help="keep earlier results; run what failed or lacks")
    parser.add_argument("--beside", type=Path, help="a checkout whose runtime is measured in turn with this one")
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="measured per stream (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=Settings.warm_up_s, help="seconds before that (%(default)s)")
    parser.add_argument("--rate", type=float, default=Settings.rate, help="rows per second (%(default)s)")
    parser.add_argument("--log-records", type=int, default=Settings.log_records, help="of the long log (%(default)s)")
    parser.add_argument("--rows", type=int, default=Settings.rows, help="of a large file of JSON lines (%(default)s)")
    parser.add_argument("--small-files", type=int, default=Settings.small_files, help="(%(default)s)")
    parser.add_argument("--table-commits", type=int, default=Settings.table_commits, help="of Iceberg (%(default)s)")
    parser.add_argument("--table-seconds", type=float, default=Settings.table_seconds, help="at most for them")
    parser.add_argument(
        "--megabytes", type=float, default=Settings.megabytes, help="a second, of files whose sizes count"
    )
    parser.add_argument("--kills", type=int, default=Settings.kills, help="of a slot on Spark (%(default)s)")
    parser.add_argument("--processes", action="store_true", help="coordinator and slots of chosen streams as processes")
    parser.add_argument("--keep", action="store_true", help=f"put the table into benchmarks/{RECORD.name}, too")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="no cells: commits slower than the interval")
    add_delay(parser)


def run(chosen: argparse.Namespace) -> int:
    """Returns the number of failed cells."""
    folder = chosen.folder / "slow-store"
    scratch = (folder / "run").resolve()
    shutil.rmtree(scratch, ignore_errors=True)
    settings = Settings(
        folder=scratch,
        seconds=chosen.seconds,
        warm_up_s=chosen.warm_up,
        delay=delay_of(chosen),
        processes=chosen.processes,
        rate=chosen.rate,
        log_records=chosen.log_records,
        small_files=chosen.small_files,
        rows=chosen.rows,
        kills=chosen.kills,
        table_commits=chosen.table_commits,
        table_seconds=chosen.table_seconds,
        megabytes=chosen.megabytes,
    )
    try:
        if chosen.soak:
            return soak(settings, chosen.soak, folder / "soak.md")
        return _cells(chosen, settings, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _cells(chosen: argparse.Namespace, settings: Settings, folder: Path) -> int:
    file = folder / "results.json"
    kept = load(file) if chosen.add else Kept()
    kept.machine, kept.command = facts(), command()
    trees = [settings]
    if chosen.beside is not None:
        trees.insert(0, _beside(settings, chosen.beside.resolve()))
    wanted = {**CHOSEN, **(NAMED if chosen.only else {}), **(GRID if chosen.all or _names_grid(chosen.only) else {})}
    names = [name for name in wanted if not chosen.only or any(name.startswith(text) for text in chosen.only)]
    todo = [
        (name, each)
        for name in names
        for each in trees
        if not (each.tree and name in OF_NO_TREE)
        and ((found := kept.find(name, each.tree_name)) is None or found.error)
    ]
    failed = 0
    with Progress(len(todo), "slow store") as progress:
        for name, each in todo:
            progress.say(f"{name} ({each.tree_name})")
            result = measured(name, wanted[name], each)
            if result.error:
                failed += 1
                progress.note(f"failed: {name} ({each.tree_name}): {result.error}")
            kept.add(result)
            save(file, kept)
            (folder / "table.md").write_text(markdown(kept))
            progress.step()
    text = markdown(kept)
    print(text)
    if chosen.keep:
        RECORD.write_text(_record(text))
    return failed


def measured(name: str, cell: Cell, settings: Settings) -> CellResult:
    """Result of a cell; a failure is in the result as error, so that the other cells run."""
    began = time.monotonic()
    try:
        result = cell(settings)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        told = " … ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *lines[1:][-1:]])
        result = CellResult(cell=name, tree=settings.tree_name, at=time.strftime("%m-%d %H:%M"), error=told)
    return msgspec.structs.replace(result, cell=name, seconds=round(time.monotonic() - began, 1))


def _names_grid(only: list[str] | None) -> bool:
    """Returns whether `only` names cells of the grid, and none of `CHOSEN` and `NAMED`."""
    return bool(only) and not any(name.startswith(text) for text in only or () for name in {**CHOSEN, **NAMED})


def _beside(settings: Settings, tree: Path) -> Settings:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=tree, capture_output=True, text=True, check=True
    )
    return dataclasses.replace(settings, tree=tree, tree_name=told.stdout.strip())


def _record(table: str) -> str:
    return (
        "# A store that answers late\n"
        "Last output of `python -m benchmarks slow-store`; [README.md](README.md#the-slow-store) describes the method. "
        "The columns are\na named commit and this commit (`now`), measured in turn. Emulator and proxy run on the same "
        "two cores as the job; the last table has their shares.\n\n" + table
    )
