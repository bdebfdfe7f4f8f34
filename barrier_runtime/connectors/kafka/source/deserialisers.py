"""Deserialises payloads as the client's deserialisers do, with a shorter way for Avro and Protobuf.

Only the first payload with a prefix (magic byte, id of the schema, indices of the message) passes through the whole
deserialiser. Without rules, migrations and the user's functions, later payloads go straight to the deserialiser's last
call, with the same values and errors.
"""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

Read: TypeAlias = Callable[[bytes], Any]

_REGISTRY = "confluent_kafka.schema_registry"
_AVRO = "confluent_kafka.schema_registry.avro"
_PROTOBUF = "confluent_kafka.schema_registry.protobuf"
_PREFIX = 5  # bytes: magic byte 0, id of the schema
_SCHEMA_HEADERS = ("__key_schema_id", "__value_schema_id")
_MOST_KNOWN = 1_000
_USED = (  # private attributes; a client without them gets the long way
    "_registry",
    "_use_latest_version",
    "_use_latest_with_metadata",
    "_use_schema_id",
    "_subject_name_func",
    "_strategy_accepts_client",
    "_subject_name_conf",
    "_schema_id_deserializer",
)
_USED_BY_AVRO = ("_from_dict", "_return_record_name", "_schema", "_reader_schema", "_get_writer_schema")


class Deserialised:
    def __init__(self, deserialise: Callable[..., Any], context: Callable[..., Any], field: Any) -> None:
        self._deserialise = deserialise
        self._context = context
        self._field = field
        self._learn = _learner_of(deserialise)
        self._known: dict[tuple[str, bytes], Read | None] = {}

    @property
    def are_dicts(self) -> bool:
        """Returns whether values of records are dicts, which may be made twice: no function of a user makes them."""
        return isinstance(self._learn, _Avro)

    def value_of(self, payload: bytes, message: Any) -> Any:
        return self._deserialise(payload, self._context(message.topic(), self._field, message.headers()))

    def values(self, payloads: Sequence[bytes], messages: Sequence[Any]) -> Iterator[Any]:
        if self._learn is None or not messages:
            yield from map(self.value_of, payloads, messages)
            return
        learn, known, topic = self._learn, self._known, messages[0].topic()
        prefix_of = learn.prefix
        for payload, message in zip(payloads, messages, strict=True):
            headers = message.headers()
            if headers and any(name in _SCHEMA_HEADERS for name, _ in headers):
                yield self.value_of(payload, message)
                continue
            prefix = prefix_of(payload)
            read = known.get((topic, prefix))
            if read is not None and len(payload) > len(prefix):
                yield read(payload)
                continue
            yield self.value_of(payload, message)
            if (topic, prefix) not in known:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known[topic, prefix] = learn(prefix, self._context(topic, self._field, headers))


class _Avro:
    def __init__(self, deserialiser: Any, module: Any) -> None:
        self._deserialiser = deserialiser
        self._module = module

    @staticmethod
    def prefix(payload: bytes) -> bytes:
        return payload[:_PREFIX]

    def __call__(self, prefix: bytes, context: Any) -> Read | None:
        of = self._deserialiser
        writer_told = _told_schema(of, self._module.AVRO_TYPE, self._module.SchemaId, prefix, context)
        if writer_told is None or _has_rules(writer_told) or _has_rules(of._schema):
            return None
        writer = of._get_parsed_schema(writer_told)
        if writer == "bytes" or (isinstance(writer, dict) and writer.get("type") == "bytes"):
            return None
        reader = of._reader_schema if of._schema is not None and of._reader_schema is not None else writer
        read, names, bytes_io = self._module.schemaless_reader, of._return_record_name, io.BytesIO
        return lambda payload: read(bytes_io(payload[_PREFIX:]), writer, reader, names)


class _Protobuf:
    def __init__(self, deserialiser: Any, module: Any) -> None:
        self._deserialiser = deserialiser
        self._module = module

    @staticmethod
    def prefix(payload: bytes) -> bytes:
        return payload[: _PREFIX + 1 + (payload[_PREFIX] >> 1)] if len(payload) > _PREFIX else payload

    def __call__(self, prefix: bytes, context: Any) -> Read | None:
        of = self._deserialiser
        count = prefix[_PREFIX] if len(prefix) > _PREFIX else 1
        if count & 1 or len(prefix) != _PREFIX + 1 + count // 2 or max(prefix[_PREFIX:]) > 127:
            return None
        if of._registry is None:
            if prefix[0] != 0:
                return None
        else:
            told = _told_schema(of, self._module.PROTOBUF_TYPE, self._module.SchemaId, prefix, context, "serialized")
            if told is None or _has_rules(told):
                return None
        parse, decode_error, raised, begin = (
            of._msg_class.FromString,
            self._module.DecodeError,
            self._module.SerializationError,
            len(prefix),
        )

        def read(payload: bytes) -> Any:
            try:
                return parse(payload[begin:])
            except decode_error as error:
                raise raised(str(error)) from error

        return read


def _learner_of(deserialise: Any) -> _Avro | _Protobuf | None:
    for name, kind, used, learner in (
        (_AVRO, "AvroDeserializer", _USED_BY_AVRO, _Avro),
        (_PROTOBUF, "ProtobufDeserializer", ("_msg_class", "_get_writer_schema"), _Protobuf),
    ):
        module = sys.modules.get(name)
        if module is None or type(deserialise) is not getattr(module, kind, None):
            continue
        inner = sys.modules[type(deserialise).__module__]
        if not all(hasattr(deserialise, each) for each in (*_USED, *used)) or not hasattr(inner, "SchemaId"):
            return None
        plain = ("dual_schema_id_deserializer", "prefix_schema_id_deserializer")
        if deserialise._schema_id_deserializer not in [getattr(sys.modules[_REGISTRY], each, None) for each in plain]:
            return None
        latest = deserialise._use_latest_version or deserialise._use_latest_with_metadata is not None
        if latest or deserialise._use_schema_id is not None or getattr(deserialise, "_from_dict", None) is not None:
            return None
        return learner(deserialise, inner)
    return None


def _told_schema(of: Any, kind: str, make: Any, prefix: bytes, context: Any, *form: str) -> Any:
    """Schema of a prefix, from the cache that the deserialiser has just filled; None: no plain id."""
    if len(prefix) < _PREFIX or prefix[0] != 0:
        return None
    more = (of._registry, of._subject_name_conf) if of._strategy_accepts_client else ()
    subject = of._subject_name_func(context, None, *more)
    if subject is None:
        return None
    schema_id = make(kind)
    schema_id.id = int.from_bytes(prefix[1:_PREFIX], "big")
    return of._get_writer_schema(schema_id, subject, *form)


def _has_rules(schema: Any) -> bool:
    return getattr(schema, "rule_set", None) is not None
