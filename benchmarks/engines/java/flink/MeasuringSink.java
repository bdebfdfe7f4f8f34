package bench.flink;

import bench.Stamps;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Stamps each row as it arrives at the sink. Retractions are no output. */
public final class MeasuringSink extends RichSinkFunction<Row> {
    private final String folder;
    private final int emitted;
    private transient Stamps stamps;

    /** `emitted`: index of the field with the intended emission time in ns. */
    public MeasuringSink(String folder, int emitted) {
        this.folder = folder;
        this.emitted = emitted;
    }

    @Override
    public void open(OpenContext context) {
        stamps = new Stamps(folder);
    }

    @Override
    public void invoke(Row row, Context context) {
        if (row.getKind() != RowKind.UPDATE_BEFORE && row.getKind() != RowKind.DELETE) {
            stamps.add((Long) row.getField(emitted));
        }
    }

    @Override
    public void close() {
        if (stamps != null) {
            stamps.close();
        }
    }
}
