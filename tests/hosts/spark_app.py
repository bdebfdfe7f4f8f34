"""Program of a job on real Spark workers: `python -m tests.hosts.spark_app <order.json>`."""

import logging
import sys
from pathlib import Path

import msgspec

from tests.integration.chaos import workload

_BRIEF = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # JVMs that are killed soon start cheaply


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    master: str
    driver: str  # address of this host
    checkpoints: str
    coordinator: list[str]
    token_file: str
    target: str
    bootstrap: str
    rows_per_second: float
    parallelism: int
    slot_timeout_s: float


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for name in ("py4j", "botocore", "boto3", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)
    flow = workload.build(order.target, order.rows_per_second, order.bootstrap)
    result = flow.run(
        master=order.master,
        parallelism=order.parallelism,
        checkpoints=order.checkpoints,
        checkpoint_interval=0.5,
        tolerable_failures=1_000,
        coordinator=order.coordinator,
        token_file=order.token_file,
        slot_timeout=order.slot_timeout_s,
        resource_wait_timeout=600.0,
        state_memory_mb=64,
        insecure_network_ok=True,
        spark_conf={
            "spark.driver.host": order.driver,
            "spark.driver.bindAddress": order.driver,
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _BRIEF,
            "spark.driver.extraJavaOptions": _BRIEF,
            "spark.deploy.maxExecutorRetries": "-1",
        },
    )
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
