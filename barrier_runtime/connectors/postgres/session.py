"""One connection to PostgreSQL: made when it is needed, made again after any error, never waited on for ever.

The only place that imports psycopg and that turns its errors into ours. Whatever fails closes the connection, so that
no half-open transaction, temporary table or setting outlives it; every unit of work can therefore be repeated.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, TypeVar

from barrier_runtime.connectors.sink_bases.kept_connection import KeptConnection
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra

T = TypeVar("T")

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
_SETTINGS = {  # of the server, for our sessions; such as it does not know yet are left out
    "default_transaction_isolation": "read committed",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "20s",  # a stalled process holds no locks for longer: its successor waits
    "idle_session_timeout": "0",  # a session may wait for the next checkpoint as long as that takes
    "transaction_timeout": "0",  # `call_s` is the bound
    "tcp_keepalives_idle": "10s",  # a host that vanished leaves no session that holds an advisory lock
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    "client_encoding": "UTF8",
}
_SET = """
select set_config(name, wanted.value, false)
from unnest(%s::text[], %s::text[]) as wanted (name, value) join pg_settings using (name)
"""
_CALL_S = 600.0
_OLDEST_SERVER = 120_000
_PASSING = ("08", "40", "53", "57", "58", "55P03", "25P03", "25P02", "25006", "XX000")
_REFUSED = (  # of libpq, which gives no code for a connection that was not made
    *("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry", "not permitted to"),
    *("permission denied for database", "invalid connection option", "certificate", "server does not support SSL"),
)


def load_psycopg() -> Any:
    """The library, or how to get it."""
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError as error:
        raise missing_extra("PostgreSQL", "postgres", error) from None
    return psycopg


def parameters_of(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """(what may be shown, secrets) of a `postgresql://` URL or a `key=value` connection string."""
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
        raise unreadable  # an unescaped slash in a password makes its end part of the database's name
    return (
        {name: value for name, value in texts.items() if name not in SECRETS},
        {name: value for name, value in texts.items() if name in SECRETS},
    )


def shown_server(parameters: Mapping[str, str]) -> str:
    """Where it is and as whom, for messages."""
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


class PostgresSession(KeptConnection):
    """Used by one thread at a time; others wait. `parameters` are libpq's, secrets included. `call_s`: after so many
    seconds a unit of work is given up from this side, because the server does not even time out by itself."""

    def __init__(
        self, parameters: Mapping[str, str], statement_timeout_s: float, where: str, call_s: float | None = None
    ) -> None:
        super().__init__()
        self._parameters = {**CONNECTION_DEFAULTS, **parameters}
        self._statement_timeout_ms = int(statement_timeout_s * 1000)
        self._call_s = call_s or max(_CALL_S, 10 * statement_timeout_s)
        self._where = where

    def run(self, what: str, work: Callable[[Any], T], *, autocommit: bool = False) -> T:
        """`work(connection)` in one SQL transaction that is committed when it returns (`autocommit`: each statement by
        itself). `work` may be called twice, on a new connection, when the old one turns out to be lost. `what` says in
        errors what was being done. Raises only our kinds of errors."""
        psycopg = load_psycopg()
        with self._using:
            try:
                return self._attempt(work, autocommit)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if self._was_fresh or not (_code(error) or "08").startswith(("08", "57P")):
                    raise self._told(error, what) from error
            except psycopg.Error as error:
                raise self._told(error, what) from error
            try:
                return self._attempt(work, autocommit)
            except psycopg.Error as error:
                raise self._told(error, what) from error

    def _attempt(self, work: Callable[[Any], T], autocommit: bool) -> T:
        def watched() -> T:
            self._was_fresh = self._connection is None
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            connection.autocommit = autocommit
            watch = threading.Timer(self._call_s, _cut, (connection,))
            watch.daemon = True
            watch.start()
            watching.callback(watch.cancel)
            result = work(connection)
            if not autocommit:
                connection.commit()
            return result

        with contextlib.ExitStack() as watching:  # until a connection that failed has been dropped, too
            return self._kept(watched)

    def _connect(self) -> Any:
        psycopg = load_psycopg()
        connection = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=None)
        try:
            if connection.info.server_version < _OLDEST_SERVER:
                raise InvalidJob(
                    f"{self._where}: PostgreSQL {shown_server(self._parameters)} has version "
                    f"{connection.info.server_version // 10_000}: 12 or newer is needed"
                )
            settings = {**_SETTINGS, "statement_timeout": str(self._statement_timeout_ms)}
            connection.execute(_SET, (list(settings), list(settings.values())))
            # Staged rows must outlive the server: "off" would let it forget what it has confirmed.
            connection.execute(
                "select set_config('synchronous_commit', 'on', false) "
                "where current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _end(self, connection: Any) -> None:
        connection.close()

    def _told(self, error: Exception, what: str) -> BarrierRuntimeError:
        server = shown_server(self._parameters)
        return translated(error, f"{self._where}: {what} failed at PostgreSQL {server}")


@contextlib.contextmanager
def at_once(connection: Any) -> Iterator[None]:
    """Statements whose results are not looked at in it travel together: one wait for all answers, at the end. After one
    that fails the server passes over the others, a COMMIT among them."""
    psycopg = load_psycopg()
    try:
        with connection.pipeline():
            yield
    except psycopg.errors.PipelineAborted as error:  # of a statement behind the one that failed
        raise error.__context__ or error from None


def _cut(connection: Any) -> None:
    """End a connection that somebody else waits on: they get an error at once."""
    with contextlib.suppress(Exception), socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line:
        line.shutdown(socket.SHUT_RDWR)


def _code(error: Exception) -> str | None:
    return getattr(error, "sqlstate", None)


def translated(error: Exception, failure: str) -> BarrierRuntimeError:
    """The kind that tells the caller what to do; `failure` begins the message."""
    code = _code(error)
    text = " ".join(str(error).split())
    if code is None:
        psycopg = load_psycopg()
        if isinstance(error, psycopg.DataError | psycopg.NotSupportedError | psycopg.ProgrammingError):
            return InvalidJob(  # of psycopg itself: the server was not asked, and is not at fault
                f"{failure}: a value cannot be sent: {text}. Filter or correct such rows before the sink"
            )
        if any(reason in text for reason in _REFUSED):
            return InvalidJob(
                f"{failure}: {text}. Correct host, database, user or password (PGPASSWORD, ~/.pgpass or a service "
                "file, on every host that runs slots)"
            )
        return Unavailable(f"{failure}: {text}. It is tried again; start the server if it is down")
    if code == "53200" and "prepared transactions" in text:
        return Unavailable(
            f"{failure}: {text}. It is tried again; raise max_prepared_transactions, or look into "
            "pg_prepared_xacts for transactions that nobody ends"
        )
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
