"""The Kafka sink's handling of rows and settings: formats, sizes, order, and a clear refusal before the decision."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from barrier_runtime.connectors.kafka.sink import client as kafka_client
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import KafkaServer
from examples.servers.base import free_port
from tests.ends.kafka_target import Job, Topic, alter, kafka_sink, new_topic, sealed, written
from tests.ends.schema_registry import Registry
from tests.ends.test_kafka_source_registry import client
from tests.waiting import until


@pytest.fixture
def schemas() -> Iterator[Registry]:
    registry = Registry()
    thread = threading.Thread(target=registry.server.serve_forever)
    thread.start()
    yield registry
    registry.server.shutdown()
    thread.join()
    registry.server.server_close()


def records_of(topic: Topic, sink: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """The messages that these rows become, whatever is in their values."""
    sink.commit(sink.pre_commit(written(sink, rows), 1))
    topic.decode = lambda value: value
    topic.read()
    return [message for messages in topic.messages for message in messages]


# ---------------------------------------------------------------- rows


def test_rows_of_one_key_keep_their_order_over_transactions(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T12: five keys, ten checkpoints, two partitions."""
    sink = job.open(kafka_sink(kafka, topic, key="k"))
    number = 0
    for checkpoint in range(1, 11):
        rows = [{"k": f"key-{each % 5}", "n": number + each} for each in range(20)]
        number += 20
        sink.commit(sink.pre_commit(written(sink, rows), checkpoint))
    topic.read()
    assert all(topic.messages), "both partitions have rows"
    for messages in topic.messages:
        by_key: dict[bytes, list[int]] = {}
        for message in messages:
            by_key.setdefault(message.key(), []).append(json.loads(message.value())["n"])
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert sum(map(len, by_key.values())) == len(messages)


def test_key_headers_and_time_come_from_columns(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    sink = job.open(kafka_sink(kafka, topic, key="id", headers={"trace": "t", "kind": "k"}, timestamp="at"))
    (message,) = records_of(topic, sink, [{"id": 7, "t": "abc", "k": None, "at": 1_700_000_000_123}])
    assert message.key() == b"7"
    assert message.headers() == [("trace", b"abc")]
    assert message.timestamp()[1] == 1_700_000_000_123
    assert json.loads(message.value()) == {"id": 7, "t": "abc", "k": None, "at": 1_700_000_000_123}


@pytest.mark.parametrize(
    ("content", "expected"), [("text", b"text"), (b"\x00\xff", b"\x00\xff"), (12, b"12"), (None, None)]
)
def test_the_value_may_be_one_column(kafka: KafkaServer, topic: Topic, job: Job, content: Any, expected: Any) -> None:
    """None is a tombstone."""
    sink = job.open(kafka_sink(kafka, topic, key="id", value="v"))
    (message,) = records_of(topic, sink, [{"id": "a", "v": content}])
    assert message.value() == expected


def test_values_may_be_serialised_by_the_clients_own_avro(
    kafka: KafkaServer, topic: Topic, job: Job, schemas: Registry
) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    sink = job.open(kafka_sink(kafka, topic, value=lambda: AvroSerializer(client(schemas), schema)))
    (message,) = records_of(topic, sink, [{"n": 5}])
    read = AvroDeserializer(client(schemas), schema)
    assert read(message.value(), SerializationContext(topic.name, MessageField.VALUE)) == {"n": 5}


def test_a_registry_that_is_down_fails_the_checkpoint_until_it_answers(
    kafka: KafkaServer, topic: Topic, job: Job, schemas: Registry
) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    sink = job.open(kafka_sink(kafka, topic, value=lambda: AvroSerializer(client(schemas), schema)))
    transaction = written(sink, [{"n": 5}])
    schemas.down = True
    with pytest.raises(SchemaRegistryError):
        sink.pre_commit(transaction, 1)
    schemas.down = False
    sink.commit(sink.pre_commit(transaction, 1))
    topic.decode = lambda value: value
    assert len(topic.read()) == 1


def test_a_row_that_the_serialiser_refuses_fails_the_checkpoint_and_is_shown(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """After the decision the sink would retry for ever."""

    def refuse(row: Any, context: Any) -> bytes:
        raise ValueError("no such field")

    sink = job.open(kafka_sink(kafka, topic, value=lambda: refuse))
    with pytest.raises(
        InvalidJob, match=r"serialiser of the value .* refused a row \(ValueError: no such field\).*'n': 5"
    ):
        sealed(sink, 1, [5])


def test_a_row_that_is_too_large_for_the_topic_is_refused_before_the_decision(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, max_message_bytes=20_000) as topic:
        sink = job.open(kafka_sink(kafka, topic))
        large = written(sink, [{"n": 1, "text": "x" * 25_000}])
        with pytest.raises(InvalidJob, match=rf"a row takes 250\d\d bytes, topic '{topic.name}' allows about 19800"):
            sink.pre_commit(large, 1)


def test_rows_just_below_the_topics_limit_are_written(kafka: KafkaServer, job: Job) -> None:
    """Also many such rows, in a transaction: batches keep to the limit, too."""
    with new_topic(kafka, max_message_bytes=20_000) as topic:
        sink = job.open(kafka_sink(kafka, topic, value="text", key="n"))
        rows = [{"n": number, "text": "x" * (19_700 - number * 97 % 19_000)} for number in range(300)]
        assert len(records_of(topic, sink, rows)) == 300


@pytest.mark.parametrize(
    "settings", [{"key": "absent"}, {"value": "absent"}, {"headers": ["absent"]}, {"timestamp": "absent"}]
)
def test_a_missing_column_is_named_with_those_that_are_there(
    kafka: KafkaServer, topic: Topic, job: Job, settings: dict[str, Any]
) -> None:
    sink = job.open(kafka_sink(kafka, topic, **settings))
    with pytest.raises(InvalidJob, match=r"no column 'absent' for topic .* use one of n"):
        sealed(sink, 1, [1])


def test_a_column_that_can_be_no_key_is_refused(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    sink = job.open(kafka_sink(kafka, topic, key="list"))
    with pytest.raises(InvalidJob, match="column 'list' is list<item: int64>, which is not a key, value or header"):
        written(sink, [{"list": [1, 2]}])


# ---------------------------------------------------------------- settings


def test_a_missing_topic_is_named(kafka: KafkaServer, job: Job) -> None:
    with pytest.raises(InvalidJob, match=r"topic 'nowhere' cannot be written: .*create it"):
        job.open(KafkaSink(kafka.bootstrap, "nowhere"))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_brokers_that_are_down_at_the_start_are_named(
    job: Job, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "ANSWER_S", 1.0)
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"cannot reach Kafka at {place}.*are the brokers up"):
        job.open(KafkaSink(place, "topic", guarantee=guarantee))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"no.such.setting": 1}, 'No such configuration property: "no.such.setting"'),
        ({"linger.ms": "soon"}, "Invalid value for configuration property"),
        ({"transaction.timeout.ms": 10_000_000}, r"transaction.timeout.ms=10000000 is above .*max.timeout.ms=900000"),
        ({"message.max.bytes": 10_000_000}, r"message.max.bytes=10000000 is above .* segment.bytes allow 1048588\)"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_the_sink_opens(
    kafka: KafkaServer, topic: Topic, job: Job, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        job.open(kafka_sink(kafka, topic, config=config))


@pytest.mark.parametrize("name", ["transactional.id", "enable.idempotence", "acks", "group.id", "bootstrap.servers"])
def test_settings_that_are_the_sinks_own_are_refused_when_it_is_made(name: str) -> None:
    with pytest.raises(InvalidJob, match=rf"config=\{{'{name}'.*cannot be set"):
        KafkaSink("host:9092", "topic", config={name: "x"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "user:hunter2@host:9092"},
        {"topic": ""},
        {"guarantee": "once"},
        {"lost_marker": "written"},
        {"lost_marker": {"line/0/1": "written"}},
        {"lost_marker": {"line/0/1": -1}},
    ],
)
def test_arguments_that_make_no_sink_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="KafkaSink: ") as caught:
        KafkaSink(**{"bootstrap_servers": "host:9092", "topic": "topic", **arguments})
    assert "hunter2" not in str(caught.value)


def test_a_wrong_password_is_said_to_be_one_and_is_not_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """J6: against a broker that requires a password."""
    with server_with_passwords() as (kafka, place), new_topic(kafka) as topic:
        config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "writer"}
        right = KafkaSink(place, topic.name, config={**config, "sasl.password": "hunter2"})
        sink = job.open(right)
        committable = sealed(sink, 1, [1])
        sink.commit(committable)
        assert [row["n"] for row in topic.read()] == [1]
        wrong = KafkaSink(place, topic.name, config={**config, "sasl.password": "hunter3"})
        monkeypatch.setattr(kafka_client, "ANSWER_S", 5.0)
        monkeypatch.setattr("barrier_runtime.connectors.kafka.errors.REFUSED_S", 1.0)
        refused = until(lambda: refusal(job, wrong), "the refusals have lasted")
        assert "Authentication failed" in refused
        kept = [job.store.get(info.key) for info in job.store.list("")]
        shown = f"{refused} {right!r} {right.settings()} {committable} {kept}"
        assert "hunter" not in shown


def refusal(job: Job, sink: KafkaSink) -> str:
    """Why the sink is refused for good; "" while the broker may still be starting."""
    with pytest.raises((InvalidJob, Unavailable)) as caught:
        job.open(sink)
    return str(caught.value) if caught.type is InvalidJob else ""


def server_with_passwords() -> Any:
    import contextlib

    from examples.servers.kafka import KafkaServer

    @contextlib.contextmanager
    def server() -> Iterator[tuple[KafkaServer, str]]:
        kafka = KafkaServer({})
        port = free_port()
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        controller = kafka._controller_port
        kafka.configure(
            listeners=f"PLAINTEXT://{kafka.bootstrap},SASL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            advertised_listeners=f"PLAINTEXT://{kafka.bootstrap},SASL://127.0.0.1:{port}",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
            inter_broker_listener_name="PLAINTEXT",
            sasl_enabled_mechanisms="PLAIN",
            listener_name_sasl_plain_sasl_jaas_config=f'{login} required user_writer="hunter2";',
        )
        try:
            kafka.start()
            yield kafka, f"127.0.0.1:{port}"
        finally:
            kafka.close()

    return server()


# ---------------------------------------------------------------- at least once


def test_at_least_once_a_checkpoint_waits_until_the_brokers_have_all_rows(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    sink = job.open(kafka_sink(kafka, topic, guarantee="at_least_once"))
    assert sealed(sink, 1, range(1_000)) is None
    assert sorted(row["n"] for row in topic.read()) == list(range(1_000))


def test_at_least_once_rows_are_visible_before_the_checkpoint(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    sink = job.open(kafka_sink(kafka, topic, guarantee="at_least_once"))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": range(1_000)}))
    acknowledged = sink.stage_now(transaction)()
    assert sink.stage_now(transaction) is None, "no row is left"
    if acknowledged is not None:
        acknowledged()
    assert sorted(row["n"] for row in topic.read()) == list(range(1_000))


def test_at_least_once_a_write_waits_for_quick_brokers(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """Rows that came meanwhile leave together, with a request for each partition."""
    sink = job.open(kafka_sink(kafka, topic, guarantee="at_least_once"))
    transaction = sink.begin_transaction()

    def nothing_is_left_to_wait_for() -> bool:
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": range(10)}))
        return sink.stage_now(transaction)() is None

    until(nothing_is_left_to_wait_for)


def test_at_least_once_a_row_that_the_brokers_refuse_ends_the_generation(kafka: KafkaServer, job: Job) -> None:
    """The topic's limit was lowered after the sink was opened, so that only the brokers know the limit."""
    with new_topic(kafka, partitions=1, max_message_bytes=20_000) as topic:
        sink = job.open(kafka_sink(kafka, topic, guarantee="at_least_once"))
        alter(kafka, topic, "max.message.bytes", "10000")
        transaction = sink.begin_transaction()
        rows = pa.RecordBatch.from_pylist([{"n": 1, "text": "x" * 15_000}])
        sink.write(transaction, rows)
        acknowledged = sink.stage_now(transaction)()
        refusal = rf"cannot write to topic '{topic.name}' of Kafka.*\(MSG_SIZE_TOO_LARGE\)"
        with pytest.raises(InvalidJob, match=refusal):
            acknowledged()
        with pytest.raises(InvalidJob, match=refusal):
            sink.write(transaction, rows)
        with pytest.raises(InvalidJob, match=refusal):
            sink.pre_commit(transaction, 1)
        assert topic.read() == []


def test_at_least_once_a_full_queue_keeps_all_rows_in_order(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, partitions=1) as topic:
        config = {"queue.buffering.max.messages": 10}
        sink = job.open(kafka_sink(kafka, topic, value="n", guarantee="at_least_once", config=config))
        transaction = sink.begin_transaction()
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": range(1_000)}))
        sink.pre_commit(transaction, 1)
        assert topic.read() == list(range(1_000))


def test_at_least_once_is_certified_as_such(kafka: KafkaServer, topic: Topic) -> None:
    """R1: doubled rows are allowed, lost rows are not."""
    from barrier_runtime.testing import certify

    certificate = certify(
        lambda: kafka_sink(kafka, topic, guarantee="at_least_once"),
        topic.read,
        scenarios=4,
        seeds=range(1),
        kill=lambda sink: sink.close(),
    )
    assert certificate.guarantee == "at least once"


# ---------------------------------------------------------------- the topic of a row


@pytest.fixture
def others(kafka: KafkaServer) -> Iterator[list[Topic]]:
    with new_topic(kafka) as one, new_topic(kafka) as two:
        yield [one, two]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_go_to_the_topic_that_they_name(
    kafka: KafkaServer, topic: Topic, job: Job, others: list[Topic], guarantee: Any
) -> None:
    """Null means the sink's own topic. The sink requests no metadata of a topic that no row names."""
    sink = job.open(kafka_sink(kafka, topic, key="n", topic_column="to", value="n", guarantee=guarantee))
    names = [others[0].name, None, others[1].name, others[0].name]
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": range(4), "to": names}))
    committable = sink.pre_commit(transaction, 1)
    if committable is not None:
        sink.commit(committable)
    assert [sorted(each.read()) for each in (topic, *others)] == [[1], [0, 3], [2]]


def test_rows_of_all_topics_are_seen_once_whoever_commits_them(
    kafka: KafkaServer, topic: Topic, job: Job, others: list[Topic]
) -> None:
    """The marker is on the sink's own topic, even if no row belongs to that topic."""
    first = job.open(kafka_sink(kafka, topic, topic_column="to", value="n"), token=1)
    rows = [{"n": n, "to": others[n % 2].name} for n in range(10)]
    committable = first.pre_commit(written(first, rows), 1)
    first.commit(committable)
    successor = job.open(kafka_sink(kafka, topic, topic_column="to", value="n"), token=2, recover=[committable])
    successor.commit(committable)
    assert [sorted(each.read()) for each in others] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert topic.read() == []


def test_a_serialiser_is_told_the_topic_of_its_row(
    kafka: KafkaServer, topic: Topic, job: Job, others: list[Topic]
) -> None:
    sink = job.open(
        kafka_sink(kafka, topic, topic_column="to", value=lambda: lambda row, context: context.topic.encode())
    )
    sink.commit(sink.pre_commit(written(sink, [{"n": 1, "to": others[0].name}]), 1))
    others[0].decode = bytes.decode
    assert others[0].read() == [others[0].name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent-topic", r"topic 'absent-topic' cannot be written: .* create it.*; column 'to' says so: .*'n': 5"),
        ("no topic!", "'no topic!' is not the name of a topic"),
        ("", "'' is not the name of a topic"),
    ],
)
def test_a_row_whose_topic_cannot_be_is_refused_before_the_decision(
    kafka: KafkaServer, topic: Topic, job: Job, name: str, message: str
) -> None:
    sink = job.open(kafka_sink(kafka, topic, topic_column="to"))
    with pytest.raises(InvalidJob, match=message):
        sink.pre_commit(written(sink, [{"n": 5, "to": name}]), 1)


def test_a_topic_that_takes_less_than_the_sinks_own_is_refused(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    with new_topic(kafka, max_message_bytes=20_000) as small:
        sink = job.open(kafka_sink(kafka, topic, topic_column="to"))
        row = [{"n": 5, "to": small.name}]
        with pytest.raises(
            InvalidJob, match=rf"topic '{small.name}' takes rows of 20000 bytes.*'message.max.bytes': 20"
        ):
            sink.pre_commit(written(sink, row), 1)
        frugal = job.open(kafka_sink(kafka, topic, topic_column="to", config={"message.max.bytes": 20_000}), token=2)
        frugal.commit(frugal.pre_commit(written(frugal, row), 1))
        assert [each["n"] for each in small.read()] == [5]


def test_a_row_without_a_key_is_refused_by_the_compacted_topic_that_it_names(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    with new_topic(kafka, cleanup_policy="compact") as compacted:
        sink = job.open(kafka_sink(kafka, topic, key="k", topic_column="to"))
        rows = [{"k": None, "to": topic.name}, {"k": None, "to": compacted.name}]
        with pytest.raises(InvalidJob, match=rf"a row has no key, and topic '{compacted.name}' is compacted"):
            sink.pre_commit(written(sink, rows), 1)
        keyless = job.open(kafka_sink(kafka, topic, topic_column="to"), token=2)
        with pytest.raises(InvalidJob, match=rf"topic '{compacted.name}' is compacted .* takes no row without a key"):
            keyless.pre_commit(written(keyless, rows), 1)


def test_a_topic_column_that_is_no_text_is_refused(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    sink = job.open(kafka_sink(kafka, topic, topic_column="n"))
    with pytest.raises(InvalidJob, match="column 'n' is int64, which is not the name of a topic"):
        sealed(sink, 1, [1])
