"""The catalogue of mutants fits the code as it is: a mutant that changes nothing proves nothing."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_exactly_one_place_and_is_still_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: correct `old` of {mutant.name}"
    assert mutant.new != mutant.old
    ast.parse(text.replace(mutant.old, mutant.new), mutant.file)


def test_names_are_unique_and_the_tests_that_find_a_mutant_exist() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    missing = {check for mutant in MUTANTS for check in mutant.checks if not (ROOT / check.partition("::")[0]).exists()}
    assert missing == set()
    assert [mutant.name for mutant in MUTANTS if not mutant.checks] == []


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 40
