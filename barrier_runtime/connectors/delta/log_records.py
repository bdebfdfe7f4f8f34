"""Records for a Delta table's log: creation of an empty table, appends of whole files, compactions."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from barrier_runtime.connectors.delta.committable import DeltaFile
from barrier_runtime.connectors.delta.schema import DeltaType, has_zoneless_times, schema_string

_AS_THEY_ARE = "/=-_.~+:@!$&'(),;"  # not encoded in paths


def log_key(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def create_record(fields: Mapping[str, DeltaType], partition_by: Sequence[str], now_ms: int) -> bytes:
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if has_zoneless_times(fields):
        features = ["timestampNtz"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features, "writerFeatures": features}
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
    """`checkpoints`: application to the last checkpoint in the commit."""
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
        _add(each.file.final, each.partition, each.file.size, each.written_ms, each.statistics, changes=True)
        for each in files
    ]
    return _lines(actions)


class TableFile(NamedTuple):
    """Data file that a compaction removes or adds. `name` is below the table's folder."""

    name: str
    partition: dict[str, str | None]
    size: int
    rows: int
    statistics: str = ""  # of an added file


def compaction_record(
    removed: Sequence[TableFile], added: Sequence[TableFile], target: int, version: int, now_ms: int
) -> bytes:
    """`version`: of the files that were read."""
    operation = {
        "timestamp": now_ms,
        "operation": "OPTIMIZE",
        "operationParameters": {"predicate": "[]", "targetSize": str(target)},
        "readVersion": version,
        "isolationLevel": "SnapshotIsolation",
        "isBlindAppend": False,
        "engineInfo": "barrier-runtime",
    }
    actions: list[dict[str, Any]] = [{"commitInfo": operation}]
    actions += [
        {
            "remove": {
                "path": quote(each.name, safe=_AS_THEY_ARE),
                "deletionTimestamp": now_ms,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": each.partition,
                "size": each.size,
            }
        }
        for each in removed
    ]
    actions += [_add(each.name, each.partition, each.size, now_ms, each.statistics, changes=False) for each in added]
    return _lines(actions)


def _add(
    name: str, partition: Mapping[str, str | None], size: int, written_ms: int, statistics: str, *, changes: bool
) -> dict[str, Any]:
    return {
        "add": {
            "path": quote(name, safe=_AS_THEY_ARE),
            "partitionValues": partition,
            "size": size,
            "modificationTime": written_ms,
            "dataChange": changes,
            "stats": statistics,
        }
    }


def _lines(actions: Sequence[dict[str, Any]]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
