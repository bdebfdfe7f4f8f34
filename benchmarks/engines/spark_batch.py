"""Spark without streaming ("spark-batch"): the records of a backlog in Kafka in a single query."""

import sys

from benchmarks.engines.child import leave_facts, spec_of_this_run
from benchmarks.engines.spark import backlog, session, settings
from benchmarks.engines.words import say
from benchmarks.spec import Facts
from benchmarks.workloads import workload


def main() -> int:
    spec = spec_of_this_run()
    spark = session(spec)
    say("began")
    raw = spark.read.format("kafka").option("kafka.bootstrap.servers", spec.bootstrap)
    backlog(raw.option("subscribe", spec.topic_in).load(), spec).createOrReplaceTempView("events")
    say("running")
    spark.sql(workload(spec.workload).sql).write.format("noop").mode("overwrite").save()
    say("finished")
    leave_facts(spec, Facts(version=spark.version, settings=settings(spec)))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
