"""The table of a job's transitions: the documented table holds, and no phase bypasses the table."""

import ast
import inspect
import sys
from typing import get_args

import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.job import transitions
from barrier_runtime.coordinator.job.facts import Job, Origin
from barrier_runtime.coordinator.job.phases.ending import Ended
from barrier_runtime.coordinator.job.phases.phase import Attempts, Decision, EndJob, FinishJob, Gather, LoadLog, Phase
from barrier_runtime.coordinator.job.phases.start import Loading
from barrier_runtime.coordinator.job.transitions import MOVES, next_phase
from barrier_runtime.coordinator.log.record_builder import Identity
from barrier_runtime.state.errors import ProtocolViolation

PHASES = {phase.__module__ for phase in MOVES}


def table_on_the_page() -> dict[tuple[str, str], set[str]]:
    """Returns (phase, decision) → possible next phases, from the module's docstring."""
    lines = (transitions.__doc__ or "").splitlines()
    head = next(number for number, line in enumerate(lines) if "wanted in" in line)
    names = lines[head].partition("→")[2].split()
    rows = [line.split() for line in lines[head + 1 : lines.index("", head)]]
    assert all(len(row) == len(names) + 1 for row in rows), "a cell is missing: '-' stands for no move"
    return {
        (phase, decision): set(cell.split("/"))
        for decision, *cells in rows
        for phase, cell in zip(names, cells, strict=True)
        if cell != "-"
    }


def test_the_table_on_the_page_is_the_table_of_the_code():
    held = {
        (phase.__name__, decision.__name__): {following.__name__ for following in reached}
        for phase, moves in MOVES.items()
        for decision, reached in moves.items()
    }
    assert table_on_the_page() == held


def test_every_phase_and_every_decision_is_in_the_table():
    assert set(MOVES) == set(Phase.__subclasses__())
    assert {decision for moves in MOVES.values() for decision in moves} == set(get_args(Decision))
    reached = {phase for moves in MOVES.values() for following in moves.values() for phase in following}
    assert reached == set(MOVES)


@pytest.mark.parametrize(
    ("phase", "wanted"),
    [
        (Loading(Attempts()), Gather("no FENCE is appended", 0)),
        (Loading(Attempts()), FinishJob()),
        (Ended("cancelled", ""), LoadLog(Attempts())),
    ],
)
def test_a_move_that_is_not_in_the_table_is_a_bug_of_ours(phase, wanted):
    job = Job(spec(), Identity("leader", "host"), Origin.SUBMITTED)
    with pytest.raises(ProtocolViolation, match=f"{type(wanted).__name__} while {phase.name} must not lead to"):
        next_phase(job, phase, wanted, 0)
    assert isinstance(next_phase(job, phase, EndJob("failed", "damage"), 0), Ended)


@pytest.mark.parametrize("module", sorted({Phase.__module__, *PHASES}))
def test_no_phase_knows_another_one_nor_the_table(module):
    """Imports inside functions and under TYPE_CHECKING count, too."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    known = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert known & {*PHASES, transitions.__name__} == set()
