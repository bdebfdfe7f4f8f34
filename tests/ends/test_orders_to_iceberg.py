"""The example `orders_to_iceberg` in one process: the result against SQL on the source, and the example's comparison
against wrong results.
"""

from pathlib import Path

import psycopg
import pytest

from examples import orders_to_iceberg
from examples.orders_stage import TRUTH, ShopFeed, compare, fill_shop, make_tables
from examples.servers.postgres import postgres_server


@pytest.mark.slow
def test_orders_have_the_cities_that_sql_on_the_source_tells(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    (tmp_path / "warehouse").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with postgres_server(track_commit_timestamp="on") as server:
        make_tables(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create publication shop for table orders, customers")
            connection.execute("select pg_create_logical_replication_slot('shop', 'pgoutput')")
        fill_shop(server.url)
        feed = ShopFeed(server.url, 2_000, 2.0, waits=False)
        feed.run()
        assert feed.error is None
        named = {"slot": "shop", "publication": "shop", "snapshot": False, "until": "current"}
        flow = orders_to_iceberg.build(server.url, catalog, **named)
        flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.2)
        with psycopg.connect(server.url) as connection:
            truth = connection.execute(TRUTH).fetchall()
    rows = load_catalog("default", **catalog).load_table(orders_to_iceberg.ORDERS).scan().to_arrow().to_pylist()
    verdict = compare(truth, [tuple(row[name] for name in ("id", "customer", "cents", "city")) for row in rows])
    assert verdict.good, verdict.examples
    assert len({row["city"] for row in rows}) > 10
    assert any(row["city"] is None for row in rows)


def test_a_wrong_result_is_told() -> None:
    truth = [(1, 5, 100, "Rome"), (2, 5, 100, None)]
    assert compare(truth, list(truth)).good
    assert compare(truth, truth[:1]).lost == 1
    assert compare(truth, [*truth, truth[0]]).duplicated == 1
    assert compare(truth, [truth[0], (2, 5, 100, "Rome")]).mismatched == 1
