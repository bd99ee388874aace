import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group that says what it is given and what it has processed, one JSON line each, until its
 * input ends. Takes the settings and prints the lines of tests/support/group_member.py, with the same clock.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws Exception {
        JsonNode settings = JSON.readTree(arguments[0]);
        AtomicBoolean over = new AtomicBoolean();
        Thread input = new Thread(() -> waitForEndOfInput(over));
        input.setDaemon(true);
        input.start();
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties(settings));
        subscribe(consumer, settings);
        while (!over.get()) {
            sayProcessed(consumer.poll(POLL));
        }
        say("closing", JSON.createObjectNode());
        consumer.close();
        say("closed", JSON.createObjectNode());
    }

    private static void waitForEndOfInput(AtomicBoolean over) {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException broken) {
            // No more input either way.
        }
        over.set(true);
    }

    private static Properties properties(JsonNode settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", settings.get("bootstrap").asText());
        properties.put("group.id", settings.get("group").asText());
        if (!settings.get("instance").isNull()) {
            properties.put("group.instance.id", settings.get("instance").asText());
        }
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("auto.offset.reset", "earliest");
        // Each poll commits what the polls before it gave.
        properties.put("enable.auto.commit", "true");
        properties.put("auto.commit.interval.ms", "200");
        properties.put("metadata.max.age.ms", "1000");
        settings.get("config").properties().forEach(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private static void subscribe(KafkaConsumer<byte[], byte[]> consumer, JsonNode settings) {
        List<String> topics = new ArrayList<>();
        settings.get("topics").forEach(topic -> topics.add(topic.asText()));
        String first = topics.get(0);
        if (!first.startsWith("^")) {
            consumer.subscribe(topics, new GroupMember());
        } else if (settings.get("config").path("group.protocol").asText().equals("consumer")) {
            consumer.subscribe(new SubscriptionPattern(first), new GroupMember());
        } else {
            consumer.subscribe(Pattern.compile(first), new GroupMember());
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        sayPartitions("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        sayPartitions("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        sayPartitions("lost", partitions);
    }

    private static void sayPartitions(String event, Collection<TopicPartition> partitions) {
        ArrayNode named = JSON.createArrayNode();
        partitions.forEach(one -> named.addArray().add(one.topic()).add(one.partition()));
        ObjectNode fields = JSON.createObjectNode();
        fields.set("partitions", named);
        say(event, fields);
    }

    private static void sayProcessed(ConsumerRecords<byte[], byte[]> records) {
        ArrayNode runs = JSON.createArrayNode();
        for (TopicPartition partition : records.partitions()) {
            long first = -1;
            long last = -1;
            for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                if (first >= 0 && record.offset() != last + 1) {
                    addRun(runs, partition, first, last);
                    first = -1;
                }
                first = first < 0 ? record.offset() : first;
                last = record.offset();
            }
            addRun(runs, partition, first, last);
        }
        if (!runs.isEmpty()) {
            ObjectNode fields = JSON.createObjectNode();
            fields.set("runs", runs);
            say("processed", fields);
        }
    }

    private static void addRun(ArrayNode runs, TopicPartition partition, long first, long last) {
        runs.addArray().add(partition.topic()).add(partition.partition()).add(first).add(last);
    }

    private static synchronized void say(String event, ObjectNode fields) {
        fields.put("event", event);
        // The same clock as Python's time.monotonic() on Linux.
        fields.put("at", System.nanoTime() / 1e9);
        System.out.println(fields);
        System.out.flush();
    }
}
