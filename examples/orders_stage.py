"""The example `orders_to_iceberg` between real servers, with the verdict of SQL on the database.

The database has the orders, the customers and, only for the verdict, every version of each customer. The database keeps
the time of each commit, so SQL finds the version that was valid when an order was placed.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples import orders_to_iceberg
from examples.run_check import Verdict
from examples.run_feeds import Feed
from examples.run_stage import Stage
from examples.servers import postgres_server
from examples.servers.postgres import USER

_ORDERS_PER_SECOND = 2_000
_CUSTOMERS = 1_000
_ORDERS_BEFORE = 5_000  # existing orders when the job begins
_CITIES = 50
_TABLES = """
create table customers (id int primary key, city text);
create table orders (id int primary key, customer int not null, cents int not null);
create table versions (step int, customer int, city text, primary key (step, customer));  -- null: deleted
create table fed (step int primary key);
"""
# Orders from before the job have the time of the job's first read of the tables, and so have the first versions.
TRUTH = """
select o.id, o.customer, o.cents, v.city
from orders o left join lateral (
    select city from versions v
    where v.customer = o.customer
    and (v.step = 0 or pg_xact_commit_timestamp(v.xmin) <= pg_xact_commit_timestamp(o.xmin))
    order by v.step desc limit 1
) v on true
"""


class OrdersToIceberg(Stage):
    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        self._postgres = stack.enter_context(postgres_server(track_commit_timestamp="on"))
        warehouse = folder.parent / "run" / "warehouse"
        warehouse.mkdir(parents=True)
        self._catalog = {
            "type": "sql",
            "uri": f"postgresql+psycopg://127.0.0.1:{self._postgres.port}/postgres?user={USER}",
            "warehouse": f"file://{warehouse}",
        }
        make_tables(self._postgres.url)
        fill_shop(self._postgres.url)
        self.servers = [self._postgres]
        self.flow = orders_to_iceberg.build(self._postgres.url, self._catalog)
        self.records = round(seconds * _ORDERS_PER_SECOND)
        self.feed = ShopFeed(self._postgres.url, self.records, seconds)

    def visible_rows(self) -> int:
        """Number of visible rows; 0 while the catalog is away."""
        from sqlalchemy.exc import OperationalError

        try:
            table = _table(self._catalog)
        except OperationalError:
            return 0
        snapshot = table.current_snapshot() if table is not None else None
        return int(snapshot.summary["total-records"]) if snapshot is not None and snapshot.summary else 0

    def expected_rows(self) -> int:
        return _ORDERS_BEFORE + self.records

    def check(self) -> Verdict:
        import psycopg

        with psycopg.connect(self._postgres.url) as connection:
            truth = connection.execute(TRUTH).fetchall()
        table = _table(self._catalog)
        rows = [] if table is None else table.scan().to_arrow().to_pylist()
        return compare(truth, [(row["id"], row["customer"], row["cents"], row["city"]) for row in rows])


def compare(truth: list[tuple[Any, ...]], found: list[tuple[Any, ...]]) -> Verdict:
    """Compares rows by the number of the order, the first value."""
    right = {row[0]: row for row in truth}
    verdict = Verdict(len(right), len(right))
    times = Counter(row[0] for row in found)
    for number in right.keys() - times.keys():
        verdict.note("lost", f"order {right[number]}")
    for row in found:
        if times[row[0]] > 1:
            times[row[0]] -= 1
            verdict.note("duplicated", f"order {row}")
        if right.get(row[0]) != row:
            verdict.note("mismatched", f"order {row}, SQL on the source has {right.get(row[0])}")
    return verdict


def make_tables(database: str) -> None:
    import psycopg

    with psycopg.connect(database) as connection:
        connection.execute(_TABLES)


def fill_shop(database: str) -> None:
    """Inserts the rows that exist before any change."""
    import psycopg

    values = {"customers": _CUSTOMERS, "cities": _CITIES, "orders": _ORDERS_BEFORE}
    statements = (
        "insert into customers select n, 'city ' || n %% %(cities)s from generate_series(1, %(customers)s) n",
        "insert into versions select 0, id, city from customers",
        "insert into orders select -n, 1 + n %% (%(customers)s + 5), n from generate_series(1, %(orders)s) n",
    )
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement, values)


class ShopFeed(Feed):
    """Feed of the shop: each step is a transaction.

    Customers move, leave and return; orders are placed, some by customers who do not exist. At the end a customer
    without orders is added, so that event time advances beyond the last order."""

    def __init__(self, database: str, orders: int, seconds: float, *, waits: bool = True) -> None:
        super().__init__([b""] * orders, seconds)
        self._database = database
        self._waits = waits  # until a job reads

    @contextlib.contextmanager
    def sender(self) -> Iterator[Any]:
        step = 0
        if self._waits:
            self._wait_for_reader()

        def send(first: int, end: int) -> None:
            nonlocal step
            step += 1
            self._commit(step, first, end)

        yield send
        time.sleep(2 * orders_to_iceberg.MAX_OUT_OF_ORDERNESS.total_seconds())
        self._commit(step + 1, 0, 0)

    def _wait_for_reader(self) -> None:
        """Waits until the job reads: the job has no history of changes before the first read of the tables."""
        import psycopg

        with psycopg.connect(self._database, autocommit=True) as connection:
            while connection.execute("select 1 from pg_stat_replication where state = 'streaming'").fetchone() is None:
                time.sleep(0.1)

    def _commit(self, step: int, first: int, end: int) -> None:
        """Commits a step exactly once: retries until the database has the step."""
        import psycopg

        while True:
            try:
                with psycopg.connect(self._database, connect_timeout=2) as connection:
                    if connection.execute("select 1 from fed where step = %s", (step,)).fetchone() is None:
                        connection.execute("insert into fed values (%s)", (step,))
                        _change(connection, step, first, end)
                return
            except psycopg.OperationalError:
                time.sleep(0.2)


def _change(connection: Any, step: int, first: int, end: int) -> None:
    moved = "1 + (n * 37 + %(step)s * 101) %% %(customers)s"
    values = {"step": step, "customers": _CUSTOMERS, "cities": _CITIES, "first": first, "end": end}
    series = f"(select distinct {moved} id from generate_series(1, 20) n)"
    gone = "(id + %(step)s) %% 7 = 0"
    connection.execute(f"delete from customers where id in (select id from {series} s where {gone})", values)
    city = "'city ' || (id * 13 + %(step)s) %% %(cities)s"
    connection.execute(
        f"insert into customers select id, {city} from {series} s where not ({gone}) "
        "on conflict (id) do update set city = excluded.city",
        values,
    )
    connection.execute(
        f"insert into versions select %(step)s, id, case when not ({gone}) then {city} end from {series} s", values
    )
    connection.execute(
        "insert into orders select n, 1 + (n * 7919) %% (%(customers)s + 5), n %% 10000 "
        "from generate_series(%(first)s, %(end)s - 1) n",
        values,
    )


def _table(catalog: dict[str, str]) -> Any:
    """The table, or None before the table exists."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return load_catalog("default", **catalog).load_table(orders_to_iceberg.ORDERS)
    except NoSuchTableError:
        return None
