package bench.flink;

import bench.Stamps;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.runtime.client.JobCancellationException;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ExceptionUtils;

/** One workload in a MiniCluster of this process. Arguments are name=value; the names are in engines/flink.py. Says
 *  "bench: began|running|finished <ns>" on standard output; ends when the input does, or standard input is closed. */
public final class FlinkJob {
    private FlinkJob() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        Map<String, String> settings = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            (parts[0].startsWith("conf.") ? settings : options).put(parts[0].replaceFirst("^conf\\.", ""), parts[1]);
        }
        say("began");
        FileSystem.initialize(Configuration.fromMap(settings), null);
        StreamExecutionEnvironment env =
            StreamExecutionEnvironment.createLocalEnvironment(Configuration.fromMap(settings));
        env.setParallelism(Integer.parseInt(options.get("parallelism")));
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        DataStream<Row> events = null;
        if (options.get("source").equals("generator")) {
            events = env.addSource(
                new PacedSource(
                    Double.parseDouble(options.get("rate")), Long.parseLong(options.get("keys")), Stamps.now()),
                "events", PacedSource.TYPE);
            tables.createTemporaryView("events", events, Schema.newBuilder()
                .column("key", DataTypes.BIGINT()).column("value", DataTypes.BIGINT())
                .column("at", DataTypes.BIGINT()).column("emitted", DataTypes.BIGINT())
                .columnByExpression("ts", "TO_TIMESTAMP_LTZ(`at`, 3)").watermark("ts", "ts").build());
        } else {
            for (String statement : options.get("source_ddl").split(";")) {
                tables.executeSql(statement);
            }
        }
        JobClient job;
        if (options.get("program").startsWith("rtm-")) {
            DataStream<Row> records = tables.toDataStream(tables.sqlQuery("SELECT `key`, `value` FROM events"));
            DataStream<Row> result = Records.result(options.get("program"), records,
                Integer.parseInt(options.get("names")), Integer.parseInt(options.get("id_digits")));
            tables.executeSql(options.get("sink_ddl"));
            job = tables.fromDataStream(result).executeInsert("results").getJobClient().orElseThrow();
        } else if (!options.get("program").equals("sql")) {
            DataStream<Row> rows = events != null ? events : tables.toDataStream(tables.sqlQuery(
                "SELECT `key`, `value`, `at`, emitted FROM events"));
            job = options.get("program").equals("keyed-count")
                ? start(options, env, tables, counted(rows), List.of("key", "n", "emitted"))
                : start(options, env, tables, joined(rows), List.of("key", "price", "rate", "emitted"));
        } else {
            String[] statements = options.get("sql").split(";");
            for (int i = 0; i < statements.length - 1; i++) {
                tables.executeSql(statements[i]);
            }
            Table result = tables.sqlQuery(statements[statements.length - 1]);
            if (options.get("sink").equals("discard")) {
                tables.executeSql("CREATE TEMPORARY TABLE nowhere (" + columnsOf(result) + ") WITH ('connector' = 'blackhole')");
                job = result.executeInsert("nowhere").getJobClient().orElseThrow();
            } else if (options.get("sink").equals("iceberg")) {
                tables.executeSql(options.get("sink_ddl"));
                job = result.executeInsert("results").getJobClient().orElseThrow();
            } else {
                Schema schema = Schema.newBuilder().fromResolvedSchema(result.getResolvedSchema()).build();
                DataStream<Row> changes = options.get("sink").equals("answer")
                    ? tables.toChangelogStream(result, schema, ChangelogMode.all())
                    : tables.toChangelogStream(result);
                job = start(options, env, tables, changes, result.getResolvedSchema().getColumnNames());
            }
        }
        waitFor(job);
    }

    private static String columnsOf(Table result) {
        return result.getResolvedSchema().getColumns().stream()
            .map(column -> "`" + column.getName() + "` "
                + column.getDataType().nullable().getLogicalType().asSerializableString())
            .collect(Collectors.joining(", "));
    }

    /** The running count as Flink's documentation writes it: a ValueState, one row out per row in. */
    static DataStream<Row> counted(DataStream<Row> rows) {
        return rows.keyBy(row -> (Long) row.getField(0), Types.LONG)
            .process(new Counter<Long>() {
                @Override
                Row counted(Row row, long now) {
                    return Row.of(row.getField(0), now, row.getField(3));
                }
            })
            .returns(Types.ROW_NAMED(new String[] {"key", "n", "emitted"}, Types.LONG, Types.LONG, Types.LONG));
    }

    abstract static class Counter<K> extends KeyedProcessFunction<K, Row, Row> {
        private transient ValueState<Long> count;

        /** The output for the row with which its key has been seen `now` times. */
        abstract Row counted(Row row, long now);

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Row row, Context context, Collector<Row> out) throws Exception {
            Long before = count.value();
            long now = before == null ? 1L : before + 1L;
            count.update(now);
            out.collect(counted(row, now));
        }
    }

    /** The interval join as Flink's documentation writes it: even values with odd ones of the key within 5 s. */
    static DataStream<Row> joined(DataStream<Row> rows) {
        DataStream<Row> timed = rows.assignTimestampsAndWatermarks(
            WatermarkStrategy.<Row>forMonotonousTimestamps().withTimestampAssigner((row, at) -> (Long) row.getField(2)));
        return side(timed, 0).intervalJoin(side(timed, 1))
            .between(Duration.ofSeconds(-5), Duration.ofSeconds(5))
            .process(new Joiner())
            .returns(Types.ROW_NAMED(
                new String[] {"key", "price", "rate", "emitted"}, Types.LONG, Types.LONG, Types.LONG, Types.LONG));
    }

    private static KeyedStream<Row, Long> side(DataStream<Row> rows, long odd) {
        return rows.filter(row -> (Long) row.getField(1) % 2 == odd).keyBy(row -> (Long) row.getField(0), Types.LONG);
    }

    static final class Joiner extends ProcessJoinFunction<Row, Row, Row> {
        @Override
        public void processElement(Row left, Row right, Context context, Collector<Row> out) {
            long emitted = Math.max((Long) left.getField(3), (Long) right.getField(3));
            out.collect(Row.of(left.getField(0), left.getField(1), right.getField(1), emitted));
        }
    }

    private static JobClient start(
        Map<String, String> options,
        StreamExecutionEnvironment env,
        StreamTableEnvironment tables,
        DataStream<Row> rows,
        List<String> names) throws Exception {
        switch (options.get("sink")) {
            case "measure":
                rows.addSink(new MeasuringSink(options.get("folder"), names.indexOf("emitted")));
                return env.executeAsync("bench");
            case "answer":
                Files.writeString(Path.of(options.get("folder"), "answer-columns.txt"), String.join("\n", names));
                rows.addSink(new AnswerSink(options.get("folder")));
                return env.executeAsync("answer");
            case "files":
                rows.map(row -> "{\"key\":" + row.getField(0) + ",\"n\":" + row.getField(1)
                        + ",\"emitted\":" + row.getField(names.indexOf("emitted")) + "}")
                    .returns(Types.STRING)
                    .sinkTo(FileSink.forRowFormat(
                            new org.apache.flink.core.fs.Path(options.get("target")),
                            new SimpleStringEncoder<String>())
                        .withRollingPolicy(OnCheckpointRollingPolicy.build()).build());
                return env.executeAsync("bench");
            case "discard":
                rows.sinkTo(new DiscardingSink<>());
                return env.executeAsync("bench");
            default:
                int emitted = names.indexOf("emitted");
                DataStream<Row> kept = rows
                    .filter(row -> row.getKind() != RowKind.UPDATE_BEFORE && row.getKind() != RowKind.DELETE)
                    .map(row -> Row.of(row.getField(emitted)))
                    .returns(Types.ROW_NAMED(new String[] {"emitted"}, Types.LONG));
                tables.executeSql(options.get("sink_ddl"));
                return tables.fromDataStream(kept).executeInsert("results").getJobClient().orElseThrow();
        }
    }

    /** Waits on the result, not on the status: the cluster is gone as soon as the job has ended. A cancellation that was
     *  asked for is a good end. */
    private static void waitFor(JobClient job) throws Exception {
        AtomicBoolean asked = new AtomicBoolean();
        Thread listener = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    Thread.onSpinWait();
                }
                asked.set(true);
                job.cancel().get();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        listener.setDaemon(true);
        listener.start();
        say("running");
        try {
            job.getJobExecutionResult().get();
        } catch (ExecutionException error) {
            if (!asked.get() || ExceptionUtils.findThrowable(error, JobCancellationException.class).isEmpty()) {
                error.printStackTrace();
                System.exit(1);
            }
        }
        say("finished");
        System.exit(0);
    }

    private static void say(String what) {
        System.out.println("bench: " + what + " " + Stamps.now());
        System.out.flush();
    }
}
