package bench.streams;

import bench.Stamps;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;

/** One real-time workload. Arguments are name=value; the names are in engines/kafka_streams.py. `conf.*` are settings of
 *  Kafka Streams. Says "bench: began|running|finished <ns>"; ends when standard input is closed. */
public final class StreamsJob {
    private StreamsJob() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        Properties settings = new Properties();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            if (parts[0].startsWith("conf.")) {
                settings.put(parts[0].substring("conf.".length()), parts[1]);
            } else {
                options.put(parts[0], parts[1]);
            }
        }
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        say("began");
        StreamsBuilder builder = new StreamsBuilder();
        build(builder, options, settings.getProperty("bootstrap.servers"));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch running = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        streams.start();
        running.await();
        say("running");
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        streams.close();
        say("finished");
    }

    private static void build(StreamsBuilder builder, Map<String, String> options, String bootstrap) throws Exception {
        KStream<String, String> records = builder.stream(options.get("topic_in"));
        KStream<String, String> result;
        switch (options.get("program")) {
            case "rtm-a":
                result = records.mapValues(
                    value -> Base64.getEncoder().encodeToString(value.getBytes(StandardCharsets.UTF_8)));
                break;
            case "rtm-b":
                result = records.map((key, value) -> KeyValue.pair(value, key))
                    .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                    .aggregate(() -> "0 ", StreamsJob::counted, Materialized.with(Serdes.String(), Serdes.String()))
                    .toStream()
                    .map((value, counted) -> {
                        int blank = counted.indexOf(' ');
                        return KeyValue.pair(counted.substring(blank + 1), counted.substring(0, blank + 1) + value);
                    });
                break;
            case "rtm-c":
                int digits = Integer.parseInt(options.get("id_digits"));
                GlobalKTable<String, String> names =
                    builder.globalTable(filled(bootstrap, options.get("topic_in") + "-names", options, digits));
                result = records.join(
                    names, (key, value) -> value.substring(0, digits), (value, name) -> name + " " + value);
                break;
            default:
                throw new IllegalArgumentException(options.get("program"));
        }
        result.to(options.get("topic_out"));
    }

    /** The state of a value: its count, a blank, and the key of its last record. */
    private static String counted(String value, String key, String before) {
        return (Long.parseLong(before.substring(0, before.indexOf(' '))) + 1) + " " + key;
    }

    /** The static table as a compacted topic. A restart finds the topic and writes the same rows again. */
    private static String filled(String bootstrap, String topic, Map<String, String> options, int digits)
        throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(config)) {
            NewTopic wanted = new NewTopic(topic, Optional.of(1), Optional.of((short) 1));
            admin.createTopics(List.of(wanted.configs(Map.of("cleanup.policy", "compact")))).all().get();
        } catch (java.util.concurrent.ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < Integer.parseInt(options.get("names")); number++) {
                producer.send(
                    new ProducerRecord<>(topic, String.format("%0" + digits + "d", number), "name-" + number));
            }
            producer.flush();
        }
        return topic;
    }

    private static void say(String what) {
        System.out.println("bench: " + what + " " + Stamps.now());
        System.out.flush();
    }
}
