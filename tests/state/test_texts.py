"""Texts of messages: numbers with their nouns."""

from barrier_runtime.state.texts import counted


def test_one_thing_is_counted_without_a_plural() -> None:
    assert [counted(each, "row") for each in (0, 1, 2, 1_000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert counted(2, "crash", "crashes") == "2 crashes"
