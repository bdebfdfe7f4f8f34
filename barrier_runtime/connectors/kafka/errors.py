"""Kinds of Kafka's errors. Pure.

Only the duration of a refusal shows whether a broker starts or a setting is wrong (`Refusals`).
"""

import enum


class Kind(enum.Enum):
    LEADERSHIP = "leadership"  # waiting may not help a client
    PASSING = "passing"
    REFUSED = "refused"  # an error that lasts needs an operator
    MISSING = "missing"
    FOR_A_PERSON = "for a person"
    UNKNOWN = "unknown"


_NAMES = {
    Kind.LEADERSHIP: (
        *("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"),
        *("REPLICA_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "STALE_BROKER_EPOCH"),
    ),
    Kind.PASSING: (
        *("_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE"),
        *("_WAIT_COORD", "_WAIT_CACHE", "_IN_PROGRESS", "_RETRY", "_DESTROY_BROKER"),
        *("REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "NOT_CONTROLLER", "REBOOTSTRAP_REQUIRED"),
        *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
        *("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "THROTTLING_QUOTA_EXCEEDED"),
    ),
    Kind.REFUSED: (
        *("_SSL", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE"),
    ),
    Kind.MISSING: ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"),
    Kind.FOR_A_PERSON: (
        *("UNSUPPORTED_COMPRESSION_TYPE", "_INVALID_ARG"),
        *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
        *("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT", "INVALID_RECORD"),
        *("INVALID_TIMESTAMP", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"),
        *("TOPIC_EXCEPTION", "POLICY_VIOLATION", "INVALID_CONFIG", "UNSUPPORTED_VERSION", "SECURITY_DISABLED"),
        *("UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_REQUIRED_ACKS", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED"),
    ),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
CURABLE = frozenset({Kind.LEADERSHIP, Kind.PASSING, Kind.REFUSED})
COORDINATOR = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD"})
SILENCE = frozenset({"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT"})
FENCED = frozenset({"_FENCED", "_FATAL", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})  # of a producer, by a newer one
REFUSED_S = 25.0  # the client repeats an error only every 30 seconds


def kind_of(error: object) -> Kind:
    name = error if isinstance(error, str) else error.name()  # type: ignore[attr-defined]
    return _KINDS.get(name, Kind.UNKNOWN)


class Refusals:
    """Refusals of connections by brokers.
    `lasting`: the last refusal, once a broker has refused for `REFUSED_S` without another error of that broker or an
    answer of any broker in between.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self.lasting = ""

    def heard(self, error: object, now_s: float) -> None:
        text = error.str()  # type: ignore[attr-defined]
        broker = text.partition(": ")[0]
        kind = kind_of(error)
        if kind is Kind.REFUSED:
            if now_s - self._since_s.setdefault(broker, now_s) >= REFUSED_S:
                self.lasting = text
        elif broker in self._since_s:
            self.answered()

    @property
    def present(self) -> bool:
        return bool(self._since_s)

    def answered(self) -> None:
        self._since_s.clear()
        self.lasting = ""
