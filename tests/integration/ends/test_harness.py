"""The harness itself: its audits see every kind of wrong, its plans are reproducible, and a job goes through it."""

import collections
from pathlib import Path

import pytest

from tests.integration.ends import jsonl_numbers
from tests.integration.ends.audit import Latest, Numbers, Seen
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.plan import plan


def looked_at(*looks: Seen, together: bool = False, ordered: bool = True) -> Numbers:
    audit = Numbers(4, together=together, splits=2, ordered=ordered)
    for number, seen in enumerate(looks):
        audit.observe(f"look {number}", seen)
    return audit


def test_rows_that_come_in_order_are_right_in_whole_looks_and_in_looks_at_what_is_new() -> None:
    tables = looked_at(Seen([]), Seen([0, 1, 4]), Seen([0, 1, 4, 2, 5, 8]))
    topics = looked_at(Seen([0, 1, 4], whole=False), Seen([], whole=False), Seen([2, 5, 8], whole=False))
    for audit in (tables, topics):
        assert audit.figures.right, audit.figures
        assert audit.rows == 6
        assert audit.figures.observations == 3


def test_a_row_that_is_missing_below_a_later_one_of_its_key_is_lost() -> None:
    audit = looked_at(Seen([0, 1, 8]))
    assert audit.figures.lost == 1
    assert audit.figures.wrong_observations == 1
    assert "look 0" in audit.figures.examples[0]


def test_a_row_that_is_missing_for_a_moment_makes_that_look_wrong_though_it_comes_later() -> None:
    audit = looked_at(Seen([0, 8]), Seen([0, 8, 4]), ordered=False)
    assert audit.figures.lost == 0
    assert audit.figures.wrong_observations == 1
    assert not audit.figures.right


@pytest.mark.parametrize("whole", [True, False])
def test_a_row_that_shows_twice_is_seen_in_the_same_look_and_in_a_later_one(whole: bool) -> None:
    assert looked_at(Seen([0, 1, 1], whole=whole)).figures.duplicated == 1
    later = Seen([0, 1, 0], whole=True) if whole else Seen([0], whole=False)
    assert looked_at(Seen([0, 1], whole=whole), later).figures.duplicated == 1


def test_a_row_that_vanishes_is_seen() -> None:
    assert looked_at(Seen([0, 4]), Seen([0])).figures.torn == 1


def test_the_order_of_a_key_counts_only_where_the_reader_has_one() -> None:
    assert looked_at(Seen([4, 0])).figures.out_of_order == 1
    assert looked_at(Seen([4, 0]), ordered=False).figures.right


def test_a_count_that_is_not_the_one_of_its_row_is_seen() -> None:
    assert looked_at(Seen([0, 4], n=[1, 2])).figures.right
    assert looked_at(Seen([0, 4], n=[1, 3])).figures.wrong_state == 1


def test_rows_that_have_to_show_together_are_a_vector_of_source_positions() -> None:
    """Values 0, 2, 4, … are of split 0: without 2, value 4 must not show, although it is the next of its key."""
    assert looked_at(Seen([0, 4])).figures.right
    assert looked_at(Seen([0, 4]), together=True).figures.lost == 1
    assert looked_at(Seen([0, 2, 4, 1]), together=True).figures.right


def test_one_row_per_key_has_to_fit_its_count_and_must_not_go_back() -> None:
    audit = Latest(4)
    audit.observe("first", {0: (4, 2), 1: (1, 1)})
    assert audit.figures.right
    assert audit.rows == 3
    for wrong in ({0: (0, 1), 1: (1, 1)}, {0: (4, 3), 1: (1, 1)}, {0: (4, 2)}, {0: (5, 2), 1: (1, 1)}):
        audit = Latest(4)
        audit.observe("first", {0: (4, 2), 1: (1, 1)})
        audit.observe("second", wrong)
        assert audit.figures.wrong_observations == 1, wrong
        assert "second" in audit.figures.examples[0]


def test_rows_per_key_that_show_together_are_a_vector_of_source_positions() -> None:
    for seen, right in (
        ({0: (4, 2), 2: (2, 1)}, True),
        ({0: (4, 2)}, False),  # row 2 comes before row 4 in their split
        ({0: (4, 2), 2: (2, 1), 1: (5, 2), 3: (3, 1)}, True),
        ({0: (0, 1), 2: (6, 2)}, False),  # row 4 is missing
    ):
        audit = Latest(4, together=True)
        audit.observe("look", seen)
        assert audit.figures.right == right, seen


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_comes_from_its_seed_and_strikes_everything(seed: int) -> None:
    actions = plan(seed, 20, True, 7.0)
    assert actions == plan(seed, 20, True, 7.0)
    kinds = collections.Counter(kind for each in actions for kind in (each.kind, each.then) if kind)
    assert kinds.total() >= 20
    assert min(kinds[kind] for kind in ("slot", "coordinator", "program", "server kill", "server stop")) >= 2
    assert sum(each.hold_s == 7.0 for each in actions) == 1
    assert any(each.then and each.kind.startswith("server") for each in actions)
    without = plan(seed, 20, False, 7.0)
    assert not any(each.kind.startswith("server") for each in without)
    assert sum(1 + (each.then is not None) for each in without) >= 20


@pytest.mark.spark
def test_a_job_goes_through_its_kills_with_nothing_lost_or_doubled(tmp_path: Path) -> None:
    """R3, T12: slots, coordinators and the whole program are killed; every look at the commit log is checked."""
    folder = tmp_path / "out"
    report = run_under_kills(
        Path(jsonl_numbers.__file__),
        {"rate": 2_000, "keys": 50, "folder": str(folder)},
        folder=tmp_path,
        open_reader=lambda: CommittedRows(str(folder), jsonl_numbers.NAME, jsonl_numbers.SINK).look,
        make_audit=lambda: Numbers(50, together=True),
        kills=6,
        seed=1,
    )
    assert report.clean, str(report)
    assert report.kills >= 6
    assert report.looks > 50
