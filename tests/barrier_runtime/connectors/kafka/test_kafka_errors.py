"""Meaning of Kafka's errors, equal for source and sink; replaced clients, and their logs."""

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from barrier_runtime.connectors.kafka.clients import Asker, OncePerMinute, raised
from barrier_runtime.connectors.kafka.errors import REFUSED_S, Refusals
from barrier_runtime.connectors.kafka.sink.client import KafkaCluster
from barrier_runtime.connectors.kafka.sink.topic_limits import read_limits
from barrier_runtime.connectors.kafka.source.client import LogThrottle, is_transient, what_to_do
from barrier_runtime.state.errors import InvalidJob, Unavailable

# Error of librdkafka 2.16 while a broker with a TLS listener restarts.
CUT = KafkaError(
    KafkaError._SSL,
    "ssl://10.0.0.1:9093/1: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener? "
    "(after 3ms in state SSL_HANDSHAKE)",
)
WRONG = KafkaError(
    KafkaError._SSL,
    "ssl://10.0.0.1:9093/1: SSL handshake failed: ssl/statem/statem_clnt.c:1889: certificate verify failed",
)
DOWN = KafkaError(
    KafkaError._TRANSPORT,
    "ssl://10.0.0.1:9093/1: Connect to ipv4#10.0.0.1:9093 failed: Connection refused (after 0ms in state CONNECT)",
)
ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))


# ---------------------------------------------------------------- one table


def test_every_error_of_the_table_is_one_of_the_client_library() -> None:
    from barrier_runtime.connectors.kafka.errors import _KINDS

    assert [name for name in _KINDS if not hasattr(KafkaError, name)] == []
    assert all(KafkaError(getattr(KafkaError, name)).name() == name for name in _KINDS)


@pytest.mark.parametrize("error", [CUT, DOWN, ALL_DOWN, KafkaError(KafkaError.FENCED_LEADER_EPOCH)])
def test_source_and_sink_agree_that_what_a_restart_brings_passes(error: KafkaError) -> None:
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    assert is_transient(error)
    assert isinstance(sink.meaning(KafkaException(error), "reach"), Unavailable)


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_source_and_sink_agree_on_what_a_person_must_do(code: int) -> None:
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    assert isinstance(what_to_do(KafkaError(code), "source"), InvalidJob)
    assert isinstance(sink.meaning(KafkaException(KafkaError(code)), "reach"), InvalidJob)


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH])
def test_writer_fenced_by_another_of_the_same_name_is_not_sent_to_the_brokers(code: int) -> None:
    meaning = KafkaCluster("10.0.0.1:9093", {}, "sink").meaning(KafkaException(KafkaError(code)), "write rows to")
    assert isinstance(meaning, Unavailable), "a zombie stops by the marker alone"
    assert "another program writes by the name of this job and sink, or one did" in str(meaning)
    assert "are the brokers up" not in str(meaning)


class Silent:
    """Admin client that never answers, which librdkafka's client does occasionally."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)}, brokers={1: None})

    def describe_configs(self, asked: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return {asked[0]: Future()}


def test_a_sink_whose_question_for_settings_never_ends_is_told_so_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.sink.client.ANSWER_S", 0.01)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.clients._OVERDUE_S", 0.01)
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    monkeypatch.setattr(sink, "admin", Silent)
    with pytest.raises(
        Unavailable, match=r"read the settings of topic 'orders' of Kafka at .*: its client does not say"
    ):
        read_limits(sink, "orders", {})


LED_BY_NONE = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


@pytest.mark.parametrize(("error", "brokers"), [(None, {}), (LED_BY_NONE, {1: None}), (LED_BY_NONE, {})])
def test_a_sink_waits_for_brokers_that_serve_its_topic(
    error: KafkaError | None, brokers: dict[int, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that do not reach their controller name no broker, or no leader."""
    known = SimpleNamespace(topics={"orders": SimpleNamespace(error=error)}, brokers=brokers)
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    monkeypatch.setattr(sink, "admin", lambda: SimpleNamespace(list_topics=lambda topic, timeout: known))
    with pytest.raises(Unavailable, match=r"no broker of Kafka at .* serves topic 'orders' now: it is tried again"):
        read_limits(sink, "orders", {})


# ---------------------------------------------------------------- handshakes


def test_handshake_cut_by_a_restart_is_no_refusal_however_long_the_broker_is_away() -> None:
    refusals = Refusals()
    for second in range(0, 600, 30):
        refusals.heard(CUT, second)
        refusals.heard(ALL_DOWN, second)
        refusals.heard(DOWN, second + 1)
        assert refusals.lasting == ""


def test_a_refusal_that_lasts_is_told_with_its_reason_and_ends_with_an_answer() -> None:
    refusals = Refusals()
    refusals.heard(WRONG, 100)
    refusals.heard(ALL_DOWN, 100)
    assert (refusals.present, refusals.lasting) == (True, "")
    refusals.heard(WRONG, 100 + REFUSED_S)
    assert "certificate verify failed" in refusals.lasting
    refusals.answered()
    refusals.heard(WRONG, 101 + REFUSED_S)
    assert (refusals.present, refusals.lasting) == (True, "")


def test_a_sink_that_met_a_cut_handshake_once_goes_on_trying() -> None:
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    sink._hear(CUT)
    sink._hear(ALL_DOWN)
    for _ in range(3):
        assert isinstance(sink.meaning(TIMED_OUT, "commit a transaction at"), Unavailable)


def test_a_wrong_certificate_ends_sink_and_source_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.errors.REFUSED_S", 0.0)
    sink = KafkaCluster("10.0.0.1:9093", {}, "sink")
    sink._hear(WRONG)
    meaning = sink.meaning(TIMED_OUT, "reach")
    assert isinstance(meaning, InvalidJob)
    assert "certificate verify failed" in str(meaning)
    assert "ssl.*" in str(meaning)
    assert isinstance(KafkaCluster("10.0.0.1:9093", {}, "sink").meaning(TIMED_OUT, "reach"), Unavailable)
    with pytest.raises(InvalidJob, match="certificate verify failed"):
        LogThrottle("source").on_error(WRONG)


# ---------------------------------------------------------------- clients


class Client:
    """Numbered client that records whether it was closed."""

    def __init__(self, made: list["Client"]) -> None:
        self.number = len(made)
        self.closed = False
        made.append(self)

    def close(self) -> None:
        self.closed = True


def ask(asker: Asker, error: int | None = None) -> int:
    def question(client: Client) -> int:
        if error is not None:
            raise KafkaException(KafkaError(error))
        return client.number

    return asker.ask(question)


def test_a_client_that_answers_with_an_error_of_leadership_is_replaced() -> None:
    """librdkafka's admin client does so forever after a broker's restart."""
    made: list[Client] = []
    asker = Asker(lambda: Client(made))
    assert (ask(asker), ask(asker)) == (0, 0)
    for number, code in enumerate((KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION), start=1):
        with pytest.raises(KafkaException):
            ask(asker, code)
        assert ask(asker) == number
    with pytest.raises(KafkaException):
        ask(asker, KafkaError._TIMED_OUT)
    assert ask(asker) == 2


def test_a_client_whose_questions_are_all_in_vain_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.clients._IN_VAIN_S", 0.0)
    made: list[Client] = []
    asker = Asker(lambda: Client(made))
    with pytest.raises(KafkaException):
        ask(asker, KafkaError._TIMED_OUT)
    assert ask(asker) == 1


def test_an_error_inside_an_answer_is_raised() -> None:
    place: Any = TopicPartition("topic", 0, 7)
    assert raised([place]) == [place]


def test_client_messages_of_a_server_are_logged_once_a_minute_with_a_count() -> None:
    said: list[str] = []
    now = [0.0]

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log = logging.Logger("clients")
    log.addHandler(Kept())
    log.addFilter(OncePerMinute(lambda: now[0]))
    for second in range(120):
        now[0] = float(second)
        for server in ("10.0.0.1:9092", "10.0.0.2:9092"):
            for what in ("bootstrap", "1"):
                text = f"[thrd:{server}/{what}]: {server}/{what}: Connect failed: Connection refused (after {second}ms)"
                log.error("%s [%s] %s", "FAIL", f"rdkafka#consumer-{second}", text)
    assert len(said) == 4
    assert said[2].endswith("(119 more since)")
