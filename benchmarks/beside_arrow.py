"""Cost of wide and nested rows beside Arrow's own cost of the same bytes: `python -m benchmarks.beside_arrow [SHAPE …]`

Shapes: `five` columns (110 bytes of JSON), `wide` (200 columns with a text of 1,200 bytes), `nested` (lists of structs
with lists). 2,000 rows are converted at once, files have several MB; reported is the lowest processor time of some
rounds, in which all parts take turns. Arrow reads neither Avro nor Protobuf: there Arrow reads the same rows
as JSON, and a part "alone" is the client's own decoding without columns.
"""

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.source.csv import CsvFiles
from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.connectors.kafka.source.decoders import format_of
from barrier_runtime.connectors.kafka.source.records import RecordConverter, record_columns
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.row_functions import FilterOperator, MapOperator
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from benchmarks import backlog_rows

ROWS = 2_000
_PART = 256 << 10  # bytes that a socket reads at once
_COPIES = 10  # of the rows in a file
_NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        (
            "orders",
            pa.list_(pa.struct([("item", pa.string()), ("prices", pa.list_(pa.float64())), ("n", pa.int64())])),
        ),
        ("tags", pa.list_(pa.string())),
    ]
)
Call: TypeAlias = Callable[[], Any]
Part: TypeAlias = tuple[str, Call, Call | None]  # name, ours, Arrow's


def _rows(shape: str) -> tuple[pa.Schema, list[bytes]]:
    if shape == "five":
        return backlog_rows.SCHEMA, backlog_rows.records(0, ROWS)
    if shape == "wide":
        return backlog_rows.WIDE_SCHEMA, backlog_rows.wide_records(0, ROWS)
    orders = [{"item": f"item {n}", "prices": [n + 0.25, n + 0.5, n + 0.75], "n": n} for n in range(10)]
    records = [{"id": n, "customer": f"customer-{n:06}", "orders": orders, "tags": ["a", "bc"]} for n in range(ROWS)]
    return _NESTED, [json.dumps(record).encode() for record in records]


# ---------------------------------------------------------------- records of Kafka


def _converted(value: Any, schema: pa.Schema, payloads: list[bytes]) -> Call:
    from confluent_kafka import Message

    made = format_of("value", value, schema, "beside")
    converter = RecordConverter(record_columns(None, made, (), "fail", "beside"), "beside")
    messages = [Message(topic="t", partition=0, offset=at, value=payload) for at, payload in enumerate(payloads)]

    def convert() -> None:
        if converter.convert(messages).bad_at is not None:
            raise ValueError("a record was not decoded")

    return convert


def _of_kafka(schema: pa.Schema, payloads: list[bytes]) -> Iterator[Part]:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from fastavro import parse_schema, schemaless_reader

    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    joined = pa.py_buffer(b"\n".join(payloads))
    of_arrow = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def arrow() -> None:
        pa_json.read_json(pa.BufferReader(joined), pa_json.ReadOptions(use_threads=False), of_arrow)

    yield "JSON from Kafka", _converted("json", schema, payloads), arrow
    values = list(map(json.loads, payloads))
    text = json.dumps(_avro(pa.struct(list(schema)), "Row"))
    serialise = AvroSerializer(registry, text)
    avro = [serialise(value, SerializationContext("avro", MessageField.VALUE)) for value in values]
    yield "Avro with a registry", _converted(lambda: AvroDeserializer(registry), schema, avro), arrow
    parsed = parse_schema(json.loads(text))
    yield "… fastavro alone", lambda: [schemaless_reader(io.BytesIO(each[5:]), parsed, None) for each in avro], None
    yield "… Arrow's columns of the dicts alone", lambda: pa.Table.from_pylist(values, schema), None
    row, conf = _message(schema), {"use.deprecated.format": False}
    serialise = ProtobufSerializer(row, registry, conf)
    context = SerializationContext("protobuf", MessageField.VALUE)
    protobuf = [serialise(row(**value), context) for value in values]
    bare = [row(**value).SerializeToString() for value in values]
    yield (
        "Protobuf with a registry",
        _converted(lambda: ProtobufDeserializer(row, conf, registry), schema, protobuf),
        arrow,
    )
    yield "… Protobuf's parser alone", lambda: [row.FromString(each) for each in bare], None


def _avro(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(kind):
        fields = [{"name": field.name, "type": _avro(field.type, f"{name}_{field.name}")} for field in kind]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro(kind.value_type, name)}
    return {"int64": "long", "double": "double", "string": "string"}[str(kind)]


def _message(schema: pa.Schema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

    name = f"beside{len(schema)}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=name, syntax="proto3")
    _add(file.message_type.add(name="Row"), schema, f".{name}.Row")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{name}.Row"))


def _add(message: Any, fields: Any, place: str) -> None:
    for number, field in enumerate(fields, 1):
        repeated = pa.types.is_list(field.type)
        kind = field.type.value_type if repeated else field.type
        made = message.field.add(name=field.name, number=number, label=3 if repeated else 1)
        if pa.types.is_struct(kind):
            made.type, made.type_name = 11, f"{place}.{field.name.title()}"
            _add(message.nested_type.add(name=field.name.title()), kind, made.type_name)
        else:
            made.type = {"int64": 3, "double": 1, "string": 9}[str(kind)]


# ---------------------------------------------------------------- files, exchange, steps, sinks


def _read(files: Files) -> Call:
    (split,) = files.splits(1)

    def read() -> None:
        fetcher = PartFetcher(lambda: None)
        reader: Any = files.reader(split)
        reader.fetch_by(fetcher)
        while not reader.finished:
            reader.poll(65_536, 0)
        reader.close()
        fetcher.close()

    return read


def _of_files(schema: pa.Schema, payloads: list[bytes], rows: pa.Table, folder: Path) -> Iterator[Part]:
    for name in ("jsonl", "csv", "parquet"):
        (folder / name).mkdir()
    path = str(folder / "jsonl" / "a.jsonl")
    Path(path).write_bytes(b"\n".join([*payloads, b""]) * _COPIES)
    rows = pa.concat_tables([rows] * _COPIES)
    of_json = pa_json.ParseOptions(explicit_schema=schema)
    one = pa_json.ReadOptions(use_threads=False)
    yield (
        "JSON lines, read",
        _read(JsonlFiles("s", str(folder / "jsonl"), schema, None)),
        lambda: pa_json.read_json(path, one, of_json),
    )
    flat = rows.select([field.name for field in schema if not pa.types.is_nested(field.type)])
    if len(flat.schema) > 2:
        table = str(folder / "csv" / "a.csv")
        pa_csv.write_csv(flat, table)
        kinds = pa_csv.ConvertOptions(column_types=flat.schema)
        single = pa_csv.ReadOptions(use_threads=False)
        yield (
            "CSV, read",
            _read(CsvFiles("s", str(folder / "csv"), flat.schema, None)),
            lambda: pa_csv.read_csv(table, single, convert_options=kinds),
        )
    stored = str(folder / "parquet" / "a.parquet")
    pq.write_table(rows, stored)
    yield (
        "Parquet, read",
        _read(ParquetFiles("s", str(folder / "parquet"), schema, None)),
        lambda: pq.read_table(stored, use_threads=False),
    )


def _fed(parts: list[bytes]) -> None:
    reader = FrameReader()
    for part in parts:
        reader.feed(part)


def _ipc(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _from_ipc(data: pa.Buffer) -> None:
    with pa.ipc.open_stream(data) as reader:
        reader.read_all()


def _of_steps(rows: pa.Table) -> Iterator[Part]:
    (batch,) = rows.combine_chunks().to_batches()
    halves = [pa.array(range(at, len(batch), 2)) for at in (0, 1)]
    yield (
        "exchange: partition in two by a text",
        lambda: hash_partition(Batch(batch, 1), ("customer",), 2, 128),
        lambda: [batch.take(half) for half in halves],
    )
    data = b"".join(bytes(each) for each in FrameWriter().encode(Batch(batch, 1)))
    received, stream = [data[at : at + _PART] for at in range(0, len(data), _PART)], _ipc(batch)
    yield (
        "exchange: frames written (Arrow: a stream)",
        lambda: FrameWriter().encode(Batch(batch, 1)),
        lambda: _ipc(batch),
    )
    yield "exchange: frames read in parts of 256 KiB", lambda: _fed(received), lambda: _from_ipc(stream)
    emit = Emit(lambda batch: None)
    mapped = MapOperator("map", lambda row: {"id": row["id"] + 1, "customer": row["customer"]})
    kept = FilterOperator("filter", lambda row: row["id"] % 2 == 0)
    two = batch.select(["id", "customer"])
    yield (
        "`map` that reads two columns (Arrow: `to_pylist` and `from_pylist` of the two)",
        lambda: mapped.process(Batch(batch, 1), emit),
        lambda: pa.RecordBatch.from_pylist(two.to_pylist(), two.schema),
    )
    yield (
        "`filter` by a function, half of the rows (Arrow: `to_pylist` of the column, and `filter`)",
        lambda: kept.process(Batch(batch, 1), emit),
        lambda: batch.filter(pa.array([number % 2 == 0 for number in batch.column(0).to_pylist()])),
    )
    yield "sink: Parquet", lambda: encoders.parquet([batch]), lambda: pq.write_table(rows, pa.BufferOutputStream())
    if not any(pa.types.is_nested(kind) for kind in batch.schema.types):
        yield "sink: CSV", lambda: encoders.csv([batch]), lambda: pa_csv.write_csv(batch, pa.BufferOutputStream())
    yield "sink: JSON lines (Arrow: `to_pylist` alone)", lambda: encoders.jsonl([batch]), batch.to_pylist
    yield "sink: an Arrow stream for stored rows", lambda: _stored(batch), lambda: _ipc(batch)


def _stored(batch: pa.RecordBatch) -> None:
    from barrier_runtime.connectors.sink_bases import write_ahead

    write_ahead._encoded([batch])


def _costs_us(parts: list[Part], rounds: int) -> dict[tuple[int, bool], float]:
    """Microseconds per row by part and side (True: ours)."""
    lowest: dict[tuple[int, bool], float] = {}
    for _ in range(rounds):
        for at, (name, ours, arrow) in enumerate(parts):
            for own, call in ((True, ours), (False, arrow)):
                if call is not None:
                    began_s = time.process_time()
                    call()
                    cost_us = (
                        1e6 * (time.process_time() - began_s) / (ROWS * (_COPIES if name.endswith(", read") else 1))
                    )
                    lowest[at, own] = min(cost_us, lowest.get((at, own), cost_us))
    return lowest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_arrow", description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=["five", "wide", "nested"], metavar="SHAPE")
    parser.add_argument("--rounds", type=int, default=7, help="of all parts in turn (%(default)s)")
    arguments = parser.parse_args()
    for shape in arguments.shapes:
        schema, payloads = _rows(shape)
        rows = pa.Table.from_pylist(list(map(json.loads, payloads)), schema).combine_chunks()
        size = rows.nbytes / ROWS
        print(f"\n{shape}: {len(schema)} columns, {len(payloads[0]):,} bytes of JSON, {size:,.0f} in Arrow\n")
        print("| part | us a row | MB/s | Arrow, us a row | times |\n| --- | --- | --- | --- | --- |", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            parts = [
                *_of_kafka(schema, payloads),
                *_of_files(schema, payloads, rows, Path(folder)),
                *_of_steps(rows),
            ]
            costs = _costs_us(parts, arguments.rounds)
        for at, (name, _, arrow) in enumerate(parts):
            ours = costs[at, True]
            beside = f"{costs[at, False]:.2f} | {ours / costs[at, False]:.1f}" if arrow is not None else "|"
            print(f"| {name} | {ours:.2f} | {size / ours:,.0f} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
