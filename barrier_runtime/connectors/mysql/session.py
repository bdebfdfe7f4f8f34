"""Connections to MySQL and MariaDB and their errors. Only this module imports PyMySQL."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra

_PORT = 3306
_CONNECT_S = 10
_SESSION = (
    # Unfit values are refused; a zero in a column with auto_increment stays zero.
    "set session sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', transaction_isolation = 'READ-COMMITTED', "
    "innodb_lock_wait_timeout = 10, wait_timeout = 60"  # bounds the locks of a stalled process
)
# MariaDB before 11.1 has another name for transaction_isolation.
_SESSION_OF_OLDER = _SESSION.replace("transaction_isolation", "tx_isolation")
_UNKNOWN_VARIABLE = 1193
_LOST = {2006, 2013, 2014, 2055, 4031}
_PASSING = {
    *_LOST,
    *(1021, 1040, 1041, 1053, 1077, 1114, 1158, 1159, 1160, 1161, 1203, 1205, 1206, 1213, 1226),
    *(1290, 1792, 1836, 1927, 2002, 2003, 2026, 3024, 4020),
}
_REFUSED = {1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1410, 1698, 2054, 2059, 2061}
_BAD_ROW = {1048, 1062, 1146, 1216, 1264, 1265, 1292, 1364, 1366, 1406, 1452, 1526, 1586, 3140, 3819, 4025}


def load_pymysql() -> Any:
    try:
        import pymysql
        import pymysql.err
    except ImportError as error:
        raise missing_extra("MySQL", "mysql", error) from None
    return pymysql


@dataclass(frozen=True)
class Server:
    """`password` is never shown or stored."""

    host: str
    port: int
    user: str
    database: str
    ssl_ca: str = ""
    password: str = ""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}/{self.database}{f' as {self.user}' if self.user else ''}"

    @property
    def url(self) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        ssl = f"?ssl_ca={quote(self.ssl_ca)}" if self.ssl_ca else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mysql://{user}{host}:{self.port}/{quote(self.database, safe='')}{ssl}"


def server_of(url: str) -> Server:
    """Raises `InvalidJob`, whose message omits the URL: it may hold a password."""
    unreadable = InvalidJob(
        "the url of MySQLSink cannot be read (it is not repeated here, as it may hold a password): give "
        "mysql://user@host:port/database, with special characters percent-encoded, and ?ssl_ca=/path for TLS"
    )
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
        query = parse_qs(parts.query, keep_blank_values=True)
    except (ValueError, AttributeError, TypeError):
        raise unreadable from None
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not database or "/" in database:
        raise unreadable
    if set(query) - {"ssl_ca"}:
        raise InvalidJob(f"the url of MySQLSink has unknown settings {sorted(set(query) - {'ssl_ca'})}: only ssl_ca=")
    return Server(
        parts.hostname,
        port,
        unquote(parts.username or ""),
        database,
        query.get("ssl_ca", [""])[-1],
        unquote(parts.password or ""),
    )


@cache
def _classes() -> tuple[Any, Any]:
    """Classes of connections and cursors that send the last INSERT together with the COMMIT.

    The server skips a COMMIT after a failed statement of the same message.
    """
    pymysql = load_pymysql()
    connection_class: Any = pymysql.connections.Connection
    cursor_class: Any = pymysql.cursors.Cursor

    class MySQLConnection(connection_class):  # type: ignore[misc]
        has_committed = False  # since the last `commit`

        def commit(self) -> None:
            committed, self.has_committed = self.has_committed, False
            if not committed:
                super().commit()

    class MySQLCursor(cursor_class):  # type: ignore[misc]
        _keeps = False
        _last: Any = None

        def keep_last(self) -> None:
            """Delays each further statement until the next is known."""
            self._keeps = True

        def execute(self, query: Any, args: Any = None) -> Any:
            if not self._keeps:
                return super().execute(query, args)
            before, self._last = self._last, query if args is None else self.mogrify(query, args)
            return 0 if before is None else super().execute(before)

        def send_and_commit(self) -> None:
            last, self._last, self._keeps = self._last, None, False
            if last is None:
                return
            super().execute(last + ("; commit" if isinstance(last, str) else b"; commit"))
            while self.nextset():  # raises the error of the COMMIT
                pass
            self.connection.has_committed = True

    return MySQLConnection, MySQLCursor


def connect(server: Server, call_s: float) -> Any:
    """Connection in which the first statement begins a transaction."""
    pymysql, (connection_class, cursor_class) = load_pymysql(), _classes()
    defaults = Path("~/.my.cnf").expanduser()
    connection = connection_class(
        host=server.host,
        port=server.port,
        user=server.user or None,
        password=server.password or os.environ.get("MYSQL_PWD", ""),
        database=server.database,
        charset="utf8mb4",
        connect_timeout=_CONNECT_S,
        read_timeout=call_s,
        write_timeout=call_s,
        ssl={"ca": server.ssl_ca, "check_hostname": True} if server.ssl_ca else None,
        read_default_file=str(defaults) if defaults.is_file() else None,
        program_name="barrier-runtime",
        autocommit=False,
        cursorclass=cursor_class,
        client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS,  # for `send_and_commit`
    )
    try:
        with connection.cursor() as cursor:
            try:
                cursor.execute(_SESSION)
            except pymysql.err.MySQLError as error:
                if _code(error) != _UNKNOWN_VARIABLE:
                    raise
                cursor.execute(_SESSION_OF_OLDER)
    except BaseException:
        connection.close()
        raise
    return connection


def is_lost(error: Exception) -> bool:
    return isinstance(error, load_pymysql().err.InterfaceError) or _code(error) in _LOST


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def translated(error: Exception, failure: str) -> BarrierRuntimeError:
    if isinstance(error, RuntimeError):  # an authentication method needs another package
        return InvalidJob(
            f"{failure}: {error}. Install it (pip install 'pymysql[rsa]') on every machine that runs the job, or give "
            "the user another way to log in"
        )
    code = _code(error)
    text = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
    said = f"{failure}: {text}" + (f" (error {code})" if code else "")
    errors = load_pymysql().err
    if code in _PASSING or (not code and isinstance(error, errors.InterfaceError | errors.InternalError)):
        return Unavailable(f"{said}. It is tried again; start the server if it is down")
    if code in _REFUSED:
        return InvalidJob(
            f"{said}. Correct host, database, user or password (MYSQL_PWD or ~/.my.cnf, on every host that runs "
            "slots), or grant this user what it lacks"
        )
    if code in _BAD_ROW:
        return InvalidJob(
            f"{said}: the server refuses a row. Filter or correct such rows before the sink, or change the table"
        )
    return InvalidJob(f"{said}. Correct the table or the sink's arguments")
