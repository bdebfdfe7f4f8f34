package bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.UUID;

/** A file of pairs (intended emission, now), little-endian nanoseconds since the epoch. One thread writes. */
public final class Stamps implements AutoCloseable {
    private static final int PAIRS = 4096;
    private static final long FLUSH_NS = 500_000_000L;

    private final FileChannel file;
    private final ByteBuffer buffer = ByteBuffer.allocateDirect(PAIRS * 16).order(ByteOrder.LITTLE_ENDIAN);
    private long flushedNs = now();

    public Stamps(String folder) {
        Path path = Path.of(folder, "rows-" + UUID.randomUUID() + ".bin");
        try {
            file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public static long now() {
        Instant instant = Instant.now();
        return instant.getEpochSecond() * 1_000_000_000L + instant.getNano();
    }

    public void add(long intendedNs) {
        long now = now();
        buffer.putLong(intendedNs).putLong(now);
        if (!buffer.hasRemaining() || now - flushedNs > FLUSH_NS) {
            flush();
        }
    }

    public void flush() {
        buffer.flip();
        try {
            while (buffer.hasRemaining()) {
                file.write(buffer);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        buffer.clear();
        flushedNs = now();
    }

    @Override
    public void close() {
        flush();
        try {
            file.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
