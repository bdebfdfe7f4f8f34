"""The functions of docs/for-each-batch.md that write by Spark's jars of Iceberg and Delta, which have no build for the
newest Spark: a job on a matching Spark, killed after the first write.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from examples.older_spark import VERSION, older_spark
from examples.servers.maven import machine_cache
from tests import spark_jvm
from tests.integration.test_pages import placed, programs_of
from tests.test_documents import ROOT

pytestmark = pytest.mark.spark

PAGE = "for-each-batch.md"
ROWS = 2_000
PROGRAM = """
import os, signal
from barrier_runtime import Dataflow
from pyspark.sql import SparkSession

{write_iceberg}
{write_delta}

def write_and_die(rows, checkpoint):
    write_iceberg(rows, checkpoint)
    write_delta(rows, checkpoint)
    with open("calls", "a+") as calls:
        calls.write(checkpoint.token + "\\n")
        if calls.tell() == len(checkpoint.token) + 1:
            calls.flush()
            os.kill(os.getpid(), signal.SIGKILL)

conf = {{
    "spark.jars.packages": "{jars}",
    "spark.jars.ivy": "{kept}",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": os.path.abspath("warehouse"),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",  # of a log of a few entries
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}}
builder = SparkSession.builder.master("local[3]")
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
flow = Dataflow("orders")
flow.rate("numbers", 1000, {rows}).select(["value"]).for_each_batch(write_and_die, name="out")
flow.run(spark=spark, parallelism=1, checkpoints=os.path.abspath("checkpoints"))

print("Spark", spark.version)
spark.stop()
"""


def package_of(start: str) -> str:
    (found,) = set(re.findall(rf"{re.escape(start)}[^\s`]+", (ROOT / "docs" / PAGE).read_text(encoding="utf-8")))
    return found


def function_of(name: str) -> str:
    (found,) = (code for code in programs_of(PAGE) if f"def {name}(" in code)
    return found


@pytest.mark.long(160)
@pytest.mark.timeout(1_800)  # Spark's first writes take minutes on a busy machine
def test_the_jars_of_iceberg_and_delta_write_each_row_once_through_a_kill(tmp_path: Path) -> None:
    program = PROGRAM.format(
        write_iceberg=function_of("write_iceberg"),
        write_delta=placed(function_of("write_delta"), {"/tables/orders": str(tmp_path / "delta")}),
        jars=f"{package_of('org.apache.iceberg:')},{package_of('io.delta:')}",
        kept=machine_cache() / "ivy",
        rows=ROWS,
    )
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    path = f"{older_spark()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # Maven's folder in the true home may describe jars that it does not hold.
    jvm = f"{spark_jvm.LIGHT} -Duser.home={tmp_path}"
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": jvm}

    def run(code: int) -> str:
        with (tmp_path / "told").open("w") as told:
            done = subprocess.run(
                [sys.executable, "app.py"],
                cwd=tmp_path,
                env=environment,
                stdout=told,
                stderr=told,
                timeout=900,
                check=False,
            )
        text = (tmp_path / "told").read_text()
        assert done.returncode == code, text
        return text

    run(-signal.SIGKILL)
    assert f"Spark {VERSION}" in run(0)
    first, again, *_ = (tmp_path / "calls").read_text().splitlines()
    assert first == again  # the batch written before the kill was delivered again

    rows = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert sorted(rows["value"].to_pylist()) == list(range(ROWS))
    metadata = tmp_path / "warehouse" / "shop" / "orders" / "metadata"
    catalog = load_catalog("here", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    hint = (metadata / "version-hint.text").read_text().strip()
    table = catalog.register_table("shop.orders", str(metadata / f"v{hint}.metadata.json"))
    assert sorted(table.scan().to_arrow()["value"].to_pylist()) == list(range(ROWS))
