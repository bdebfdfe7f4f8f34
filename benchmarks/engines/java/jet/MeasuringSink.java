package bench.jet;

import bench.Stamps;
import com.hazelcast.jet.core.AbstractProcessor;

/** Stamps each row as it arrives at the sink. */
public final class MeasuringSink extends AbstractProcessor {
    private final String folder;
    private final int emitted;
    private Stamps stamps;

    /** `emitted`: index of the number with the intended emission time in ns. */
    public MeasuringSink(String folder, int emitted) {
        this.folder = folder;
        this.emitted = emitted;
    }

    @Override
    protected void init(Context context) {
        stamps = new Stamps(folder);
    }

    @Override
    protected boolean tryProcess(int ordinal, Object row) {
        stamps.add(((long[]) row)[emitted]);
        return true;
    }

    @Override
    public boolean saveToSnapshot() {
        return true; // nothing is open between two rows
    }

    @Override
    public void close() {
        if (stamps != null) {
            stamps.close();
        }
    }
}
