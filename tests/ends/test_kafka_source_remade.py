"""A topic that was deleted and made again, on a real broker: no row of it is taken for one of the topic before it."""

import contextlib
import datetime
import random
from typing import Any

import msgspec
import pytest

from barrier_runtime.sources.kafka_position import KafkaSplit
from barrier_runtime.sources.kafka_topic_ids import TopicIds
from examples.servers import KafkaServer
from state.errors import InvalidJob, Unavailable
from tests.ends.kafka_world import Topic, reading, rows_from, source_of, wait_until


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(["old"] * 5)
    source = source_of(kafka, topic.name)
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 2)
        position = reader.position()
    topic.delete()
    Topic(kafka, name=topic.name).write(["new"] * 10)
    restarted = source_of(kafka, topic.name)
    reader = restarted.reader(restarted.splits(1)[0])
    with pytest.raises(InvalidJob, match="deleted and made again since it was read, so offset 2 means nothing"):
        reader.seek(position)
    reader.close()


@pytest.mark.parametrize("with_id", [True, False], ids=["of now", "of a snapshot without ids"])
def test_a_topic_that_was_made_again_while_the_job_restarted_gives_no_row(kafka: KafkaServer, with_id: bool) -> None:
    """The program goes on with the splits that it listed at its start, and there is a record at the old offset."""
    topic = Topic(kafka)
    topic.write(["old"] * 5)
    source = source_of(kafka, topic.name)
    (split,) = source.splits(1)
    with reading(source, split) as reader:
        rows_from(reader, 2)
        position = reader.position()
    assert msgspec.json.decode(position)["topic_id"] != ""
    topic.delete()
    Topic(kafka, name=topic.name).write(["new"] * 10)
    with (
        reading(source, split, position if with_id else b'{"offset": 2}') as reader,
        pytest.raises(InvalidJob, match=f"'{topic.name}', partition 0: the topic was deleted and made again since it"),
    ):
        rows_from(reader, 1)


def test_a_topic_that_is_made_again_under_a_reader_gives_it_no_row(kafka: KafkaServer) -> None:
    """At once, and with more records than it has read: the client itself would read on. Without `discover=`."""
    topic = Topic(kafka)
    topic.write(["old"] * 100)
    source = source_of(kafka, topic.name)
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 100)
        topic.delete()
        Topic(kafka, name=topic.name).write(["new"] * 200)
        with pytest.raises(InvalidJob, match="deleted and made again since it was read, so offset 100 means nothing"):
            rows_from(reader, 1)


def test_rows_wait_until_the_brokers_say_which_topic_they_are_of(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other question about it has no answer: what came is fetched again, so every row comes once."""
    ask, draw = TopicIds._ask, random.Random(1)
    answers: list[bool] = []

    def ask_or_not(self: TopicIds, *args: Any) -> None:
        answers.append(draw.random() < 0.5)
        if answers[-1]:
            ask(self, *args)

    monkeypatch.setattr(TopicIds, "_ask", ask_or_not)
    monkeypatch.setattr("barrier_runtime.sources.kafka_topic_ids._TRUSTED_S", 0.0)
    topic = Topic(kafka, partitions=2)
    for partition in range(2):
        topic.write((str(number) for number in range(2_000)), partition)
        topic.write_transactions((["given up"] * 3, False), partition=partition)
    source = source_of(kafka, topic.name, until="latest", config={"queued.max.messages.kbytes": 8})
    source.hold_at_most(20_000)
    for split in source.splits(1):
        with reading(source, split) as reader:
            assert [row["value"] for row in rows_from(reader)] == [str(number).encode() for number in range(2_000)]
    assert True in answers
    assert False in answers


def test_brokers_that_give_no_ids_are_not_asked_for_them(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(["a", "b"])
    source = source_of(kafka, topic.name)
    (split,) = source.splits(1)
    without = msgspec.structs.replace(msgspec.json.decode(split.payload, type=KafkaSplit), topic_id="")
    with reading(source, without.split()) as reader:
        assert [row["value"] for row in rows_from(reader, 2)] == [b"a", b"b"]
        assert msgspec.json.decode(reader.position())["topic_id"] == ""


def test_a_topic_that_is_made_again_while_it_is_read_ends_the_job(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    source = source_of(kafka, topic.name, discover=datetime.timedelta(milliseconds=20))
    discovery = source.discovery([])
    assert discovery is not None
    try:
        wait_until(lambda: len(discovery.found()) == 1, "the topic was listed once")
        topic.delete()
        Topic(kafka, name=topic.name)

        def look() -> bool:
            with contextlib.suppress(Unavailable):
                discovery.found()
            return False

        with pytest.raises(InvalidJob, match="deleted and made again while it was read"):
            wait_until(look, "it is noticed")
    finally:
        discovery.close()
