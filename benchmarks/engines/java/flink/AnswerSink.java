package bench.flink;

import java.io.IOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Writes each change of a result as a line of JSON: +1 or -1 (a row that is taken back), then the fields. Times are
 *  milliseconds since the epoch. */
public final class AnswerSink extends RichSinkFunction<Row> {
    private final String folder;
    private transient Writer file;
    private transient ObjectMapper json;

    public AnswerSink(String folder) {
        this.folder = folder;
    }

    @Override
    public void open(OpenContext context) throws IOException {
        json = new ObjectMapper();
        file = Files.newBufferedWriter(Path.of(folder, "answer-" + UUID.randomUUID() + ".jsonl"));
    }

    @Override
    public void invoke(Row row, Context context) throws IOException {
        boolean taken = row.getKind() == RowKind.UPDATE_BEFORE || row.getKind() == RowKind.DELETE;
        List<Object> line = new ArrayList<>();
        line.add(taken ? -1 : 1);
        for (int i = 0; i < row.getArity(); i++) {
            line.add(plain(row.getField(i)));
        }
        file.write(json.writeValueAsString(line));
        file.write('\n');
    }

    @Override
    public void close() throws IOException {
        if (file != null) {
            file.close();
        }
    }

    private static Object plain(Object value) {
        if (value instanceof LocalDateTime) {
            return ((LocalDateTime) value).toInstant(ZoneOffset.UTC).toEpochMilli();
        }
        return value instanceof Instant ? ((Instant) value).toEpochMilli() : value;
    }
}
