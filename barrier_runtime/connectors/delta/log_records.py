"""Records of a Delta table's log that are written here: the creation of an empty table, and appends of whole files.

The format's protocol has every action as a line of JSON, and a version belongs to whoever creates its object first.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from barrier_runtime.connectors.delta.committable import DeltaFile
from barrier_runtime.connectors.delta.schema import DeltaType, has_zoneless_times, schema_string

_AS_THEY_ARE = "/=-_.~+:@!$&'(),;"  # in paths, which are encoded as those of URLs


def log_key(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def create_record(fields: Mapping[str, DeltaType], partition_by: Sequence[str], now_ms: int) -> bytes:
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if has_zoneless_times(fields):
        features = ["timestampNtz"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(fields),
        "partitionColumns": list(partition_by),
        "configuration": {},
        "createdTime": now_ms,
    }
    operation = {"timestamp": now_ms, "operation": "CREATE TABLE", "operationParameters": {}}
    return _lines([{"commitInfo": operation}, {"protocol": protocol}, {"metaData": metadata}])


def append_record(
    files: Sequence[DeltaFile], checkpoints: Mapping[str, int], partition_by: Sequence[str], now_ms: int
) -> bytes:
    """`checkpoints`: by application, its last one in this commit."""
    parameters = {"mode": "Append", "partitionBy": msgspec.json.encode(list(partition_by)).decode()}
    operation = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": parameters,
        "isBlindAppend": True,
        "engineInfo": "barrier-runtime",
    }
    actions: list[dict[str, Any]] = [{"commitInfo": operation}]
    actions += [{"txn": {"appId": name, "version": checkpoint}} for name, checkpoint in checkpoints.items()]
    actions += [
        {
            "add": {
                "path": quote(each.file.final, safe=_AS_THEY_ARE),
                "partitionValues": each.partition,
                "size": each.file.size,
                "modificationTime": each.written_ms,
                "dataChange": True,
                "stats": each.statistics,
            }
        }
        for each in files
    ]
    return _lines(actions)


def _lines(actions: Sequence[dict[str, Any]]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
