"""Open and closed pages in turn: the compared blocks, and the report."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.pages import Block, by_state, compared, kept
from benchmarks.stamps import Stamps

SECOND = 10**9


def run(slower: float, pairs: int = 12) -> list[str]:
    """Blocks of a second in the order closed, open, open, closed; the machine gets slower all the time, as the load of
    others does, and open pages make every row slower by a factor."""
    opened = [False, True, True, False] * (pairs // 2)
    blocks = [
        Block(is_open, at * SECOND, (at + 1) * SECOND, 0.02 + 0.003 * is_open) for at, is_open in enumerate(opened)
    ]
    due = np.arange(0, len(blocks) * SECOND, SECOND // 1_000)
    random = np.random.default_rng(7).lognormal(0.0, 0.3, len(due))
    factor = np.array([slower if opened[at // SECOND] else 1.0 for at in due.tolist()])
    latency_ms = 2.0 * random * factor * (1 + due / due[-1])
    return compared(blocks, Stamps(due, due + (latency_ms * 1e6).astype(np.int64)))


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_the_ratio_is_that_of_the_pages_whatever_the_machine_does_meanwhile(slower: float) -> None:
    (line,) = [line for line in run(slower) if line.startswith("processed p99,")]
    told = line.rpartition("ratio ")[2]
    middle, low, high = (float(part.strip("[,]")) for part in told.split())
    assert low <= slower <= high
    assert abs(middle / slower - 1) < 0.1
    assert high / low < 1.3


def test_the_share_of_a_core_is_told_as_a_difference() -> None:
    assert "closed 2.00%, open 2.30%; difference 0.30% [0.30%, 0.30%]" in run(1.0)[0]


def test_a_pair_is_closed_before_open_in_whatever_order_it_was_measured() -> None:
    closed, opened = Block(False, 0, 1, 0.1), Block(True, 1, 2, 0.2)
    assert by_state([closed, opened], [1.0, 2.0]) == by_state([opened, closed], [2.0, 1.0]) == (1.0, 2.0)


def test_pairs_of_several_runs_are_told_together(tmp_path: Path) -> None:
    one, other = {"share": (0.1, 0.2)}, {"share": (0.3, 0.4)}
    assert kept(tmp_path / "pairs", [one]) == [one]
    assert kept(tmp_path / "pairs", [other]) == [one, other]
