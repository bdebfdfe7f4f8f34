"""A topic that was deleted and recreated, on a real broker: the source takes no row of the new topic for a row of the
old.
"""

import contextlib
import datetime
import random
import time
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from barrier_runtime.connectors.kafka.source.client import KafkaClient, load_client
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.connectors.kafka.source.position import KafkaSplit, begin
from barrier_runtime.connectors.kafka.source.topic_checks import TopicIds
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, reading, rows_from, source_of
from tests.waiting import until


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
    """The program keeps the splits listed at the start, and the new topic has a record at the old offset."""
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
    """Immediately, and with more records than the reader has read: the client itself would read on. Without
    `discover=`.
    """
    topic = Topic(kafka)
    topic.write(["old"] * 100)
    source = source_of(kafka, topic.name)
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 100)
        topic.delete()
        Topic(kafka, name=topic.name).write(["new"] * 200)
        # If the new topic has no record yet, the reader gets another error text of the same meaning.
        with pytest.raises(InvalidJob, match=r"offset 100 .*made again|made again .*offset 100"):
            rows_from(reader, 1)


def test_rows_wait_until_the_brokers_say_which_topic_they_are_of(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the queries of the topic's id, at random, get no answer: rows are fetched again, and appear once."""
    ask, draw = TopicIds._ask, random.Random(1)
    answers: list[bool] = []

    def ask_or_not(self: TopicIds, *args: Any) -> None:
        answers.append(draw.random() < 0.5)
        if answers[-1]:
            ask(self, *args)

    monkeypatch.setattr(TopicIds, "_ask", ask_or_not)
    for name in ("_ID_TRUSTED_S", "_ID_AHEAD_S"):
        monkeypatch.setattr(f"barrier_runtime.connectors.kafka.source.topic_checks.{name}", 0.0)
    topic = Topic(kafka, partitions=2)
    for partition in range(2):
        topic.write((str(number) for number in range(2_000)), partition)
        topic.write_transactions((["given up"] * 3, False), partition=partition)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.source._HELD_BYTES", 20_000)
    source = source_of(kafka, topic.name, until="latest", config={"queued.max.messages.kbytes": 8})
    for split in source.splits(1):
        with reading(source, split) as reader:
            assert [row["value"] for row in rows_from(reader)] == [str(number).encode() for number in range(2_000)]
    assert True in answers
    assert False in answers


class _Unanswered(Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        raise AssertionError("waited for, though the last answer is still good")


def judged(kafka: KafkaServer, topic: Topic, said: list[str] | None = None) -> tuple[TopicIds, PartitionQueue]:
    """A feed of the current topic, and ids that know the topic."""
    say = [].append if said is None else said.append
    source = source_of(kafka, topic.name)
    split = msgspec.json.decode(source.splits(1)[0].payload, type=KafkaSplit)
    ids = TopicIds(KafkaClient("source", kafka.bootstrap, "group", {}), load_client("source"), say)
    feed = PartitionQueue(topic.name, 0, begin(split), "source")
    until(lambda: ids.judge([feed]) == [], "the topic's id is known")
    assert feed.trouble is None
    return ids, feed


def test_rows_wait_for_no_answer_while_the_last_one_is_good(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, feed = judged(kafka, Topic(kafka))
    asked: list[str] = []

    def ask(self: TopicIds, topics: list[str], now_s: float) -> None:
        asked.extend(topics)
        self._asked[feed.topic] = _Unanswered(), now_s

    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._ID_AHEAD_S", 0.0)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._ID_TRUSTED_S", 1_000.0)
    monkeypatch.setattr(TopicIds, "_ask", ask)
    assert [ids.judge([feed]), ids.judge([feed])] == [[], []]
    assert asked == [feed.topic], "asked ahead, and once"
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._ID_TRUSTED_S", 0.0)
    with pytest.raises(AssertionError, match="waited for"):
        ids.judge([feed])


def test_an_answer_that_was_asked_for_ahead_is_heard(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the previous answer is still valid."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._ID_AHEAD_S", 0.0)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._ID_TRUSTED_S", 1_000.0)
    topic = Topic(kafka)
    ids, feed = judged(kafka, topic)
    topic.delete()
    Topic(kafka, name=topic.name)
    until(lambda: ids.judge([feed]) == [] and feed.over, "the other topic is noticed")
    assert isinstance(feed.trouble, InvalidJob)
    assert "deleted and made again" in str(feed.trouble)


def test_what_was_asked_before_a_partition_is_read_anew_says_nothing(kafka: KafkaServer) -> None:
    ids, feed = judged(kafka, Topic(kafka))
    ids._asked[feed.topic] = _Unanswered(), float("inf")
    ids.forget(feed.topic)
    assert ids.judge([feed]) == []


def test_a_client_that_does_not_say_how_a_question_ended_is_replaced(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ids, feed = judged(kafka, Topic(kafka), said)
    first = ids._admin
    for name in ("clients._OVERDUE_S", "source.topic_checks._ID_ANSWER_S", "source.topic_checks._ID_IN_VAIN_S"):
        monkeypatch.setattr(f"barrier_runtime.connectors.kafka.{name}", 0.1)
    ids.forget(feed.topic)
    ids._asked[feed.topic] = Future(), time.monotonic()
    assert ids.judge([feed]) == [feed], "nobody can tell at present"
    assert "its client does not say how a question ended" in said[0]
    monkeypatch.undo()
    until(lambda: ids.judge([feed]) == [], "the other client knows it")
    assert ids._admin is not first
    assert feed.trouble is None


def test_a_client_whose_questions_are_in_vain_for_long_is_replaced_and_that_is_said(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ids, feed = judged(kafka, Topic(kafka), said)
    first = ids._admin
    for name, value in (("_ID_ANSWER_S", 0.2), ("_ID_IN_VAIN_S", 1.0)):
        monkeypatch.setattr(f"barrier_runtime.connectors.kafka.source.topic_checks.{name}", value)
    ids.forget(feed.topic)
    kafka.kill()
    try:
        until(lambda: ids.judge([feed]) == [feed] and bool(said), "it is said")
        assert "the brokers do not tell its topics' ids" in said[0]
        assert ids._admin is not first
    finally:
        kafka.start()
    monkeypatch.undo()
    until(lambda: ids.judge([feed]) == [], "the topic's id is known again")
    assert feed.trouble is None


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
    discovery = source.discovery(NameSet())
    assert discovery is not None
    try:
        until(lambda: len(discovery.found()) == 1, "the topic was listed once")
        topic.delete()
        Topic(kafka, name=topic.name)

        def look() -> bool:
            with contextlib.suppress(Unavailable):
                discovery.found()
            return False

        with pytest.raises(InvalidJob, match="deleted and made again while it was read"):
            until(look, "it is noticed")
    finally:
        discovery.close()
