"""Refusals of the Kafka source on a real broker: lost records, and faults that are visible before the start."""

import logging
from collections.abc import Iterator

import pytest

from barrier_runtime.connectors.kafka.source.client import Cluster
from barrier_runtime.connectors.kafka.source.source import KafkaTopics
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import KafkaServer
from examples.servers.base import free_port
from tests.ends.kafka_world import Topic, reading, rows_from, source_of
from tests.waiting import until

# ---------------------------------------------------------------- deleted records


def test_position_no_longer_retained_stops_the_job_and_names_the_missing_records(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(map(str, range(100)))
    source = source_of(kafka, topic.name)
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 40)
        position = reader.position()
    topic.delete_before(60)
    restarted = source_of(kafka, topic.name)
    wanted = f"topic '{topic.name}', partition 0: offset 40 is wanted, but the earliest that is retained is 60: 20 off"
    with reading(restarted, restarted.splits(1)[0], position) as reader, pytest.raises(InvalidJob, match=wanted):
        rows_from(reader, 1)


def test_records_deleted_under_a_reader_that_is_behind_stop_it_after_what_it_had(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(kafka)
    value = "x" * 1000
    topic.write(value for _ in range(3_000))
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.source._HELD_BYTES", 20_000)
    source = source_of(kafka, topic.name, config={"queued.max.messages.kbytes": 16, "fetch.message.max.bytes": 16_384})
    with reading(source, source.splits(1)[0]) as reader:
        first = rows_from(reader, 1)
        topic.delete_before(2_990)
        seen = [row["offset"] for row in first]

        def read_on() -> None:
            while True:
                seen.extend(row["offset"] for row in rows_from(reader, 1))

        with pytest.raises(InvalidJob, match="earliest that is retained is 2990"):
            read_on()
        assert seen == list(range(len(seen)))
        assert len(seen) < 2_990


def test_a_loss_is_warned_of_while_it_comes_near(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention catches up with a stalled reader, offset by offset."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._POLL_S", 0.02)
    topic = Topic(kafka)
    topic.write("x" * 1000 for _ in range(3_000))
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.source._HELD_BYTES", 20_000)
    source = source_of(kafka, topic.name, config={"queued.max.messages.kbytes": 16, "fetch.message.max.bytes": 16_384})
    caplog.set_level(logging.WARNING, logger="barrier_runtime.kafka")
    earliest = iter(range(1, 400))
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 400)

        def warned() -> bool:
            topic.delete_before(next(earliest))
            return said in caplog.text

        said = "offset 400 is next, and all before "
        assert said not in caplog.text
        until(warned, "it warns")
        assert next(earliest) > 100  # of 3,000 a tenth: not while the reader is further ahead


def test_a_topic_that_is_deleted_while_it_is_read_ends_the_job(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: brokers that have just started may not know their topics yet. Other topics are read on."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._POLL_S", 0.1)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._POLL_SOON_S", 0.1)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.topic_checks._MISSING_S", 1.0)
    topics = sorted((Topic(kafka), Topic(kafka)), key=lambda topic: topic.name)
    for topic in topics:
        topic.write(["a"])
    source = source_of(kafka, [topic.name for topic in topics])
    gone, other = source.splits(1)
    with reading(source, gone) as reader, reading(source, other) as other_reader:
        rows_from(reader, 1)
        rows_from(other_reader, 1)
        topics[0].delete()
        with pytest.raises(InvalidJob, match=rf"topic '{topics[0].name}', partition 0: it is not there"):
            rows_from(reader, 1)
        topics[1].write(["b"])
        assert [row["value"] for row in rows_from(other_reader, 1)] == [b"b"]


def test_a_group_whose_offset_is_no_longer_retained_is_refused_at_the_start(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(map(str, range(10)))
    topic.commit("behind-the-log", 3)
    topic.delete_before(5)
    with pytest.raises(InvalidJob, match="'behind-the-log' is at offset 3, but the earliest that is retained is 5"):
        source_of(kafka, topic.name, start="group", group="behind-the-log").splits(1)


# ---------------------------------------------------------------- before anything is read


def test_a_missing_topic_is_named(kafka: KafkaServer) -> None:
    with pytest.raises(InvalidJob, match=r"there is no topic 'nowhere'.*create it first"):
        source_of(kafka, ["nowhere"]).splits(1)


def test_a_pattern_without_topics_is_an_error_only_where_none_can_come_later(kafka: KafkaServer) -> None:
    assert source_of(kafka, pattern="nothing-like-this-.*").splits(1) == []
    with pytest.raises(InvalidJob, match="no topics like 'nothing-like-this-"):
        source_of(kafka, pattern="nothing-like-this-.*", until="latest").splits(1)


def test_a_broker_that_does_not_answer_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.client._TIMEOUT_S", 1.5)
    source = source_of(_Nobody(), "topic")
    with pytest.raises(Unavailable, match=r"no answer from Kafka at 127.0.0.1:\d+ for .*start the broker"):
        source.splits(1)


class _Nobody:
    """A port without a listener."""

    def __init__(self) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"


def test_settings_that_the_client_does_not_know_or_must_not_have_are_refused(kafka: KafkaServer) -> None:
    with pytest.raises(InvalidJob, match=r'No such configuration property: "no\.such\.setting"'):
        source_of(kafka, "topic", config={"no.such.setting": 1}).splits(1)
    with pytest.raises(InvalidJob, match=r"fetch\.min\.bytes"):
        source_of(kafka, "topic", config={"fetch.min.bytes": "many"}).splits(1)
    for name in ("enable.auto.commit", "auto.offset.reset", "isolation.level", "group.id"):
        with pytest.raises(InvalidJob, match=f"config= must not set '{name}'"):
            source_of(kafka, "topic", config=lambda name=name: {name: "x"}).splits(1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaServer]:
    """A broker whose listener SECURE requires user and password."""
    server = KafkaServer({})
    try:
        secure = free_port()
        places = f"PLAINTEXT://{server.bootstrap},SECURE://127.0.0.1:{secure}"
        server.configure(
            listeners=f"{places},CONTROLLER://127.0.0.1:{server._controller_port}",
            advertised_listeners=places,
            listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
            listener_name_secure_sasl_enabled_mechanisms="PLAIN",
            listener_name_secure_plain_sasl_jaas_config=(
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="open-sesame";'
            ),
        )
        server.start()
        server.secure = f"127.0.0.1:{secure}"  # type: ignore[attr-defined]
        yield server
    finally:
        server.close()


class _Secured:
    def __init__(self, guarded: KafkaServer) -> None:
        self.bootstrap = guarded.secure  # type: ignore[attr-defined]


def secured_source(guarded: KafkaServer, topic: str, *passwords: str) -> KafkaTopics:
    """A source whose clients take the passwords in turn, and the last password from then on."""
    left = list(passwords)

    def config() -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": left.pop(0) if len(left) > 1 else left[0],
        }

    return source_of(_Secured(guarded), topic, config=config)


def test_the_right_password_opens_and_a_wrong_one_is_said_at_once_without_showing_it(guarded: KafkaServer) -> None:
    topic = Topic(guarded)
    topic.write(["secret news"])
    source = secured_source(guarded, topic.name, "open-sesame")
    with reading(source, source.splits(1)[0]) as reader:
        assert [row["value"] for row in rows_from(reader, 1)] == [b"secret news"]
    wrong = secured_source(guarded, topic.name, "open-barley")
    with pytest.raises(InvalidJob, match=r"Kafka refuses the credentials .*correct the sasl") as refused:
        wrong.splits(1)
    assert "barley" not in f"{refused.value} {refused.value.__cause__} {wrong!r} {wrong._client!r}"


def test_a_password_that_is_wrong_in_the_slot_ends_the_job_after_a_while(
    guarded: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.errors.REFUSED_S", 0.5)
    topic = Topic(guarded)
    driver = ["open-sesame"] * 2  # a consumer and an administrator
    source = secured_source(guarded, topic.name, *driver, "open-barley")
    with (
        reading(source, source.splits(1)[0]) as reader,
        pytest.raises(InvalidJob, match="Kafka refuses the credentials"),
    ):
        rows_from(reader, 1)


def test_one_cluster_answers_questions_for_all_partitions_at_once(kafka: KafkaServer) -> None:
    topic = Topic(kafka, partitions=50)
    topic.write(["a", "b"], 7)
    source = source_of(kafka, topic.name)
    with Cluster(source._client) as cluster:
        partitions = cluster.partitions([topic.name], None)
        ends = cluster.offsets(partitions, -1)
    assert len(partitions) == 50
    assert {number: offset for (_, number), offset in ends.items() if offset} == {7: 2}
