import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends what it is told, without waiting for it, and says what was acknowledged, one JSON line each, until its input
 * ends. The first line is the configuration. What is not to be sent to a certain broker waits for news of another leader.
 */
public final class StrandedProducer {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Properties properties = new Properties();
        JSON.readTree(input.readLine()).properties().forEach(each -> properties.put(each.getKey(), each.getValue().asText()));
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
        String line;
        while ((line = input.readLine()) != null) {
            JsonNode record = JSON.readTree(line);
            String topic = record.get("topic").asText();
            String value = record.get("value").asText();
            while (record.has("not_to") && isLedBy(producer, topic, record.get("not_to").asInt())) {
                Thread.sleep(10);
            }
            producer.send(new ProducerRecord<>(topic, value), (where, error) -> {
                ObjectNode told = JSON.createObjectNode().put("value", value);
                told.put("failure", error == null ? null : error.toString());
                synchronized (JSON) {
                    System.out.println(told);
                }
            });
        }
        producer.close();
    }

    private static boolean isLedBy(KafkaProducer<String, String> producer, String topic, int broker) {
        Node leader = producer.partitionsFor(topic).get(0).leader();
        return leader == null || leader.id() == broker;
    }
}
