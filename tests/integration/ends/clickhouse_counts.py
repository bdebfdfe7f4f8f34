"""The table of ClickHouse that a kill test writes, a row per key, and the table's reader."""

from clickhouse_driver import Client

TABLE = "counts"


def make_table(port: int) -> None:
    with _client(port) as database:
        database.execute(
            f"CREATE TABLE {TABLE} (value Int64, key Int64, n Int64, _version UInt64) "
            "ENGINE = ReplacingMergeTree(_version) ORDER BY key"
        )


def look(port: int) -> dict[int, tuple[int, int]]:
    with _client(port) as database:
        rows = database.execute(f"SELECT key, value, n FROM {TABLE} FINAL")
    return {key: (value, n) for key, value, n in rows}


def fences(port: int) -> int:
    """Number of tables by which generations claim versions: only tables of a single generation are left."""
    with _client(port, answer_s=120) as database:
        ((number,),) = database.execute(
            "SELECT count() FROM system.tables WHERE startsWith(name, 'barrier_runtime_fence_')"
        )
    return int(number)


def _client(port: int, answer_s: float = 15) -> Client:
    return Client("127.0.0.1", port=port, connect_timeout=answer_s, send_receive_timeout=answer_s)
