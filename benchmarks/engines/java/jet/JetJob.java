package bench.jet;

import bench.Stamps;
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.accumulator.LongAccumulator;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.core.ProcessorMetaSupplier;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sink;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.Sources;
import com.hazelcast.jet.pipeline.StreamSource;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.atomic.AtomicBoolean;

/** The running count per key in one embedded member, exactly once. Arguments are name=value; the names are in
 *  engines/jet.py. Says "bench: began|running|finished <ns>" on standard output; ends when standard input is closed. */
public final class JetJob {
    private JetJob() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        int parallelism = Integer.parseInt(options.get("parallelism"));
        say("began");
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config(parallelism));
        Job job = member.getJet().newJob(
            pipeline(
                Double.parseDouble(options.get("rate")),
                Long.parseLong(options.get("keys")),
                parallelism,
                options.get("folder")),
            new JobConfig()
                .setName("bench")
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(Long.parseLong(options.get("interval_ms"))));
        waitFor(job);
    }

    /** A member that looks for no others and reports to nobody. */
    private static Config config(int threads) {
        Config config = new Config();
        config.setClusterName("bench-" + ProcessHandle.current().pid());
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.getJetConfig().setEnabled(true).setCooperativeThreadCount(threads);
        config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        return config;
    }

    /** Rows are {key, emitted}, then {key, n, emitted}. */
    private static Pipeline pipeline(double rate, long keys, int parallelism, String folder) {
        long startNs = Stamps.now();
        StreamSource<long[]> events = Sources.streamFromProcessor("events",
            ProcessorMetaSupplier.of(parallelism, () -> new PacedSource(rate, keys, startNs)));
        Sink<long[]> measured = Sinks.fromProcessor("measured",
            ProcessorMetaSupplier.of(parallelism, () -> new MeasuringSink(folder, 2)));
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(events)
            .withoutTimestamps()
            .setLocalParallelism(parallelism)
            .groupingKey(row -> row[0])
            .mapStateful(LongAccumulator::new, (count, key, row) -> {
                count.add(1);
                return new long[] {key, count.get(), row[1]};
            })
            .setLocalParallelism(parallelism)
            .writeTo(measured)
            .setLocalParallelism(parallelism);
        return pipeline;
    }

    /** A cancellation that was asked for is a good end. */
    private static void waitFor(Job job) {
        AtomicBoolean asked = new AtomicBoolean();
        Thread listener = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    Thread.onSpinWait();
                }
                asked.set(true);
                job.cancel();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        listener.setDaemon(true);
        listener.start();
        say("running");
        try {
            job.join();
        } catch (CancellationException error) {
            if (!asked.get()) {
                error.printStackTrace();
                System.exit(1);
            }
        } catch (RuntimeException error) {
            error.printStackTrace();
            System.exit(1);
        }
        say("finished");
        Hazelcast.shutdownAll();
        System.exit(0);
    }

    private static void say(String what) {
        System.out.println("bench: " + what + " " + Stamps.now());
        System.out.flush();
    }
}
