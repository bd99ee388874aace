import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;
import org.apache.kafka.coordinator.group.classic.ClassicGroup;
import org.apache.kafka.coordinator.group.classic.ClassicGroupState;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * The records of Kafka's own group coordinator behind a pipe: one JSON request a line on stdin, one JSON answer a line
 * on stdout. Turns bytes to the JSON of Kafka's tools and back, and gives records that the coordinator itself makes.
 */
public final class GroupRecords {
    // The encoding of stdout depends on the machine's locale, so only ASCII goes there.
    private static final ObjectMapper JSON =
            JsonMapper.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build();
    private static final String GENERATED = "org.apache.kafka.coordinator.group.generated.";
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();

    private GroupRecords() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", perform(JSON.readTree(line)));
            } catch (Exception failure) {
                answer.put("error", failure.getClass().getSimpleName());
                answer.put("message", String.valueOf(failure.getMessage()));
                answer.put("code", -1);
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static JsonNode perform(JsonNode request) throws Exception {
        return switch (request.get("op").asText()) {
            case "decode" -> decode(request);
            case "encode" -> encode(request);
            case "written" -> written();
            default -> throw new IllegalArgumentException(request.get("op").asText());
        };
    }

    private static ObjectNode decode(JsonNode request) throws Exception {
        CoordinatorRecord record =
                SERDE.deserialize(buffer(request.get("key")), buffer(request.get("value")));
        ObjectNode answer = JSON.createObjectNode();
        answer.put("type", record.key().apiKey());
        answer.set("key", CoordinatorRecordJsonConverters.writeRecordKeyAsJson(record.key()));
        short version = record.value().version();
        answer.put("version", version);
        answer.set("value", CoordinatorRecordJsonConverters.writeRecordValueAsJson(record.value().message(), version));
        return answer;
    }

    private static ObjectNode encode(JsonNode request) throws Exception {
        short version = request.get("version").shortValue();
        ApiMessage key = message(request.get("key_name").asText(), request.get("key"), (short) 0);
        ApiMessage value = message(request.get("value_name").asText(), request.get("value"), version);
        return bytes(CoordinatorRecord.record(key, new ApiMessageAndVersion(value, version)));
    }

    /** Every message class has a converter beside it, whose static method reads JSON. */
    private static ApiMessage message(String name, JsonNode fields, short version) throws Exception {
        Class<?> converter = Class.forName(GENERATED + name + "JsonConverter");
        return (ApiMessage) converter.getMethod("read", JsonNode.class, short.class).invoke(null, fields, version);
    }

    /** Records that are made by the coordinator's own functions, which choose the version. */
    private static ArrayNode written() {
        Uuid topicId = new Uuid(3, 4);
        Uuid noId = Uuid.ZERO_UUID;
        long now = 1_700_000_000_000L;
        OptionalLong never = OptionalLong.empty();
        OffsetAndMetadata usual = new OffsetAndMetadata(42, OptionalInt.of(7), "note", now, never, topicId);
        OffsetAndMetadata nameless = new OffsetAndMetadata(42, OptionalInt.empty(), "", now, never, noId);
        OffsetAndMetadata expiring =
                new OffsetAndMetadata(42, OptionalInt.empty(), "note", now, OptionalLong.of(now + 123), noId);
        ClassicGroup empty = new ClassicGroup(new LogContext(), "group", ClassicGroupState.EMPTY, Time.SYSTEM);
        ArrayNode answer = JSON.createArrayNode();
        for (CoordinatorRecord record : List.of(
                GroupCoordinatorRecordHelpers.newOffsetCommitRecord("group", "topic", 5, usual),
                GroupCoordinatorRecordHelpers.newOffsetCommitRecord("group", "topic", 5, nameless),
                GroupCoordinatorRecordHelpers.newOffsetCommitRecord("group", "topic", 5, expiring),
                GroupCoordinatorRecordHelpers.newEmptyGroupMetadataRecord(empty),
                GroupCoordinatorRecordHelpers.newConsumerGroupEpochRecord("group", 3, 99L),
                GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentMetadataRecord("group", 3, 0L),
                GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentRecord(
                        "group", "member", Map.of(topicId, Set.of(1))))) {
            answer.add(bytes(record));
        }
        return answer;
    }

    private static ObjectNode bytes(CoordinatorRecord record) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("key", SERDE.serializeKey(record));
        answer.put("value", SERDE.serializeValue(record));
        return answer;
    }

    private static ByteBuffer buffer(JsonNode text) {
        return ByteBuffer.wrap(Base64.getDecoder().decode(text.asText()));
    }
}
