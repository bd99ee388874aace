import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client behind a pipe: one JSON request a line on stdin, one JSON answer a line on stdout, so that one
 * JVM serves a whole test run. Bytes travel as base64. A refusal is answered with its Kafka error code.
 */
public final class InteropClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] arguments) throws IOException {
        new InteropClient().serve();
    }

    private void serve() throws IOException {
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", perform(JSON.readTree(line)));
            } catch (Exception failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                answer.put("error", cause.getClass().getSimpleName());
                answer.put("message", String.valueOf(cause.getMessage()));
                answer.put("code", Errors.forException(cause).code());
            }
            say(answer);
        }
    }

    private static void say(ObjectNode message) throws IOException {
        System.out.println(JSON.writeValueAsString(message));
        System.out.flush();
    }

    private JsonNode perform(JsonNode request) throws Exception {
        return switch (request.get("op").asText()) {
            case "produce" -> produce(request);
            case "produce_numbered" -> produceNumbered(request);
            case "consume" -> consume(request);
            case "offsets" -> offsets(request);
            case "offset_for_time" -> offsetForTime(request);
            case "create" -> create(request);
            case "list" -> list(request);
            case "describe" -> describe(request);
            case "delete" -> delete(request);
            default -> throw new IllegalArgumentException(request.get("op").asText());
        };
    }

    private static Properties properties(JsonNode request) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", request.get("bootstrap").asText());
        request.path("config").forEachEntry((name, value) -> properties.put(name, value.asText()));
        return properties;
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode request) {
        return new KafkaProducer<>(properties(request), new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode request) {
        Properties properties = properties(request);
        properties.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private JsonNode produce(JsonNode request) throws Exception {
        ArrayNode result = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = producer(request)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : request.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.get("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                JsonNode partition = record.get("partition");
                JsonNode timestamp = record.get("timestamp_ms");
                sent.add(producer.send(new ProducerRecord<>(
                        request.get("topic").asText(),
                        partition.isNull() ? null : partition.asInt(),
                        timestamp.isNull() ? null : timestamp.asLong(),
                        bytes(record.get("key")),
                        bytes(record.get("value")),
                        headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get(120, TimeUnit.SECONDS);
                result.addArray().add(metadata.partition()).add(metadata.hasOffset() ? metadata.offset() : -1);
            }
        }
        return result;
    }

    /**
     * Sends the numbers from 0 as values, in turn to each partition. Says {"event": "running"} when the first
     * part is acknowledged, and holds the last part back until a line arrives on stdin.
     */
    private JsonNode produceNumbered(JsonNode request) throws Exception {
        int count = request.get("count").asInt();
        int partitions = request.get("partitions").asInt();
        int announceAt = request.get("announce_at").asInt();
        int holdFrom = request.get("hold_from").asInt();
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(request)) {
            for (int number = 0; number < count; number++) {
                if (number == holdFrom) {
                    input.readLine();
                }
                byte[] value = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                producer.send(
                        new ProducerRecord<>(request.get("topic").asText(), number % partitions, null, value),
                        (metadata, problem) -> {
                            if (problem != null) {
                                failure.compareAndSet(null, problem);
                            } else if (acknowledged.incrementAndGet() == announceAt) {
                                System.out.println("{\"event\": \"running\"}");
                                System.out.flush();
                            }
                        });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return JSON.getNodeFactory().numberNode(acknowledged.get());
    }

    private JsonNode consume(JsonNode request) throws Exception {
        ArrayNode result = JSON.createArrayNode();
        TopicPartition partition =
                new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        int count = request.get("count").asInt();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(request.get("timeout_seconds").asLong());
        KafkaConsumer<byte[], byte[]> consumer = consumer(request);
        try {
            consumer.assign(List.of(partition));
            consumer.seek(partition, request.get("start").asLong());
            while (result.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (result.isEmpty() && request.path("announce_first").asBoolean()) {
                        say(JSON.createObjectNode().put("event", "first"));
                    }
                    ObjectNode node = result.addObject();
                    node.put("partition", record.partition());
                    node.put("offset", record.offset());
                    node.put("timestamp_ms", record.timestamp());
                    node.put("log_append_time", record.timestampType().id == 1);
                    node.put("key", text(record.key()));
                    node.put("value", text(record.value()));
                    ArrayNode headers = node.putArray("headers");
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key()).add(text(header.value()));
                    }
                }
            }
        } finally {
            // An orderly close would wait for the fetch that is under way, as long as that may take.
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        }
        return result;
    }

    private JsonNode offsets(JsonNode request) {
        ObjectNode result = JSON.createObjectNode();
        List<TopicPartition> partitions = new ArrayList<>();
        for (JsonNode partition : request.get("partitions")) {
            partitions.add(new TopicPartition(request.get("topic").asText(), partition.asInt()));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            Map<TopicPartition, Long> first = consumer.beginningOffsets(partitions);
            Map<TopicPartition, Long> last = consumer.endOffsets(partitions);
            for (TopicPartition partition : partitions) {
                result.putArray(Integer.toString(partition.partition()))
                        .add(first.get(partition)).add(last.get(partition));
            }
        }
        return result;
    }

    private JsonNode offsetForTime(JsonNode request) {
        TopicPartition partition =
                new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            OffsetAndTimestamp found =
                    consumer.offsetsForTimes(Map.of(partition, request.get("timestamp_ms").asLong())).get(partition);
            return found == null ? JSON.nullNode() : JSON.getNodeFactory().numberNode(found.offset());
        }
    }

    private JsonNode create(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.path("configs").forEachEntry((name, value) -> configs.put(name, value.asText()));
        NewTopic topic = new NewTopic(
                request.get("topic").asText(), Optional.of(request.get("partitions").asInt()), Optional.empty());
        try (Admin admin = Admin.create(properties(request))) {
            admin.createTopics(List.of(topic.configs(configs))).all().get(120, TimeUnit.SECONDS);
        }
        return JSON.getNodeFactory().booleanNode(true);
    }

    private JsonNode list(JsonNode request) throws Exception {
        try (Admin admin = Admin.create(properties(request))) {
            return JSON.valueToTree(admin.listTopics().names().get(120, TimeUnit.SECONDS));
        }
    }

    private JsonNode describe(JsonNode request) throws Exception {
        String name = request.get("topic").asText();
        ObjectNode result = JSON.createObjectNode();
        try (Admin admin = Admin.create(properties(request))) {
            TopicDescription topic =
                    admin.describeTopics(List.of(name)).allTopicNames().get(120, TimeUnit.SECONDS).get(name);
            ArrayNode partitions = result.putArray("partitions");
            topic.partitions().forEach(partition -> partitions.addObject()
                    .put("partition", partition.partition())
                    .put("leader", partition.leader() == null ? -1 : partition.leader().id())
                    .put("replicas", partition.replicas().size())
                    .put("isr", partition.isr().size()));
            result.put("has_topic_id", !topic.topicId().equals(org.apache.kafka.common.Uuid.ZERO_UUID));
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
            Map<String, String> configs = new LinkedHashMap<>();
            admin.describeConfigs(List.of(resource)).all().get(120, TimeUnit.SECONDS).get(resource).entries()
                    .forEach(entry -> configs.put(entry.name(), entry.value()));
            result.set("configs", JSON.valueToTree(configs));
            result.put("cluster_id", admin.describeCluster().clusterId().get(120, TimeUnit.SECONDS));
            result.put("brokers", admin.describeCluster().nodes().get(120, TimeUnit.SECONDS).size());
        }
        return result;
    }

    private JsonNode delete(JsonNode request) throws Exception {
        try (Admin admin = Admin.create(properties(request))) {
            admin.deleteTopics(List.of(request.get("topic").asText())).all().get(120, TimeUnit.SECONDS);
        }
        return JSON.getNodeFactory().booleanNode(true);
    }
}
