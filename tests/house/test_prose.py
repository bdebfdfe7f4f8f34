"""Prose that names its things: pronouns per 1,000 words stay within a budget that only falls."""

import pytest

from tests.house.prose import PRONOUNS, counted

# Per 1,000 words: what, one, it, its. An editor of a folder lowers the folder's row to the numbers reached.
BUDGETS = {
    "barrier_runtime": (0.2, 3.2, 1.9, 2.9),
    "coordinator": (0.2, 1.1, 0.5, 0.7),
    "state": (0.1, 0.2, 0.1, 0.2),
    "tests": (0.5, 4.0, 2.3, 2.6),
    "benchmarks": (0.1, 0.8, 1.5, 1.3),
    "examples": (0.2, 1.3, 0.9, 0.9),
    "docs": (0.4, 0.9, 1.5, 1.0),
    "README.md": (1.0, 1.9, 1.0, 1.9),
    "ARCHITECTURE.md": (0.1, 4.9, 2.0, 3.0),
    "CONTRIBUTING.md": (0.1, 3.4, 0.6, 3.4),
    "CHANGELOG.md": (0.1, 2.5, 1.3, 0.1),
    "benchmarks/README.md": (0.5, 0.5, 1.0, 1.8),
    "benchmarks/figures.md": (0.3, 4.0, 6.2, 3.2),
}


@pytest.mark.parametrize("place", BUDGETS)
def test_prose_names_its_things(place: str) -> None:
    reached = dict(zip(PRONOUNS, counted(place).per_thousand, strict=True))
    budget = dict(zip(PRONOUNS, BUDGETS[place], strict=True))
    over = {word: round(number, 1) for word, number in reached.items() if number > budget[word]}
    assert over == {}, f"per 1,000 words of {place}; at most {budget}: name the thing instead"
