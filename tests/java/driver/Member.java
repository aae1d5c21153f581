package driver;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A consumer that polls all the time and keeps what it was told until somebody asks. */
final class Member implements Client, ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final List<List<Object>> received = new ArrayList<>();
    private final List<List<Object>> rebalances = new ArrayList<>();
    private final List<String> failures = new ArrayList<>();
    private volatile ConsumerGroupMetadata group;
    private final boolean inGroup;
    private boolean subscribedByPattern;

    Member(Map<String, Object> settings) {
        inGroup = settings.containsKey("group.id");
        consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** As of the last poll, for a producer that commits offsets for this member. */
    ConsumerGroupMetadata group() {
        return group;
    }

    @Override
    public boolean idle() {
        if (consumer.subscription().isEmpty() && consumer.assignment().isEmpty()
                && !subscribedByPattern) {
            return false;
        }
        try {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                received.add(Arrays.asList(
                        record.topic(), record.partition(), record.offset(),
                        text(record.key()), text(record.value())));
            }
            if (inGroup) {
                group = consumer.groupMetadata();
            }
        } catch (KafkaException failed) {
            failures.add(failed.getClass().getSimpleName() + ": " + failed.getMessage());
            consumer.unsubscribe();
            subscribedByPattern = false;
        }
        return true;
    }

    @Override
    public Object serve(Request request) {
        switch (request.what()) {
            case "subscribe" -> consumer.subscribe(request.texts("topics"), this);
            case "subscribe pattern" -> {
                consumer.subscribe(new SubscriptionPattern(request.text("pattern")), this);
                subscribedByPattern = true;
            }
            case "subscribe java pattern" -> {
                consumer.subscribe(Pattern.compile(request.text("pattern")), this);
                subscribedByPattern = true;
            }
            case "unsubscribe" -> {
                consumer.unsubscribe();
                subscribedByPattern = false;
            }
            case "assign" -> {
                consumer.assign(request.partitions("partitions"));
                if (request.flag("beginning")) {
                    consumer.seekToBeginning(consumer.assignment());
                }
            }
            case "seek" -> consumer.seek(
                    request.partitions("partitions").get(0), request.number("offset"));
            case "commit" -> commit(request);
            case "committed" -> {
                return committed(request);
            }
            case "positions" -> {
                return positions();
            }
            case "take" -> {
                List<List<Object>> taken = List.copyOf(received);
                received.clear();
                return taken;
            }
            case "state" -> {
                return state();
            }
            case "close" -> close(request);
            default -> throw new IllegalArgumentException(request.what());
        }
        return null;
    }

    private void commit(Request request) {
        if (request.has("offsets")) {
            consumer.commitSync(request.offsets("offsets"), PATIENCE);
        } else {
            consumer.commitSync(PATIENCE);
        }
    }

    private List<List<Object>> committed(Request request) {
        List<List<Object>> found = new ArrayList<>();
        consumer.committed(new HashSet<>(request.partitions("partitions")), PATIENCE)
                .forEach((at, offset) -> {
                    if (offset != null) {
                        found.add(List.of(
                                at.topic(), at.partition(), offset.offset(), offset.metadata()));
                    }
                });
        return found;
    }

    private List<List<Object>> positions() {
        List<List<Object>> found = new ArrayList<>();
        for (TopicPartition at : consumer.assignment()) {
            found.add(List.of(at.topic(), at.partition(), consumer.position(at, PATIENCE)));
        }
        return found;
    }

    private Map<String, Object> state() {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("assignment", plain(consumer.assignment()));
        found.put("rebalances", List.copyOf(rebalances));
        found.put("failures", List.copyOf(failures));
        ConsumerGroupMetadata last = group;
        if (last != null) {
            found.put("member", last.memberId());
            found.put("generation", last.generationId());
        }
        return found;
    }

    private void close(Request request) {
        CloseOptions options = CloseOptions.timeout(PATIENCE);
        if (request.has("leave")) {
            options = options.withGroupMembershipOperation(request.flag("leave")
                    ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP
                    : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP);
        }
        consumer.close(options);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        rebalances.add(List.of("assigned", plain(partitions)));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        rebalances.add(List.of("revoked", plain(partitions)));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        rebalances.add(List.of("lost", plain(partitions)));
    }

    static List<List<Object>> plain(Collection<TopicPartition> partitions) {
        List<List<Object>> found = new ArrayList<>();
        for (TopicPartition at : partitions) {
            found.add(List.of(at.topic(), at.partition()));
        }
        return found;
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
