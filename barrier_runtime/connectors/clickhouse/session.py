"""Connection to ClickHouse by the native protocol, and errors. Only this module imports the client."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra

_CONNECT_S = 5.0
_ANSWER_S = 60.0
EXISTS = 57
_PASSES = {
    159,  # timeout
    160,  # too slow
    164,  # temporarily read only
    201,  # quota
    202,  # too many queries at once
    203,  # no free connection
    209,  # socket timeout
    210,  # network
    225,  # no keeper
    236,  # aborted, as by a server that stops
    241,  # memory
    242,  # table is read only
    243,  # no space
    252,  # too many parts
    279,  # no replica answers
    285,  # too few live replicas
    319,  # unknown whether inserted
    394,  # query was cancelled
    473,  # a lock would wait forever
    745,  # overloaded
    999,  # error of Keeper
}
_REFUSED = {192, 193, 194, 195, 497, 516}

T = TypeVar("T")


class TableExists(BarrierRuntimeError):
    """Another process has created the table."""


def address(url: str) -> tuple[str, int, str]:
    form = (
        "ClickHouseSink: the URL is clickhouse://host:port/database, without user, password and query: these come from "
        "CLICKHOUSE_USER and CLICKHOUSE_PASSWORD in every slot"
    )
    try:
        parts = urlsplit(url)
        port = parts.port or 9000
    except ValueError:
        raise InvalidJob(form) from None
    if parts.scheme != "clickhouse" or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise InvalidJob(form)
    return parts.hostname, port, unquote(parts.path.strip("/")) or "default"


class ClickHouseSession:
    """Reconnects after errors. Blocks; for one thread at a time."""

    def __init__(self, url: str, where: str) -> None:
        self._address = address(url)
        self._what = f"{where}: ClickHouse at {url}"
        self._client: Any = None

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self._run(lambda client: client.execute(text, parameters))

    def insert(self, into: str, columns: Sequence[Sequence[Any]]) -> None:
        """Returns when the server has the rows. `into` is INSERT INTO table (…) VALUES."""
        self._run(lambda client: client.execute(into, list(columns), columnar=True))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()

    def _run(self, ask: Callable[[Any], T]) -> T:
        client_library = _imported()
        try:
            if self._client is None:
                self._client = self._connected(client_library)
            return ask(self._client)
        except Exception as error:
            self.close()
            raise self._trouble(error, client_library.errors) from error

    def _connected(self, client_library: Any) -> Any:
        host, port, database = self._address
        client = client_library.Client(
            host,
            port=port,
            database=database,
            user=os.environ.get("CLICKHOUSE_USER", "default"),
            password=os.environ.get("CLICKHOUSE_PASSWORD", ""),
            connect_timeout=_CONNECT_S,
            send_receive_timeout=_ANSWER_S,
            client_name="barrier-runtime",
        )
        client.connection.ping = _is_alive
        return client

    def _trouble(self, error: Exception, errors: Any) -> BarrierRuntimeError:
        code = getattr(error, "code", 0)
        told = str(getattr(error, "message", error)).split("Stack trace:")[0].split("\n")[0].strip()
        if isinstance(error, errors.NetworkError | EOFError | OSError | errors.SocketTimeoutError) or code in _PASSES:
            return Unavailable(f"{self._what} cannot take it now ({told}): it is tried again; is it up?")
        if code == EXISTS:
            return TableExists(told)
        if code in _REFUSED:
            return InvalidJob(
                f"{self._what} refuses the user ({told}): set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD in every slot"
            )
        return InvalidJob(f"{self._what} refuses it ({told}): correct the rows or the table")


def _is_alive() -> bool:
    """Replaces the library's question before each request: a failed request is repeated."""
    return True


def _imported() -> Any:
    try:
        import clickhouse_driver
    except ImportError as error:
        raise missing_extra("ClickHouseSink", "clickhouse", error) from None
    return clickhouse_driver
