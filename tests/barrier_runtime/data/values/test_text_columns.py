"""Texts of files in a declared type: values kept by the type, and reasons for refusals."""

import re
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.data.values.text_columns import TextMisfit, column_of_texts

US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("2024-01-01T00:00:00Z", US, "has a zone, and the column is declared without"),
        ("2024-01-01 00:00:00+01:00", US, "has a zone, and the column is declared without"),
        ("10000-01-01T00:00:00Z", US, "has a zone, and the column is declared without"),
        ("2024-01-01T00:00:00", UTC, "has no zone, and the column is declared with one"),
        ("10000-01-01T00:00:00", UTC, "has no zone, and the column is declared with one"),
        ("10000-01-01T00:00:00", pa.date32(), "is not kept as date32"),
    ],
)
def test_a_text_whose_form_is_not_that_of_the_column_is_refused(text: str, kind: pa.DataType, why: str) -> None:
    with pytest.raises(TextMisfit, match=re.escape(why)) as caught:
        column_of_texts(pa.array([None, text]), kind)
    assert (caught.value.row, caught.value.text) == (1, text)


@pytest.mark.parametrize(
    ("text", "kind", "stored"),
    [
        ("10000-01-01T00:00:00", US, 253_402_300_800 * 10**6),
        ("10000-01-01T01:00:00+01:00", UTC, 253_402_300_800 * 10**6),
        ("9999-12-31T23:00:00-0100", UTC, 253_402_300_800 * 10**6),
        ("10000-01-01", pa.date64(), 253_402_300_800 * 10**3),
    ],
)
def test_times_of_far_years_are_kept(text: str, kind: pa.DataType, stored: Any) -> None:
    column = column_of_texts(pa.array([text, None]), kind)
    assert column.view(pa.int64()).to_pylist() == [stored, None]
