package bench.jet;

import static com.hazelcast.jet.core.BroadcastKey.broadcastKey;

import bench.Events;
import bench.Stamps;
import com.hazelcast.jet.core.AbstractProcessor;
import com.hazelcast.jet.core.BroadcastKey;

/** Rows {key, emitted} on a schedule: row i is due at start + i / rate; processor s of P makes the rows s, s + P, …
 *  Cooperative: emits what is due as long as there is room, and gives the thread back; Jet's own pauses between calls
 *  are what it waits. Its position is in the snapshots. */
public final class PacedSource extends AbstractProcessor {
    private static final int TURN = 500; // rows in a call, as in Flink's under one hold of the lock

    private final double periodNs;
    private final long keys;
    private final long startNs;
    private int processor;
    private int processors;
    private long next;
    private long[] pending; // made, and found no room

    /** `startNs`: when row 0 is due. */
    public PacedSource(double rate, long keys, long startNs) {
        this.periodNs = 1e9 / rate;
        this.keys = keys;
        this.startNs = startNs;
    }

    @Override
    protected void init(Context context) {
        processor = context.globalProcessorIndex();
        processors = context.totalParallelism();
        next = processor;
    }

    @Override
    public boolean complete() {
        long now = Stamps.now();
        for (int made = 0; made < TURN && due(next) <= now; made++) {
            if (pending == null) {
                pending = new long[] {Events.key(Events.mixed(next), keys), due(next)};
            }
            if (!tryEmit(pending)) {
                return false;
            }
            pending = null;
            next += processors;
        }
        return false;
    }

    private long due(long row) {
        return startNs + (long) (row * periodNs);
    }

    @Override
    public boolean saveToSnapshot() {
        return tryEmitToSnapshot(broadcastKey(processor), next);
    }

    @Override
    protected void restoreFromSnapshot(Object key, Object value) {
        if (((BroadcastKey<?>) key).key().equals(processor)) {
            next = (Long) value;
            pending = null;
        }
    }
}
