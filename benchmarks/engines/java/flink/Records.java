package bench.flink;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.types.Row;

/** The real-time workloads over records (key, value), as Flink's documentation writes them. */
final class Records {
    private static final TypeInformation<Row> TYPE =
        Types.ROW_NAMED(new String[] {"key", "value"}, Types.STRING, Types.STRING);

    private Records() {}

    static DataStream<Row> result(String program, DataStream<Row> rows, int names, int digits) {
        switch (program) {
            case "rtm-a":
                return rows.map(row -> Row.of(row.getField(0), Base64.getEncoder()
                    .encodeToString(((String) row.getField(1)).getBytes(StandardCharsets.UTF_8)))).returns(TYPE);
            case "rtm-b":
                return rows.keyBy(row -> (String) row.getField(1), Types.STRING)
                    .process(new FlinkJob.Counter<String>() {
                        @Override
                        Row counted(Row row, long now) {
                            return Row.of(row.getField(0), now + " " + row.getField(1));
                        }
                    })
                    .returns(TYPE);
            case "rtm-c":
                return rows.map(new Named(names, digits)).filter(row -> row.getField(1) != null).returns(TYPE);
            default:
                throw new IllegalArgumentException(program);
        }
    }

    /** The static table is small and never changes: each subtask loads the whole table in open(). */
    static final class Named extends RichMapFunction<Row, Row>
        implements org.apache.flink.api.java.typeutils.ResultTypeQueryable<Row> {
        private final int names;
        private final int digits;
        private transient Map<String, String> table;

        Named(int names, int digits) {
            this.names = names;
            this.digits = digits;
        }

        @Override
        public void open(OpenContext context) {
            table = new HashMap<>();
            for (int number = 0; number < names; number++) {
                table.put(String.format("%0" + digits + "d", number), "name-" + number);
            }
        }

        @Override
        public Row map(Row row) {
            String value = (String) row.getField(1);
            String name = table.get(value.substring(0, digits));
            return Row.of(row.getField(0), name == null ? null : name + " " + value);
        }

        @Override
        public TypeInformation<Row> getProducedType() {
            return TYPE;
        }
    }
}
