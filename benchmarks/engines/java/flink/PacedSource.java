package bench.flink;

import bench.Events;
import bench.Stamps;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.types.Row;

/** Rows on a schedule: row i is due at start + i / rate; subtask s of P makes the rows s, s + P, … Rows that are due are
 *  emitted one after the other, then it sleeps until the next one is. */
public final class PacedSource extends RichParallelSourceFunction<Row>
    implements CheckpointedFunction, ResultTypeQueryable<Row> {

    public static final TypeInformation<Row> TYPE = Types.ROW_NAMED(
        new String[] {"key", "value", "at", "emitted"}, Types.LONG, Types.LONG, Types.LONG, Types.LONG);
    private static final int TURN = 500; // rows under one hold of the checkpoint lock
    private static final long SHORTEST_SLEEP_NS = 100_000L;

    private final double periodNs;
    private final long keys;
    private final long startNs;
    private volatile boolean running = true;
    private long next;
    private transient ListState<Long> position;

    /** `startNs`: when row 0 is due. */
    public PacedSource(double rate, long keys, long startNs) {
        this.periodNs = 1e9 / rate;
        this.keys = keys;
        this.startNs = startNs;
    }

    @Override
    public void run(SourceContext<Row> context) {
        int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        int subtasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
        if (next == 0) {
            next = subtask;
        }
        while (running) {
            long now = Stamps.now();
            synchronized (context.getCheckpointLock()) {
                for (int made = 0; made < TURN && due(next) <= now; made++, next += subtasks) {
                    long random = Events.mixed(next);
                    long emitted = due(next);
                    context.collect(
                        Row.of(Events.key(random, keys), Events.value(random), emitted / 1_000_000L, emitted));
                }
            }
            long wait = due(next) - Stamps.now();
            if (wait > 0) {
                LockSupport.parkNanos(Math.max(wait, SHORTEST_SLEEP_NS));
            }
        }
    }

    private long due(long row) {
        return startNs + (long) (row * periodNs);
    }

    @Override
    public void cancel() {
        running = false;
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        position.clear();
        position.add(next);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        position = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("next", Types.LONG));
        for (long restored : position.get()) {
            next = restored;
        }
    }

    @Override
    public TypeInformation<Row> getProducedType() {
        return TYPE;
    }
}
