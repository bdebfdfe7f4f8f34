"""docs/behaviours.md matches the tests, and every promised behaviour has a test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # behaviours_table

from behaviours_table import BEHAVIOURS, DOCUMENT, GROUPS, MUST, document, leading_ids, proofs


def test_every_behaviour_that_must_hold_has_a_test() -> None:
    found = proofs()
    assert [identity for identity in MUST if identity not in found] == []


def test_tests_name_only_behaviours_that_are_defined() -> None:
    unknown = {identity: tests for identity, tests in proofs().items() if identity not in BEHAVIOURS}
    assert unknown == {}
    assert [identity for identity in MUST if identity not in BEHAVIOURS] == []
    assert {identity[0] for identity in BEHAVIOURS} == set(GROUPS)


def test_the_document_is_not_stale() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python tests/behaviours_table.py"


def test_ids_count_at_the_beginning_of_a_docstring_only() -> None:
    assert leading_ids("C11: tolerated.") == ["C11"]
    assert leading_ids("S9, I7: nothing is deleted; see C3.") == ["S9", "I7"]
    assert leading_ids("T7") == ["T7"]
    assert leading_ids("Rows on S3, as A1 says.") == []
    assert leading_ids("S3Store answers.") == []
    assert leading_ids("") == []
