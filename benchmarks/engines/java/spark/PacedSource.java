package bench.spark;

import bench.Events;
import bench.Stamps;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Rows on a schedule: row i is due at start + i / rate. A micro-batch takes all that are due when it is planned. Spark's
 *  own "rate" source releases whole seconds only, which would add up to a second. Options: rate, keys, splits. */
public final class PacedSource implements TableProvider {
    static final StructType SCHEMA = new StructType()
        .add("key", DataTypes.LongType, false)
        .add("value", DataTypes.LongType, false)
        .add("at", DataTypes.LongType, false)
        .add("emitted", DataTypes.LongType, false);

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new PacedTable();
    }

    static final class PacedTable implements SupportsRead {
        @Override
        public String name() {
            return "paced";
        }

        @Override
        @SuppressWarnings("deprecation")
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return EnumSet.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return () -> new PacedScan(
                options.getDouble("rate", 1.0), options.getLong("keys", 1), options.getInt("splits", 1));
        }
    }

    record PacedScan(double rate, long keys, int splits) implements Scan {
        @Override
        public StructType readSchema() {
            return SCHEMA;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
            return new PacedStream(rate, keys, splits);
        }
    }

    static final class Rows extends Offset {
        final long rows;

        Rows(long rows) {
            this.rows = rows;
        }

        @Override
        public String json() {
            return Long.toString(rows);
        }
    }

    static final class PacedStream implements MicroBatchStream {
        private final double periodNs;
        private final long keys;
        private final int splits;
        private final long startNs = Stamps.now();

        PacedStream(double rate, long keys, int splits) {
            this.periodNs = 1e9 / rate;
            this.keys = keys;
            this.splits = splits;
        }

        @Override
        public Offset initialOffset() {
            return new Rows(0);
        }

        @Override
        public Offset latestOffset() {
            return new Rows((long) ((Stamps.now() - startNs) / periodNs));
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new Rows(Long.parseLong(json));
        }

        @Override
        public void commit(Offset end) {}

        @Override
        public void stop() {}

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            InputPartition[] parts = new InputPartition[splits];
            for (int split = 0; split < splits; split++) {
                parts[split] = new Part(((Rows) start).rows, ((Rows) end).rows, split, splits, startNs, periodNs, keys);
            }
            return parts;
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers();
        }
    }

    record Part(long first, long end, int split, int splits, long startNs, double periodNs, long keys)
        implements InputPartition {}

    static final class Readers implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new Reader((Part) partition);
        }
    }

    static final class Reader implements PartitionReader<InternalRow> {
        private final Part part;
        private long row;

        Reader(Part part) {
            this.part = part;
            this.row = part.first() + Math.floorMod(part.split() - part.first(), (long) part.splits()) - part.splits();
        }

        @Override
        public boolean next() {
            row += part.splits();
            return row < part.end();
        }

        @Override
        public InternalRow get() {
            long random = Events.mixed(row);
            long emitted = part.startNs() + (long) (row * part.periodNs());
            return new GenericInternalRow(new Object[] {
                Events.key(random, part.keys()), Events.value(random), emitted / 1_000_000L, emitted});
        }

        @Override
        public void close() {}
    }
}
