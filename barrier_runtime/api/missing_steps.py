"""Answers to unknown method names of a stream.

`OTHER_FRAMEWORKS`: a method of another framework → the answer.
"""

import difflib
from collections.abc import Mapping

from barrier_runtime.state.errors import InvalidJob


class NoSuchStep(InvalidJob, AttributeError):
    """A stream has no such method; another kind of stream may have the method."""


_CONNECT = (
    "connect is a function: from barrier_runtime import connect, and connect(orders=orders.key_by(…), "
    "rules=rules.broadcast()).process(…)"
)
AFTER_KEY_BY = {
    "window": "it comes after .key_by(…), which says what belongs together; window_all(…) is for all rows",
    "aggregate": "it comes after .key_by(…), which says what belongs together",
    "process_groups": "it comes after .key_by(…), which says what belongs together",
    **dict.fromkeys(
        ("join", "window_join", "asof_join", "table_join"),
        "it comes after .key_by(…) of both streams; broadcast_join() joins with a small table without one",
    ),
    "connect": _CONNECT,
}
BEFORE_KEY_BY = {
    **dict.fromkeys(
        (
            *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
            *("rebalance", "deduplicate", "key_by", "split", "broadcast"),
            *("with_columns", "drop", "rename", "inspect", "explode"),
        ),
        "it comes before .key_by(…), or after .window(…), .aggregate(…) or .process(…)",
    ),
    "deduplicate": "it comes before .key_by(…), with the columns: .deduplicate(name, 'id', within=…)",
    "connect": _CONNECT,
}
AFTER_WINDOW = dict.fromkeys(
    (
        *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
        *("rebalance", "deduplicate", "sink", "key_by", "split", "broadcast", "lookup", "process", "process_groups"),
        *("window", "window_all", "join", "window_join", "asof_join", "table_join"),
        *("with_columns", "drop", "rename", "inspect", "explode"),
    ),
    "it comes after .aggregate(…), .apply(…) or .top(…), which say what becomes of a window's rows",
)
BEFORE_BROADCAST = {
    **dict.fromkeys(
        (
            *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
            *("rebalance", "deduplicate", "sink", "key_by", "split", "process", "window", "aggregate"),
            *("process_groups", "with_columns", "drop", "rename", "inspect", "explode"),
        ),
        "a broadcast stream is an input of connect(…, rules=rules.broadcast()): its own steps come before that",
    ),
    "connect": _CONNECT,
}

_SINK = "rows are written by .sink(name, …), with a sink such as ParquetSink(url), KafkaSink(servers, topic) or print"
_AGGREGATE = (
    "it is an aggregate: .key_by(…).aggregate(name, n=count(), total=sum_('x')), or of a .window(…) behind .key_by(…)"
)
_COLUMNS = ".select([…]) keeps columns, .select({'name': 'expression', …}) names and computes them"
_ADDED = ".with_columns(eur='price * 0.9') adds columns or replaces them"
_RENAMED = ".rename(old='new') renames columns"
_ROWS = "rows are changed by .map(function) and .flat_map(function), columns by .with_columns(…)"
_NULLS = "nulls: .filter('x IS NOT NULL'), .with_columns(x='coalesce(x, 0)')"
_NAMED = "the first argument of a stateful step is the name; parallelism is an option: flow.run_local(parallelism=4)"
_RUN = "a flow runs as a whole: flow.run() on Spark, flow.run_local(), or .take(20) for a look at rows"
_JOINS = "joins are .key_by(…).join(name, other.key_by(…), between=…, how='left'), also how='semi' and how='anti'"
_WATERMARKS = "say it at the source: event_time='at', max_out_of_orderness=timedelta(seconds=5); or .with_watermarks(…)"
OTHER_FRAMEWORKS = {
    **dict.fromkeys(("where", "filter_rows"), "rows are filtered by .filter('price > 100') or .filter(function)"),
    **dict.fromkeys(
        (
            *("groupby", "groupBy", "group_by", "keyBy", "partition_by", "partitionBy", "groupByKey", "key_on"),
            *("partition_custom", "partitionCustom", "set_index"),
        ),
        "keys are .key_by(…)",
    ),
    **dict.fromkeys(("with_column", "withColumn", "withColumns", "assign", "mutate", "extend", "add_columns"), _ADDED),
    **dict.fromkeys(("withColumnRenamed", "withColumnsRenamed", "rename_columns", "toDF"), _RENAMED),
    **dict.fromkeys(("drop_columns", "dropFields", "exclude"), ".drop('a', 'b') removes columns"),
    **dict.fromkeys(("selectExpr", "select_expr", "apply", "project"), _COLUMNS),
    **dict.fromkeys(("peek", "tap", "do_action", "debug"), "rows are looked at by .inspect(), which prints them"),
    **dict.fromkeys(("map_values", "mapValues", "map_value", "filter_map", "flat_map_value", "filter_value"), _ROWS),
    **dict.fromkeys(("pipe",), "steps of your own are functions of a stream: cleaned(stream)"),
    **dict.fromkeys(("alias",), _RENAMED),
    **dict.fromkeys(("na",), _NULLS),
    **dict.fromkeys(("update",), "columns are changed by .with_columns(…), whole rows by .map(function)"),
    **dict.fromkeys(("filterNot", "filter_not"), "rows are dropped by .filter('NOT (price > 100)')"),
    **dict.fromkeys(("dropna", "drop_nulls", "fillna", "fill_null"), _NULLS),
    **dict.fromkeys(("printSchema", "dtypes", "columns", "describe", "info"), "columns and types are in .schema"),
    **dict.fromkeys(("cache", "persist", "unpersist"), "rows are read once, also by several steps behind a stream"),
    **dict.fromkeys(("uid", "set_uid", "set_parallelism", "setParallelism", "set_max_parallelism"), _NAMED),
    **dict.fromkeys(("execute", "execute_and_collect", "awaitTermination", "start", "run"), _RUN),
    **dict.fromkeys(
        (
            *("stateful_map", "stateful_flat_map", "stateful_batch", "mapGroupsWithState", "flatMapGroupsWithState"),
            *("applyInPandasWithState", "transformWithState", "transformWithStateInPandas"),
        ),
        "state belongs to a key: .key_by(…).process(name, Class)",
    ),
    **dict.fromkeys(("crossJoin", "intersect", "subtract", "exceptAll", "left_join", "leftJoin", "outer_join"), _JOINS),
    **dict.fromkeys(("top", "nlargest", "nsmallest"), "top rows are of windows: .window_all(name, …).top(3, by='n')"),
    **dict.fromkeys(("orderBy", "order_by", "sort", "sort_values"), "a stream has no end: .window(…).top(n, by='x')"),
    **dict.fromkeys(("cast", "astype"), "types change by .with_columns(n='CAST(n AS BIGINT)')"),
    **dict.fromkeys(("branch", "route"), "rows go to several streams by .split(name, by, into=(…))"),
    **dict.fromkeys(("flatMap", "flatten", "unnest"), "rows become several by .explode('items') or .flat_map(…)"),
    **dict.fromkeys(
        ("count", "sum", "mean", "avg", "min", "max", "agg", "reduce", "fold", "stats", "pivot", "cube", "rollup"),
        _AGGREGATE,
    ),
    **dict.fromkeys(
        ("distinct", "unique", "drop_duplicates", "dropDuplicates", "dropDuplicatesWithinWatermark"),
        "ids once: .deduplicate(name, 'id', within=…)",
    ),
    **dict.fromkeys(("withWatermark", "assign_timestamps_and_watermarks", "set_timestamp"), _WATERMARKS),
    **dict.fromkeys(
        (
            "print",
            "write",
            "writeStream",
            "write_stream",
            "to",
            "to_topic",
            "output",
            "writeTo",
            "saveAsTable",
            "insertInto",
        ),
        _SINK,
    ),
    **dict.fromkeys(("to_kafka", "to_parquet", "to_csv", "to_json", "to_sql", "sink_to", "add_sink", "foreach"), _SINK),
    **dict.fromkeys(("foreachBatch", "foreach_batch"), "whole checkpoints go to .for_each_batch(function)"),
    **dict.fromkeys(
        (
            *("limit", "head", "collect", "to_pandas", "toPandas", "tail", "first"),
            *("iterrows", "itertuples", "toLocalIterator", "isEmpty", "to_dict"),
        ),
        "look at rows by .take(20) or .show(20)",
    ),
    **dict.fromkeys(("repartition", "shuffle", "coalesce", "redistribute"), "rows are spread by .rebalance()"),
    **dict.fromkeys(("merge", "concat", "unionAll", "unionByName"), "streams become one by .union(…)"),
    **dict.fromkeys(("backfill", "then", "switch_to"), "history, then live rows: .followed_by(name, live)"),
    **dict.fromkeys(("transform", "mapPartitions", "map_partitions"), "whole batches go to .map_batches(function)"),
    **dict.fromkeys(("merge_asof", "join_asof"), "as-of joins are .key_by(…).asof_join(…)"),
    **dict.fromkeys(
        (
            *(
                "tumbling_window",
                "hopping_window",
                "sliding_window",
                "session_window",
                "resample",
                "rolling",
                "windowedBy",
            ),
            *(
                "fold_window",
                "reduce_window",
                "collect_window",
                "count_window",
                "reduce_final",
                "count_final",
                "max_final",
            ),
        ),
        "windows are .key_by(…).window(name, Tumbling(timedelta(minutes=1)), event_time='at').aggregate(…)",
    ),
    **dict.fromkeys(
        ("get_side_output", "side_output"), "side outputs are returned: ….process(…, side={'late': …}).late"
    ),
}


_OWN_ROWS = ".from_iterator(name, lambda part, parts: iter(rows), schema={…}, splits=1) has rows of your own"
OF_FLOWS = {
    **dict.fromkeys(
        ("read_json", "read_ndjson", "from_json", "json"), "JSON lines are read by .read_jsonl(name, path)"
    ),
    **dict.fromkeys(("from_kafka", "kafka", "topic", "stream"), "topics are read by .read_kafka(name, servers, topic)"),
    **dict.fromkeys(
        (
            *("from_collection", "from_elements", "from_list", "from_rows", "from_pandas", "from_arrow"),
            *("createDataFrame", "create_dataframe"),
        ),
        _OWN_ROWS,
    ),
    "read_delta": "Delta tables are read by .source(name, DeltaSource(url))",
    "read_iceberg": "Iceberg tables are read by .source(name, IcebergSource(table, …))",
    "read_kinesis": "Kinesis streams are read by .source(name, KinesisSource(stream, …))",
    **dict.fromkeys(
        ("read_sql", "read_table", "read_postgres", "read_mysql", "read_jdbc", "jdbc", "read_sqlite"),
        "changes of PostgreSQL tables are read by .read_postgres_changes(name, …), queries by .from_poll(name, …)",
    ),
    **dict.fromkeys(
        ("read", "readStream", "read_stream", "add_source", "from_source", "input", "connector", "dataframe", "load"),
        "rows come from .read_kafka(name, …), .read_parquet(name, …), … or .source(name, source)",
    ),
    **dict.fromkeys(
        ("sql", "execute_sql", "sql_query"), "SQL is for expressions: .filter('price > 100'), .select({…})"
    ),
    **dict.fromkeys(("execute", "submit", "launch", "start_job"), "a flow runs by .run() on Spark, or .run_local()"),
    **dict.fromkeys(
        ("map", "filter", "select", "key_by", "sink", "process", "union", "inspect", "with_columns"),
        "steps are methods of a stream, which .read_…(name, …) and .source(name, source) return",
    ),
}


def no_step(stream: object, name: str, hints: Mapping[str, str]) -> AttributeError:
    kind = type(stream).__name__
    answer = hints.get(name) or OTHER_FRAMEWORKS.get(name)
    if answer:
        return NoSuchStep(f"{kind} has no method {name!r}: {answer}")
    steps = [step for step in dir(type(stream)) if not step.startswith("_")]
    elsewhere = () if hints is OF_FLOWS else hints  # methods of other kinds of streams
    close = [] if name.startswith("_") else difflib.get_close_matches(name, [*steps, *elsewhere], 1)
    meant = "" if not close else f": did you mean {close[0]!r}?"
    told = f"{kind!r} object has no attribute {name!r}{meant}"
    return AttributeError(told, name=name, obj=None)  # without the object Python adds no suggestion
