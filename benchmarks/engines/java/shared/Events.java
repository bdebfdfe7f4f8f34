package bench;

/** The arithmetic of benchmarks/events.py: row i has the same key and value in every engine. */
public final class Events {
    private Events() {}

    /** splitmix64. */
    public static long mixed(long number) {
        long z = number + 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    public static long key(long mixed, long keys) {
        return Long.remainderUnsigned(mixed >>> 20, keys);
    }

    public static long value(long mixed) {
        return Long.remainderUnsigned(mixed, 1_000L);
    }
}
