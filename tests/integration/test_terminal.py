"""`run` and `top` in real terminals of 80 and 200 columns while a slot is killed, and at Ctrl-C: the screen a person
sees.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import kill, visible_files
from terminal import Terminal, Window
from test_operating import running_daemon

from tests.waiting import until

pytestmark = pytest.mark.spark

COMMAND = str(Path(sys.executable).with_name("barrier-runtime"))
PROGRAM = """
    import os
    from barrier_runtime import Dataflow, JsonlSink, count

    def noted(row):
        with open("pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
        return row

    flow = Dataflow("told")
    rows = flow.rate("numbers", 200, keys=20).map(noted)
    rows.key_by("key").aggregate("count", n=count()).sink("a-sink-that-fits", JsonlSink("out/counts"))
    rows.sink("plain", JsonlSink("out/plain"))
"""
SINKS = ("a-sink-that-fits", "plain")


def lines_of_sinks(window: Window) -> list[str]:
    return [line for line in window.lines if line.startswith(tuple(f"{sink}: " for sink in SINKS))]


def names_shown(window: Window) -> tuple[str, ...]:
    return tuple(line.partition(":")[0] for line in lines_of_sinks(window))


def rows_read(text: str) -> int:
    found = re.search(r"plain: ([\d,]+) rows", text)
    return int(found[1].replace(",", "")) if found else 0


@contextmanager
def running(folder: Path, columns: int, *more: str) -> Iterator[tuple[Terminal, Window, list[str]]]:
    """`run` in a terminal, with figures of the job's rows, and the address of the daemon."""
    (folder / "app.py").write_text(textwrap.dedent(PROGRAM))
    with running_daemon(folder) as daemon, Terminal(folder) as terminal:
        address = ["--coordinator", daemon.url, "--token-file", str(daemon.token_file)]
        options = ["--parallelism", "2", "--master", "local[2]", "--checkpoint-interval", "0.5"]
        options += ["--checkpoints", daemon.storage, *more]
        window = terminal.open(columns, 30, [COMMAND, "run", "app.py:flow", *options, *address], "run")
        until(lambda: visible_files(folder / "out"), "a checkpoint's rows are visible")
        yield terminal, window, address


def kill_a_slot(folder: Path, run: Window) -> None:
    kill(int((folder / "pids").read_text().splitlines()[-1]))
    read = rows_read(run.until("what died is told", lambda text: "back after" in text))
    run.until("rows go on", lambda text: rows_read(text) > read)


@pytest.mark.long(100)
def test_run_and_top_in_terminals_of_80_and_200_columns_through_a_kill_and_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, 80) as (terminal, run, address):
        run.until("figures", lambda text: rows_read(text) and "checkpoint " in text and "p99" in text)
        tops = [
            terminal.open(width, height, [COMMAND, "top", "told", *address], f"top-{width}")
            for width, height in ((80, 24), (200, 60))
        ]
        for top in tops:
            top.until("rates", lambda text: "rows/s in" in text)
        read = rows_read(run.text)
        run.until("the figures go on", lambda text: rows_read(text) > read)
        run.until("a line per sink, written over and not repeated", lambda _: names_shown(run) == SINKS)

        kill_a_slot(tmp_path, run)
        told = [line for line in run.text.splitlines() if "died of" in line]
        assert len(told) == 1, run.text
        assert re.fullmatch(
            r"job told: process \d+ of slot \d died of SIGKILL; all slots go on from checkpoint \d+; "
            r"back after [\d,]+ ms *",
            told[0],
        )
        assert not re.search(r"Traceback|PeerLost|Error", run.text), run.text
        run.until("still a line per sink", lambda _: names_shown(run) == SINKS)
        until(lambda: [line.count("p99") for line in lines_of_sinks(run)] == [1, 1], "shortened, not cut off")
        run.resize(200, 30)
        run.until("there is room for words", lambda text: re.search(r"plain: .* visible through .* visible p99", text))

        for top in tops:
            died = re.compile(r"(?s)recovery, generation .*died of\s+SIGKILL")
            figures = ("rows/s in", "latency of the last minute")  # missing for a moment after a recovery
            text = top.until(
                "what died",
                lambda text, died=died, figures=figures: died.search(text) and all(each in text for each in figures),
            )
            assert "Ctrl-C leaves" in text.splitlines()[0], "the first line is not scrolled away"
            top.press("C-c")
            until(lambda top=top: top.ended_with is not None, "top left")
            assert (top.ended_with, top.text.strip()) == (0, ""), "what was there before is there again"

        run.press("C-c")
        until(lambda: run.ended_with is not None, "run ended")
        assert run.ended_with == 130
        assert "interrupted: job told was stopped; what its last checkpoint covers is committed" in run.text
        assert "Traceback" not in run.text
        assert lines_of_sinks(run) == [], "figures of a job that has ended do not stay"


@pytest.mark.long(40)
def test_verbose_keeps_what_slots_hear_when_one_dies(tmp_path: Path) -> None:
    """No line is overwritten in this mode: lines of other processes would be lost."""
    with running(tmp_path, 200, "--verbose") as (_, run, _):
        kill(int((tmp_path / "pids").read_text().splitlines()[-1]))
        text = run.until("what died is told", lambda text: "back after" in text)
        assert "PeerLost" in text
        assert len([line for line in text.splitlines() if " died of SIGKILL; all slots" in line]) == 1
        run.press("C-c")
        until(lambda: run.ended_with is not None, "run ended")
