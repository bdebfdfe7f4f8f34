"""Errors with useful remedies: a setting already in force is not proposed again."""

from typing import Any

import pytest

from barrier_runtime import Dataflow, InvalidJob


def refused(**options: Any) -> str:
    with pytest.raises(InvalidJob) as error:
        Dataflow("remedies").read_kafka("in", "broker:9092", "topic", group="g", **options)
    return str(error.value).partition(": ")[2]


# Source: our own trial
def test_two_columns_of_one_name_are_told_with_the_remedies_that_are_left() -> None:
    json: dict[str, Any] = {"value": "json"}
    assert refused(**json, schema={"key": str}, metadata=()) == "there would be two columns 'key': pass key=None"
    said = refused(**json, schema={"offset": int}, key=None)
    assert said.startswith("there would be two columns 'offset': rename the metadata by metadata=")
    assert "key=None" not in said
    said = refused(metadata={"offset": "value", "topic": "topic"}, key=None)
    assert said.endswith("leave 'offset' out of metadata=")
    said = refused(**json, schema={"dead_letter_error": str}, key=None, metadata=(), bad_records="dead_letter")
    assert (
        said
        == "there would be two columns 'dead_letter_error': pass bad_records=\"fail\", as dead letters need that name"
    )
    assert (
        refused(value="json", key=None, debezium="upsert")
        == "debezium='upsert' needs schema= with the columns of the table"
    )
    assert refused(schema={"id": int}, debezium="upsert").endswith('needs value="json" or a deserialiser')
