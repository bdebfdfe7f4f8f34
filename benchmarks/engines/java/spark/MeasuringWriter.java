package bench.spark;

import bench.Stamps;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/** Stamps each row as it leaves the last operator. One file per task thread, not one per batch. */
public final class MeasuringWriter extends ForeachWriter<Row> {
    private static final ThreadLocal<Stamps> OPEN = new ThreadLocal<>();

    private final String folder;
    private final int emitted;
    private transient Stamps stamps;

    /** `emitted`: index of the column with the intended emission time in ns. */
    public MeasuringWriter(String folder, int emitted) {
        this.folder = folder;
        this.emitted = emitted;
    }

    @Override
    public boolean open(long partition, long epoch) {
        stamps = OPEN.get();
        if (stamps == null) {
            stamps = new Stamps(folder);
            OPEN.set(stamps);
        }
        return true;
    }

    @Override
    public void process(Row row) {
        stamps.add(row.getLong(emitted));
    }

    @Override
    public void close(Throwable error) {
        stamps.flush();
    }
}
