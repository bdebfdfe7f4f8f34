"""Errors of each connector's library: errors that end a job at once, and errors that are retried.

Each connector of the registry has an entry (`tests/house/test_connectors.py`). `translate` is the connector's own
doorway, or None where the library's errors reach the engine unchanged.
"""

import errno
import io
import socket
import sqlite3
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.exceptions
import clickhouse_driver.errors as clickhouse
import deltalake.exceptions as delta
import obstore.exceptions as clouds
import pika.exceptions as amqp
import psycopg
import pyarrow as pa
import pyiceberg.exceptions as iceberg
import pymysql.err as mysql
import redis
import sqlalchemy.exc
from confluent_kafka import KafkaError, KafkaException

from barrier_runtime.connectors.clickhouse.session import ClickHouseSession
from barrier_runtime.connectors.delta.library import trouble as delta_trouble
from barrier_runtime.connectors.iceberg.table import trouble as iceberg_trouble
from barrier_runtime.connectors.kafka.sink.client import KafkaCluster
from barrier_runtime.connectors.kafka.source.client import what_to_do
from barrier_runtime.connectors.kinesis.client import KinesisClient
from barrier_runtime.connectors.mysql.session import translated as mysql_translated
from barrier_runtime.connectors.postgres.session import translated as postgres_translated
from barrier_runtime.connectors.rabbitmq.broker import Broker, explained
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from barrier_runtime.connectors.sqlite.sink import SqliteDialect
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.clouds import CloudStore
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.s3.by_boto3 import S3Store

WHERE = "sink 'orders'"


@dataclass(frozen=True)
class LibraryErrors:
    """Errors of a library. `names`: texts of which each message contains one, so that a user knows the connector and
    the place.
    """

    translate: Callable[[Exception], Exception] | None
    mended: tuple[Exception, ...]
    passing: tuple[Exception, ...]
    names: tuple[str, ...] = (WHERE,)


def _of_kafka(error: Exception) -> Exception:
    of_sink = KafkaCluster("broker:9092", {}, WHERE).meaning(error, "write to")
    of_source = what_to_do(error.args[0], WHERE)
    assert isinstance(of_sink, InvalidJob) == isinstance(of_source, InvalidJob), error
    return of_sink


def _kafka(name: str) -> KafkaException:
    return KafkaException(KafkaError(getattr(KafkaError, name)))


def _aws(code: str, status: int) -> botocore.exceptions.ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "PutObject")


def _of_redis(error: Exception) -> Exception:
    sink = RedisUpsertSink("redis://host:6379/0", key=["id"], deterministic=True)
    sink._where = WHERE
    try:
        with sink._trouble():
            raise error
    except Exception as found:
        return found


def _of_clickhouse(error: Exception) -> Exception:
    return ClickHouseSession("clickhouse://host:9000/db", WHERE)._trouble(error, clickhouse)


def _of_clouds(error: Exception) -> Exception:
    store = CloudStore.__new__(CloudStore)
    store._cloud, store._place, store._prefix, store._errors = "gs", "bucket", "", clouds
    return store._trouble("put", "part-1", error)


def _of_s3(error: Exception) -> Exception:
    store = S3Store.__new__(S3Store)
    store._bucket, store._prefix = "bucket", ""
    return store._trouble("put", "part-1", error)


def _of_files(error: Exception) -> Exception:
    """Errors of files are translated by the store that raises them; pyarrow's errors reach the engine unchanged."""
    if isinstance(error, clouds.BaseError):
        return _of_clouds(error)
    if isinstance(error, botocore.exceptions.ClientError | botocore.exceptions.BotoCoreError):
        return _of_s3(error)
    if isinstance(error, OSError) and error.errno is not None:
        return LocalStore.__new__(LocalStore)._trouble("put", "part-1", error, Path("/data"))
    return error


def _os(number: int) -> OSError:
    return OSError(number, "as the system says")


LIBRARY_ERRORS = {
    "files": LibraryErrors(
        _of_files,
        (
            *map(_os, (errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR)),
            *(_aws("AccessDenied", 403), _aws("NoSuchBucket", 404), _aws("InvalidAccessKeyId", 403)),
            *(_aws("SignatureDoesNotMatch", 403), botocore.exceptions.NoCredentialsError()),
            botocore.exceptions.SSLError(
                endpoint_url="https://s3", error="CERTIFICATE_VERIFY_FAILED: certificate verify failed"
            ),
            *(clouds.PermissionDeniedError("no"), clouds.UnauthenticatedError("who?"), clouds.NotFoundError("bucket")),
            *(pa.ArrowInvalid("Invalid UTF8 payload"), pa.ArrowNotImplementedError("no such cast")),
        ),
        (
            *map(_os, (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)),
            *(_aws("SlowDown", 503), _aws("InternalError", 500), clouds.GenericError("timeout")),
            botocore.exceptions.EndpointConnectionError(endpoint_url="https://s3"),
        ),
        ("/data", "bucket", WHERE),
    ),
    "delta": LibraryErrors(
        lambda error: delta_trouble(error, f"{WHERE}: the table cannot be changed"),
        (
            *(delta.DeltaProtocolError("writer feature"), delta.SchemaMismatchError("column x")),
            OSError("Generic S3 error: Client error with status 403 Forbidden: AccessDenied"),
            *(
                OSError("Unable to open file: File name too long (os error 36)"),
                OSError("Permission denied (os error 13)"),
            ),
            *(pa.ArrowInvalid("out of bounds"), pa.ArrowKeyError("x"), ValueError("no such option"), KeyError("x")),
        ),
        (
            *(delta.CommitFailedError("a concurrent writer"), delta.DeltaError("a timeout")),
            *(OSError("connection reset by peer"), OSError("No space left on device (os error 28)"), TimeoutError()),
        ),
    ),
    "iceberg": LibraryErrors(
        lambda error: iceberg_trouble(error, f"{WHERE}: files cannot be added"),
        (
            *(iceberg.ForbiddenError("no"), iceberg.UnauthorizedError("no"), iceberg.OAuthError("no")),
            *(
                iceberg.NotInstalledError("pyiceberg_core needs to be installed"),
                iceberg.ValidationException("conflict"),
            ),
            *(iceberg.NoSuchNamespaceError("ns"), iceberg.BadRequestError("no"), ModuleNotFoundError("pyiceberg_core")),
            *(pa.ArrowTypeError("x"), NotImplementedError("a transform"), ValueError("x")),
            OSError("When uploading: AWS Error ACCESS_DENIED during PutObject operation"),
            sqlalchemy.exc.OperationalError("insert", {}, Exception("attempt to write a readonly database")),
        ),
        (
            *(iceberg.ServiceUnavailableError("no"), iceberg.ServerError("500"), iceberg.TooManyRequestsError("429")),
            *(
                iceberg.CommitFailedException("stale"),
                iceberg.CommitStateUnknownException("504"),
                ConnectionError("reset"),
            ),
            sqlalchemy.exc.OperationalError("select", {}, Exception("database is locked")),
        ),
    ),
    "postgres": LibraryErrors(
        lambda error: postgres_translated(error, f"{WHERE}: writing failed at PostgreSQL host/db"),
        (
            *(
                psycopg.errors.UndefinedTable("x"),
                psycopg.errors.UndefinedColumn("x"),
                psycopg.errors.UniqueViolation("x"),
            ),
            *(psycopg.errors.NotNullViolation("x"), psycopg.errors.StringDataRightTruncation("x")),
            *(psycopg.errors.NumericValueOutOfRange("x"), psycopg.errors.InsufficientPrivilege("x")),
            *(psycopg.errors.InvalidPassword("x"), psycopg.errors.InvalidCatalogName("x")),
            psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
            psycopg.ProgrammingError("cannot adapt type 'X'"),
            psycopg.OperationalError("password authentication failed for user 'ann'"),
        ),
        (
            *(psycopg.OperationalError("connection refused"), psycopg.InterfaceError("the connection is closed")),
            *(psycopg.errors.AdminShutdown("x"), psycopg.errors.DeadlockDetected("x"), psycopg.errors.DiskFull("x")),
            *(psycopg.errors.TooManyConnections("x"), psycopg.errors.SerializationFailure("x")),
        ),
    ),
    "mysql": LibraryErrors(
        lambda error: mysql_translated(error, f"{WHERE}: writing failed at MySQL host/db"),
        (
            *(
                mysql.DataError(1406, "Data too long"),
                mysql.DataError(1264, "Out of range"),
                mysql.DataError(1366, "x"),
            ),
            *(mysql.ProgrammingError(1146, "no table"), mysql.OperationalError(1045, "Access denied")),
            *(mysql.OperationalError(1054, "Unknown column"), mysql.IntegrityError(1062, "Duplicate entry")),
            *(mysql.OperationalError(1142, "INSERT command denied"), mysql.OperationalError(1153, "packet too large")),
        ),
        (
            *(mysql.OperationalError(2006, "gone away"), mysql.OperationalError(2003, "refused")),
            *(mysql.OperationalError(1205, "lock wait"), mysql.OperationalError(1213, "deadlock")),
            *(mysql.InternalError("Packet sequence number wrong"), mysql.InterfaceError("")),
            *(mysql.OperationalError(1290, "read only"), mysql.OperationalError(1040, "too many connections")),
        ),
    ),
    "sqlite": LibraryErrors(
        lambda error: SqliteDialect("rows.db").translated(error, f"{WHERE}: writing failed at SQLite rows.db"),
        (
            sqlite3.IntegrityError("UNIQUE constraint failed: t.n"),
            sqlite3.OperationalError("no such table: t"),
            sqlite3.OperationalError("attempt to write a readonly database"),
            sqlite3.DatabaseError("file is not a database"),
        ),
        (
            sqlite3.OperationalError("database is locked"),
            sqlite3.OperationalError("disk I/O error"),
            sqlite3.OperationalError("database or disk is full"),
            sqlite3.OperationalError("unable to open database file"),
        ),
    ),
    "kafka": LibraryErrors(
        _of_kafka,
        tuple(
            map(
                _kafka,
                (
                    *("TOPIC_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "MSG_SIZE_TOO_LARGE"),
                    *("UNKNOWN_TOPIC_OR_PART", "INVALID_RECORD", "_INVALID_ARG", "POLICY_VIOLATION", "TOPIC_EXCEPTION"),
                    *("CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_VERSION"),
                ),
            )
        ),
        tuple(
            map(
                _kafka,
                (
                    *("_ALL_BROKERS_DOWN", "_TRANSPORT", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS"),
                    *("NOT_LEADER_FOR_PARTITION", "COORDINATOR_NOT_AVAILABLE", "THROTTLING_QUOTA_EXCEEDED"),
                ),
            )
        ),
    ),
    "kinesis": LibraryErrors(
        KinesisClient("stream", None, None, WHERE)._trouble,
        (
            *(
                _aws("AccessDeniedException", 400),
                _aws("ResourceNotFoundException", 400),
                _aws("ExpiredTokenException", 400),
            ),
            *(
                _aws("KMSDisabledException", 400),
                _aws("ValidationException", 400),
                _aws("InvalidArgumentException", 400),
            ),
            *(botocore.exceptions.NoCredentialsError(), botocore.exceptions.NoRegionError(), KeyError("Records")),
        ),
        (
            *(_aws("ProvisionedThroughputExceededException", 400), _aws("InternalFailure", 500)),
            botocore.exceptions.EndpointConnectionError(endpoint_url="https://kinesis"),
        ),
    ),
    "rabbitmq": LibraryErrors(
        lambda error: explained(error, Broker("amqp://host:5672/", "ann"), "orders", WHERE),
        (
            *(amqp.ProbableAuthenticationError("x"), amqp.ProbableAccessDeniedError("x")),
            *(amqp.ChannelClosedByBroker(403, "ACCESS_REFUSED"), amqp.ChannelClosedByBroker(404, "NOT_FOUND")),
            *(
                amqp.ConnectionClosedByBroker(530, "no vhost"),
                UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
                KeyError("x"),
            ),
        ),
        (
            *(
                amqp.AMQPConnectionError("refused"),
                amqp.StreamLostError("reset"),
                ConnectionResetError(errno.ECONNRESET, "x"),
            ),
            *(amqp.AMQPHeartbeatTimeout("x"), amqp.ConnectionClosedByBroker(320, "shutdown")),
        ),
    ),
    "redis": LibraryErrors(
        _of_redis,
        (
            *(redis.AuthenticationError("x"), redis.exceptions.NoPermissionError("x"), redis.exceptions.DataError("x")),
            *(redis.exceptions.AuthorizationError("x"), redis.ResponseError("WRONGTYPE Operation against a key")),
        ),
        (
            *(redis.ConnectionError("refused"), redis.TimeoutError("x"), redis.BusyLoadingError("x")),
            *(redis.ReadOnlyError("You can't write"), redis.exceptions.OutOfMemoryError("command not allowed")),
            *(
                redis.ResponseError("Command # 1 (SET a 1) of pipeline caused error: OOM x"),
                redis.ResponseError("BUSY x"),
            ),
            redis.exceptions.MasterDownError("x"),
        ),
    ),
    "clickhouse": LibraryErrors(
        _of_clickhouse,
        (
            *(clickhouse.ServerException("no table", 60), clickhouse.ServerException("no column", 16)),
            *(
                clickhouse.ServerException("wrong password", 516),
                clickhouse.ServerException("not enough privileges", 497),
            ),
            *(clickhouse.ServerException("type mismatch", 53), clickhouse.TypeMismatchError("x"), ValueError("x")),
        ),
        (
            *(clickhouse.NetworkError("refused"), clickhouse.SocketTimeoutError("x"), EOFError("x")),
            *(clickhouse.ServerException("too many parts", 252), clickhouse.ServerException("read only", 242)),
            *(clickhouse.ServerException("memory", 241), clickhouse.ServerException("keeper", 999)),
        ),
    ),
    "memory": LibraryErrors(
        None,
        (pa.ArrowInvalid("x"), TypeError("x"), KeyError("x"), ModuleNotFoundError("pandas")),
        (ConnectionError("x"), RuntimeError()),
    ),
}

# Errors of encoders, converters and file systems, for every connector.
RAW_MENDED: tuple[Exception, ...] = (
    *(pa.ArrowInvalid("Invalid UTF8 payload"), pa.ArrowTypeError("not a timestamp"), pa.ArrowKeyError("no field")),
    *(pa.ArrowNotImplementedError("no kernel"), pa.ArrowIndexError("x"), pa.ArrowSerializationError("x")),
    *(
        pa.ArrowCapacityError("array too large"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ModuleNotFoundError("No module named 'snappy'"),
        ImportError("libx.so"),
    ),
    UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates not allowed"),
    *(
        OverflowError("int too large"),
        KeyError("price"),
        TypeError("x"),
        ValueError("x"),
        LookupError("unknown encoding"),
    ),
    *map(_os, (errno.ENAMETOOLONG, errno.EACCES, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)),
)
RAW_PASSING: tuple[Exception, ...] = (
    *map(_os, (errno.ENOSPC, errno.EIO, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EMFILE)),
    *(TimeoutError(), ConnectionResetError(), EOFError(), MemoryError(), pa.ArrowMemoryError("x"), RuntimeError("x")),
    io.UnsupportedOperation("x"),
    ssl.SSLError(1, "record layer failure"),
    ssl.SSLEOFError(8, "EOF in violation"),
    socket.gaierror(socket.EAI_AGAIN, "try again"),
    socket.gaierror(errno.EPERM, "address family for hostname not supported"),  # macOS has different numbers
    socket.herror(1, "unknown host"),
)
