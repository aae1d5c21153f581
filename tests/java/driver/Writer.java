package driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A producer, with or without transactions. */
final class Writer implements Client {
    private final KafkaProducer<byte[], byte[]> producer;
    private final Map<String, Member> members;

    Writer(Map<String, Object> settings, Map<String, Member> members) {
        this.members = members;
        producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public Object serve(Request request) throws Exception {
        switch (request.what()) {
            case "send" -> {
                return send(request);
            }
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send offsets" -> producer.sendOffsetsToTransaction(
                    request.offsets("offsets"), members.get(request.text("member")).group());
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(Duration.ofSeconds(request.flag("at once") ? 0 : 20));
            default -> throw new IllegalArgumentException(request.what());
        }
        return null;
    }

    /** Sends [partition, key, value] records; gives [partition, offset] of each. */
    private List<List<Object>> send(Request request) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode one : request.given().get("records")) {
            Integer partition = one.get(0).isNull() ? null : one.get(0).asInt();
            sent.add(producer.send(new ProducerRecord<>(
                    request.text("topic"), partition, bytes(one.get(1)), bytes(one.get(2)))));
        }
        if (!request.flag("unflushed")) {
            producer.flush();
        }
        List<List<Object>> placed = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            RecordMetadata metadata = one.get();
            placed.add(List.of(metadata.partition(), metadata.offset()));
        }
        return placed;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }
}
