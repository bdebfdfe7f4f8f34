"""Connections to PostgreSQL and their errors. Only this module imports psycopg."""

import contextlib
import hashlib
import select
import socket
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra

SECRETS = ("password", "sslpassword", "oauth_client_secret")
CONNECTION_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
    "application_name": "barrier-runtime",
}
_SETTINGS = {  # settings unknown to the server are omitted
    "default_transaction_isolation": "read committed",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "20s",  # bounds the locks of a stalled process
    "idle_session_timeout": "0",  # a session waits for the next checkpoint
    "transaction_timeout": "0",  # the dialect's watch is the bound
    "tcp_keepalives_idle": "10s",  # a vanished host leaves no session with an advisory lock
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    "client_encoding": "UTF8",
}
_SET = """
select set_config(name, wanted.value, false)
from unnest(%s::text[], %s::text[]) as wanted (name, value) join pg_settings using (name)
"""
_CHUNK = 1 << 18
_OLDEST_SERVER = 120_000
_PASSING = ("08", "40", "53", "57", "58", "55P03", "25P03", "25P02", "25006", "XX000")
_REFUSED = (  # libpq has no code for a failed connection
    *("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry", "not permitted to"),
    *("permission denied for database", "invalid connection option", "certificate", "server does not support SSL"),
)


def load_psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError as error:
        raise missing_extra("PostgreSQL", "postgres", error) from None
    return psycopg


def parameters_of(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Public parameters and secrets."""
    psycopg = load_psycopg()
    unreadable = InvalidJob(
        "the url of PostgreSQL cannot be read (it is not repeated here, as it may hold a password): give "
        "postgresql://user@host:port/database with special characters percent-encoded, or host=… dbname=… user=…"
    )
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.ProgrammingError, TypeError, AttributeError):
        raise unreadable from None
    texts = {name: str(value) for name, value in given.items()}
    ports = texts.get("port", "").split(",")
    if "://" in url and ("@" in texts.get("dbname", "") or any(port and not port.isdigit() for port in ports)):
        raise unreadable  # an unescaped slash in a password moves the end into the database name
    return (
        {name: value for name, value in texts.items() if name not in SECRETS},
        {name: value for name, value in texts.items() if name in SECRETS},
    )


def shown_server(parameters: Mapping[str, str]) -> str:
    if "service" in parameters:
        return f"service {parameters['service']}"
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "the local server").split(",")
    ports = parameters.get("port", "").split(",")
    places = (
        f"{host}:{port}" if port else host for host, port in zip_longest(hosts, ports[: len(hosts)], fillvalue="")
    )
    database = f"/{parameters['dbname']}" if "dbname" in parameters else ""
    user = f" as {parameters['user']}" if "user" in parameters else ""
    return f"{','.join(places)}{database}{user}"


def digest(*parts: str) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


class Copy(NamedTuple):
    """Statement `COPY` as CSV; `into` is a `psycopg.sql.Identifier`."""

    into: Any
    columns: Sequence[str]

    @property
    def statement(self) -> Any:
        sql = load_psycopg().sql
        listed = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        return sql.SQL("copy {} ({}) from stdin (format csv, encoding 'UTF8')").format(self.into, listed)


def exchange(
    connection: Any,
    statements: Sequence[tuple[Any, Mapping[str, Any] | None] | Copy],
    copies: Iterable[Iterable[bytes]] = (),
) -> None:
    """Sends statements as one message, hence one transaction. Each `Copy` takes the next item of `copies`."""
    psycopg = load_psycopg()
    mogrify = psycopg.ClientCursor(connection).mogrify
    texts = [mogrify(each.statement) if isinstance(each, Copy) else mogrify(*each) for each in statements]
    line, encoding = connection.pgconn, connection.info.encoding
    line.send_query(";".join(texts).encode(encoding))
    rows, failed = iter(copies), None
    while (result := _answer(line)) is not None:
        if result.status == psycopg.pq.ExecStatus.COPY_IN:
            for data in next(rows):
                view = memoryview(data)
                for start in range(0, len(view), _CHUNK):
                    while line.put_copy_data(view[start : start + _CHUNK]) == 0:
                        _wait(line, select.POLLIN | select.POLLOUT)
                    _flush(line)
            while line.put_copy_end() == 0:
                _wait(line, select.POLLIN | select.POLLOUT)
        elif result.status == psycopg.pq.ExecStatus.FATAL_ERROR and failed is None:
            failed = result
    if failed is not None:
        raise psycopg.errors.error_from_result(failed, encoding=encoding)


def _answer(line: Any) -> Any:
    _flush(line)
    while line.is_busy():
        _wait(line, select.POLLIN)
    return line.get_result()


def _flush(line: Any) -> None:
    while line.flush():
        _wait(line, select.POLLIN | select.POLLOUT)


def _wait(line: Any, events: int) -> None:
    poll = select.poll()
    poll.register(line.socket, events)
    if any(found & ~select.POLLOUT for _, found in poll.poll()):
        line.consume_input()


def cut(connection: Any) -> None:
    """Shuts down a connection: a thread that waits on it gets an error at once."""
    with contextlib.suppress(Exception), socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line:
        line.shutdown(socket.SHUT_RDWR)


def connect(parameters: Mapping[str, str], statement_timeout_s: float, where: str) -> Any:
    psycopg = load_psycopg()
    connection = psycopg.connect(**CONNECTION_DEFAULTS | dict(parameters), autocommit=True, prepare_threshold=None)
    try:
        if connection.info.server_version < _OLDEST_SERVER:
            raise InvalidJob(
                f"{where}: PostgreSQL {shown_server(parameters)} has version "
                f"{connection.info.server_version // 10_000}: 12 or newer is needed"
            )
        settings = {**_SETTINGS, "statement_timeout": str(int(statement_timeout_s * 1000))}
        connection.execute(_SET, (list(settings), list(settings.values())))
        # "off" lets the server lose confirmed rows.
        connection.execute(
            "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
        )
    except BaseException:
        connection.close()
        raise
    return connection


def is_lost(error: Exception) -> bool:
    psycopg = load_psycopg()
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return lost and (_code(error) or "08").startswith(("08", "57P"))


def _code(error: Exception) -> str | None:
    return getattr(error, "sqlstate", None)


def translated(error: Exception, failure: str) -> BarrierRuntimeError:
    code = _code(error)
    text = " ".join(str(error).split())
    if code is None:
        psycopg = load_psycopg()
        if isinstance(error, psycopg.DataError | psycopg.NotSupportedError | psycopg.ProgrammingError):
            return InvalidJob(  # from psycopg itself, before any request
                f"{failure}: a value cannot be sent: {text}. Filter or correct such rows before the sink"
            )
        if any(reason in text for reason in _REFUSED):
            return InvalidJob(
                f"{failure}: {text}. Correct host, database, user or password (PGPASSWORD, ~/.pgpass or a service "
                "file, on every host that runs slots)"
            )
        return Unavailable(f"{failure}: {text}. It is tried again; start the server if it is down")
    if code.startswith(_PASSING):
        return Unavailable(f"{failure}: {text} (SQLSTATE {code}). It is tried again")
    if code == "42501":
        return InvalidJob(f"{failure}: {text}. Grant this user what it lacks")
    if code.startswith(("22", "23")):
        return InvalidJob(
            f"{failure}: the server refuses a row: {text} (SQLSTATE {code}). Filter or correct such rows before the "
            "sink, or change the table"
        )
    return InvalidJob(f"{failure}: {text} (SQLSTATE {code}). Correct the table or the sink's arguments")
