"""The catalogue of mutants fits the current code: a mutant without a change proves nothing."""

import ast
from collections import Counter
from pathlib import Path

from tests.mutants.catalogue import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


def test_a_mutant_changes_exactly_one_place_and_is_still_python() -> None:
    """A failure lists mutants whose `old` has to be corrected: their file has changed."""
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {mutant.file for mutant in MUTANTS}}
    assert [mutant.name for mutant in MUTANTS if texts[mutant.file].count(mutant.old) != 1] == []
    assert [mutant.name for mutant in MUTANTS if mutant.new == mutant.old] == []
    for mutant in MUTANTS:
        ast.parse(texts[mutant.file].replace(mutant.old, mutant.new), f"{mutant.file} with {mutant.name}")


def test_names_are_unique_and_the_tests_that_find_a_mutant_exist() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    missing = {check for mutant in MUTANTS for check in mutant.checks if not (ROOT / check.partition("::")[0]).exists()}
    assert missing == set()
    assert [mutant.name for mutant in MUTANTS if not mutant.checks] == []


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 40
