"""Five sinks of a job through rescales and a replace, with kills in between. `run_moves` is the long form."""

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.ends.moves import plan_moves
from tests.integration.ends.run_moves import moved_under_kills


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_of_changes_comes_from_its_seed_and_strikes_everything(seed: int) -> None:
    moves = plan_moves(seed, 20, 5, 10, server=True)
    assert moves == plan_moves(seed, 20, 5, 10, server=True)
    assert Counter(move.kind for move in moves) == {"rescale": 20, "replace": 5}
    struck = Counter(move.strike for move in moves if move.strike)
    assert struck == dict.fromkeys(("slot", "coordinator", "driver", "program", "server kill"), 2)
    assert all(bool(move.hold_s) is (move.strike == "server kill") for move in moves)
    assert {move.strike for move in plan_moves(seed, 2, 1, 3, server=False)} == {"slot", "coordinator", "driver"}


@pytest.mark.long(70)
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_five_sinks_show_every_row_once_through_rescales_and_a_replace(tmp_path: Path) -> None:
    """1.11, 1.15, 1.18, T12: Kafka, PostgreSQL, Redis, Delta and files; a slot is killed during one of the changes."""
    report, judged = moved_under_kills(tmp_path, rescales=2, replaces=1, kills=1, seed=2, postgres_every=3)
    assert report.clean, str(report)
    assert report.moved() == {"rescale": 2, "replace": 1}
    assert report.kills == 1
    assert {name: figures.right for name, figures in judged.by_target.items()} == dict.fromkeys(
        ("kafka", "postgres", "redis", "delta", "files"), True
    )
