package bench.flink;

import java.util.HashMap;
import java.util.Map;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.ScalarFunction;

/** The look-up of Nexmark's q13 in a table that is in memory: 10,000 keys, each with its text. */
public final class SideValue extends ScalarFunction {
    private static final long ROWS = 10_000;

    private transient Map<Long, String> values;

    @Override
    public void open(FunctionContext context) {
        values = new HashMap<>();
        for (long key = 0; key < ROWS; key++) {
            values.put(key, "value-" + key);
        }
    }

    public String eval(Long auction) {
        return auction == null ? null : values.get(auction % ROWS);
    }
}
