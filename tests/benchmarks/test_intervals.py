"""95 % intervals over few rounds: their values, and how often they contain the median."""

import math

import numpy as np
import pytest

from benchmarks.report.intervals import interval95, of_differences, told


def test_one_or_two_rounds_have_no_interval() -> None:
    assert interval95([]) is None
    assert interval95([1.0]) is None
    assert interval95([1.0, 2.0]) is None


def test_three_to_five_rounds_have_students_interval_of_the_logarithms() -> None:
    """Computed by hand: logarithms 0, 1, 2 have mean 1 and deviation 1; 4.303 / √3 = 2.484."""
    found = interval95([math.e, 1.0, math.e**2])
    assert found is not None
    assert [math.log(bound) for bound in found] == pytest.approx([1 - 2.484, 1 + 2.484], abs=0.001)


def test_a_figure_that_can_be_negative_has_students_interval_as_it_is() -> None:
    assert interval95([-1.0, 0.0, 1.0]) == pytest.approx((-2.484, 2.484), abs=0.001)


@pytest.mark.parametrize(("count", "left_out"), [(6, 0), (8, 0), (9, 1), (12, 2), (20, 5)])
def test_from_six_rounds_on_it_is_the_interval_of_order_statistics(count: int, left_out: int) -> None:
    """The sign test's table for 5 %, two-sided, gives the numbers left out on each side."""
    values = [float(value) for value in range(count)]
    assert interval95(values[::-1]) == (left_out, count - 1 - left_out)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9])
def test_the_interval_holds_the_true_median_in_95_percent_of_the_cases(count: int) -> None:
    """Latencies of rounds that differ by log-normal factors around 2 ms."""
    rounds = np.random.default_rng(count).lognormal(math.log(2.0), 0.3, (1_000, count)).tolist()
    found = [interval95(values) for values in rounds]
    held = sum(one is not None and one[0] <= 2.0 <= one[1] for one in found)
    assert held / len(found) > 0.93


def test_equal_rounds_have_an_interval_of_one_point() -> None:
    assert interval95([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))


def test_a_figure_is_told_with_its_median_and_from_three_rounds_on_with_its_interval() -> None:
    assert told([None]) is None
    assert told([1.0, None, 3.0]) == "2"
    assert told([2.0, 1.9, 2.1]) == "2 [1.76, 2.26]"
    assert told([1e6, 1e6, 1e6], lambda value: f"{value / 1e6:g}M") == "1M [1M, 1M]"


def test_differences_of_pairs_have_the_interval_of_signed_ranks() -> None:
    """For 1 to 10, Wilcoxon's table leaves out the 8 lowest of 55 averages at 95 %: 1, 1.5, 2, 2, 2.5, 2.5, 3, 3."""
    assert of_differences([float(value) for value in range(10, 0, -1)]) == (5.5, (3.0, 8.0))
    assert of_differences([3.0, 1.0, 2.0]) == (2.0, None)


@pytest.mark.parametrize("count", [10, 14, 30])
def test_interval_of_differences_is_narrower_and_holds_in_95_percent_of_cases(count: int) -> None:
    """Logarithms of ratios of two noisy blocks, every tenth disturbed: equally on both sides of a true 0.05."""
    random = np.random.default_rng(count)
    shape = (1_000, count)
    noise = random.normal(0.05, 0.1, shape) + random.normal(0, 0.5, shape) * (random.random(shape) < 0.1)
    held, widths, others = 0, [], []
    for values in noise.tolist():
        middle, interval = of_differences(values)
        plain = interval95(values)
        assert interval is not None
        assert plain is not None
        assert interval[0] <= middle <= interval[1]
        held += interval[0] <= 0.05 <= interval[1]
        widths.append(interval[1] - interval[0])
        others.append(plain[1] - plain[0])
    assert held / len(noise) > 0.93
    assert np.median(widths) < np.median(others)
