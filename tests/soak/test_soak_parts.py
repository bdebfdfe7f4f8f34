"""Pure parts of `make soak`: slopes and verdicts, the plan of kills, and the judge's rows that appear once."""

import itertools
from collections import Counter

import numpy as np
import pytest

from tests.soak.judge import Expected
from tests.soak.plan import DECK, victims
from tests.soak.samples import Latency, Minute, Sampled, Stored
from tests.soak.slopes import Limit, slope
from tests.soak.summary import SHORTEST_H, Result, figures, table

_LIMIT = Limit(0.0, 3.0)


def life(
    level: float, per_hour: float, seed: int, minutes: int = 60, first_h: float = 0.0
) -> list[tuple[float, float]]:
    """Samples whose noise resembles the noise of the minute before."""
    choose = np.random.default_rng(seed)
    found, noise = [], 0.0
    for minute in range(minutes):
        noise = 0.7 * noise + choose.normal(0, 0.5)
        found.append((first_h + minute / 60, level + per_hour * minute / 60 + noise))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_slope_of_several_lives_is_that_within_a_life(seed: int) -> None:
    lives = [life(200 - 50 * number, 12.0, seed * 10 + number, first_h=number) for number in range(4)]
    found = slope(lives)
    assert found is not None
    assert abs(found.per_hour - 12.0) < 4 * found.error
    assert 0.1 < found.error < 2.0
    assert found.verdict(_LIMIT) == "grows"


def test_level_that_rises_from_life_to_life_is_no_growth() -> None:
    found = slope([life(100 + 30 * number, 0.0, number, first_h=number) for number in range(4)])
    assert found is not None
    assert found.verdict(_LIMIT) == "flat"


def test_few_noisy_samples_are_unclear() -> None:
    noisy = [(hour, 100.0 + 40 * (number % 3)) for number, hour in enumerate(np.linspace(0, 0.3, 8))]
    found = slope([noisy])
    assert found is not None
    assert found.verdict(_LIMIT) == "unclear"


def test_constant_figures_are_flat_and_single_samples_have_no_slope() -> None:
    found = slope([[(minute / 60, 7.0) for minute in range(30)]])
    assert found is not None
    assert (found.per_hour, found.verdict(_LIMIT)) == (0.0, "flat")
    assert slope([[(0.0, 1.0)], [(1.0, 2.0)]]) is None
    assert slope([]) is None


def test_plan_repeats_with_the_seed_and_a_deck_holds_each_kind() -> None:
    first, again, other = (list(itertools.islice(victims(seed), 2 * len(DECK))) for seed in (4, 4, 5))
    assert first == again != other
    assert Counter(kind for kind, _ in first[: len(DECK)]) == Counter(DECK)


def test_expected_row_counts_once_whichever_side_is_read_first() -> None:
    expected = Expected()
    expected.expect((1,), (5,))
    expected.see((1,), (5,), known=True)
    expected.see((2,), (6,), known=False)
    expected.expect((2,), (6,))
    assert (expected.missing, expected.early, expected.doubled, expected.wrong) == ({}, {}, 0, 0)
    expected.see((2,), (6,), known=True)
    expected.expect((3,), (7,))
    expected.see((3,), (8,), known=True)
    expected.expect((4,), (9,))
    assert (expected.missing, expected.doubled, expected.wrong) == ({(4,): (9,)}, 1, 1)


def minute(number: int, resident_mb: float) -> Minute:
    process = Sampled("slot", 7, 1, 60.0 * number, resident_mb, 80, 50)
    return Minute(
        60.0 * number, (process,), Stored(9, 1.0, number, 0.1, 1.0, 3), Latency(600, 9.0, 90.0), number, 9, 1.0
    )


def result(*minutes: Minute) -> Result:
    return Result(
        clean=True,
        why_not=(),
        hours=1.0,
        rate=400.0,
        capacity=None,
        seed=1,
        kills={"slot": 2},
        starts_of_the_program=1,
        generations=3,
        rows={"counted rows": 9},
        findings={"lost": 0, "doubled": 0},
        minutes=minutes,
        output_files=3,
        told=(),
    )


def test_table_has_a_verdict_per_figure() -> None:
    minutes = [minute(number, 200 + 30 * number / 60) for number in range(60)]
    verdicts = {each.name: each.verdict for each in figures(minutes, 300.0)}
    assert verdicts["slot: resident_mb"] == "grows"
    assert verdicts["slot: descriptors"] == verdicts["objects"] == verdicts["log_records"] == "flat"
    lines = table(result(*minutes), 300.0).splitlines()
    assert any(line.startswith("| slot: resident_mb |") and line.endswith("| grows |") for line in lines)
    assert "lost 0, doubled 0" in lines
    assert lines[-1] == "CLEAN"


def test_short_soak_has_no_verdict() -> None:
    minutes = [minute(number, 200 + 30 * number / 60) for number in range(int(60 * SHORTEST_H))]
    assert {each.verdict for each in figures(minutes, 0.0)} == {"too short"}
