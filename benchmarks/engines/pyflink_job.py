"""PyFlink's DataStream, run by the Python of the side environment, which has nothing of ours.

A running count per key in a Python `KeyedProcessFunction` with `ValueState`. Source and measuring sink are Flink's, in
Java.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Row, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext, SinkFunction, SourceFunction
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

NAMES = ["key", "value", "at", "emitted"]
LOOK_S = 0.01
CANCELLED = "JobCancellationException"  # in the error of a cancelled job


class Counter(KeyedProcessFunction):  # type: ignore[misc]
    def open(self, context: RuntimeContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield Row(row[0], count, row[3])


def say(word: str) -> None:
    print(f"bench: {word} {time.time_ns()}", flush=True)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    if plan["workload"] not in ("keyed-count", "python-count"):
        sys.exit(f"pyflink has no {plan['workload']}")
    say("began")
    configuration = Configuration()
    for name, value in plan["conf"].items():
        configuration.set_string(name, value)
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(plan["parallelism"])
    jvm = get_gateway().jvm
    if plan["source"] == "generator":
        source = jvm.bench.flink.PacedSource(float(plan["rate"]), plan["keys"], time.time_ns())
        rows = env.add_source(SourceFunction(source), "events", Types.ROW_NAMED(NAMES, [Types.LONG()] * 4))
    else:
        tables = StreamTableEnvironment.create(env)
        tables.execute_sql(plan["source_ddl"])
        rows = tables.to_data_stream(tables.sql_query("SELECT `key`, `value`, `at`, emitted FROM events"))
    kind = Types.ROW_NAMED(["key", "n", "emitted"], [Types.LONG()] * 3)
    counted = rows.key_by(lambda row: row[0], Types.LONG()).process(Counter(), kind)
    if plan["sink"] == "measure":
        counted.add_sink(SinkFunction(jvm.bench.flink.MeasuringSink(plan["folder"], 2)))
    else:
        counted.add_sink(SinkFunction(jvm.org.apache.flink.streaming.api.functions.sink.legacy.DiscardingSink()))
    job = env.execute_async("bench")
    ended = job.get_job_execution_result()
    stop = threading.Event()

    def listen() -> None:
        while os.read(sys.stdin.fileno(), 1):  # unbuffered: the interpreter needs the buffer's lock at its end
            pass
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    say("running")
    while not ended.done() and not stop.is_set():
        time.sleep(LOOK_S)
    asked = not ended.done()
    if asked:
        job.cancel()
        while not ended.done():
            time.sleep(LOOK_S)
    say("finished")
    error = ended.exception()
    if error is not None and not (asked and CANCELLED in str(error)):
        sys.exit(str(error))


if __name__ == "__main__":
    main()
