package driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** One line from outside: which client is to do what, and with what. */
record Request(long id, String client, String what, JsonNode given) {

    static Request of(JsonNode line) {
        return new Request(
                line.get("id").asLong(),
                line.get("client").asText(),
                line.get("what").asText(),
                line.get("given"));
    }

    boolean has(String name) {
        return given.hasNonNull(name);
    }

    String text(String name) {
        if (!has(name)) {
            throw new IllegalArgumentException(what + " needs " + name);
        }
        return given.get(name).asText();
    }

    long number(String name) {
        text(name);
        return given.get(name).asLong();
    }

    boolean flag(String name) {
        return has(name) && given.get(name).asBoolean();
    }

    List<String> texts(String name) {
        List<String> found = new ArrayList<>();
        for (JsonNode one : given.path(name)) {
            found.add(one.asText());
        }
        return found;
    }

    Map<String, String> settings(String name) {
        Map<String, String> found = new HashMap<>();
        given.path(name).properties().forEach(
                entry -> found.put(entry.getKey(), entry.getValue().asText()));
        return found;
    }

    /** A list of [topic, partition]. */
    List<TopicPartition> partitions(String name) {
        List<TopicPartition> found = new ArrayList<>();
        for (JsonNode one : given.path(name)) {
            found.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt()));
        }
        return found;
    }

    /** A list of [topic, partition, offset]. */
    Map<TopicPartition, OffsetAndMetadata> offsets(String name) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        for (JsonNode one : given.path(name)) {
            found.put(
                    new TopicPartition(one.get(0).asText(), one.get(1).asInt()),
                    new OffsetAndMetadata(one.get(2).asLong(), one.path(3).asText("")));
        }
        return found;
    }
}
