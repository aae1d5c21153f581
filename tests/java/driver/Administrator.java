package driver;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** An administrator: topics, settings and the cluster here, the rest with its assistants. */
final class Administrator implements Client {
    private final Admin admin;
    private final GroupAdministration groups;
    private final TransactionAdministration transactions;

    Administrator(Map<String, Object> settings) {
        admin = Admin.create(settings);
        groups = new GroupAdministration(admin);
        transactions = new TransactionAdministration(admin);
    }

    @Override
    public Object serve(Request request) throws Exception {
        if (request.what().contains("group")) {
            return groups.serve(request);
        }
        if (request.what().contains("producers") || request.what().contains("transaction")) {
            return transactions.serve(request);
        }
        return switch (request.what()) {
            case "create topic" -> createTopic(request);
            case "create partitions" -> admin.createPartitions(Map.of(
                    request.text("topic"),
                    NewPartitions.increaseTo((int) request.number("count")))).all().get();
            case "delete topics" -> admin.deleteTopics(request.texts("topics")).all().get();
            case "list topics" -> admin.listTopics().names().get();
            case "describe topics" -> describeTopics(request);
            case "configs" -> configs(request);
            case "alter configs" -> alterConfigs(request);
            case "offsets" -> offsets(request);
            case "delete records" -> deleteRecords(request);
            case "cluster" -> cluster();
            case "log dirs" -> logDirs(request);
            case "features" -> features();
            case "elect leaders" -> admin.electLeaders(
                    ElectionType.PREFERRED, Set.copyOf(request.partitions("partitions")))
                    .all().get();
            case "reassign" -> reassign(request);
            case "reassignments" -> admin.listPartitionReassignments().reassignments().get().size();
            case "close" -> {
                admin.close(Duration.ofSeconds(10));
                yield null;
            }
            default -> throw new IllegalArgumentException(request.what());
        };
    }

    private Object createTopic(Request request) throws Exception {
        NewTopic topic = new NewTopic(
                request.text("topic"),
                request.has("partitions")
                        ? Optional.of((int) request.number("partitions")) : Optional.empty(),
                Optional.empty());
        var made = admin.createTopics(List.of(topic.configs(request.settings("configs"))));
        made.all().get();
        return Map.of(
                "id", made.topicId(request.text("topic")).get().toString(),
                "partitions", made.numPartitions(request.text("topic")).get());
    }

    private Object describeTopics(Request request) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (TopicDescription topic
                : admin.describeTopics(request.texts("topics")).allTopicNames().get().values()) {
            List<List<Object>> partitions = new ArrayList<>();
            topic.partitions().forEach(one -> partitions.add(List.of(
                    one.partition(), one.leader().id(),
                    one.replicas().stream().map(Node::id).toList(),
                    one.isr().stream().map(Node::id).toList())));
            found.put(topic.name(), Map.of(
                    "id", topic.topicId().toString(),
                    "internal", topic.isInternal(),
                    "partitions", partitions));
        }
        return found;
    }

    private static ConfigResource resource(Request request) {
        return new ConfigResource(
                ConfigResource.Type.valueOf(request.text("type")), request.text("name"));
    }

    private Object configs(Request request) throws Exception {
        ConfigResource resource = resource(request);
        Map<String, Object> found = new TreeMap<>();
        for (ConfigEntry entry
                : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            List<Object> one = new ArrayList<>();
            one.add(entry.value());
            one.add(entry.source().name());
            found.put(entry.name(), one);
        }
        return found;
    }

    private Object alterConfigs(Request request) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.settings("set").forEach((name, value) -> changes.add(
                new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        request.texts("delete").forEach(name -> changes.add(
                new AlterConfigOp(new ConfigEntry(name, ""), AlterConfigOp.OpType.DELETE)));
        request.settings("append").forEach((name, value) -> changes.add(
                new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.APPEND)));
        return admin.incrementalAlterConfigs(Map.of(resource(request), changes)).all().get();
    }

    private Object offsets(Request request) throws Exception {
        OffsetSpec which = switch (request.text("at")) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(request.number("at"));
        };
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        request.partitions("partitions").forEach(at -> asked.put(at, which));
        IsolationLevel isolation = request.flag("committed")
                ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        List<List<Object>> found = new ArrayList<>();
        admin.listOffsets(asked, new ListOffsetsOptions(isolation)).all().get().forEach(
                (at, answer) -> found.add(
                        List.of(at.topic(), at.partition(), answer.offset())));
        return found;
    }

    private Object deleteRecords(Request request) throws Exception {
        Map<TopicPartition, RecordsToDelete> before = new HashMap<>();
        List<TopicPartition> partitions = request.partitions("offsets");
        for (int i = 0; i < partitions.size(); i++) {
            long offset = request.given().get("offsets").get(i).get(2).asLong();
            before.put(partitions.get(i), RecordsToDelete.beforeOffset(offset));
        }
        var deleted = admin.deleteRecords(before).lowWatermarks();
        List<List<Object>> found = new ArrayList<>();
        for (TopicPartition at : before.keySet()) {
            found.add(List.of(
                    at.topic(), at.partition(), deleted.get(at).get().lowWatermark()));
        }
        return found;
    }

    private Object cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        List<List<Object>> nodes = new ArrayList<>();
        for (Node node : cluster.nodes().get()) {
            nodes.add(List.of(node.id(), node.host() + ":" + node.port()));
        }
        return Map.of(
                "id", cluster.clusterId().get(),
                "controller", cluster.controller().get().id(),
                "nodes", nodes);
    }

    private Object logDirs(Request request) throws Exception {
        Map<String, Object> sizes = new TreeMap<>();
        var all = admin.describeLogDirs(List.of((int) request.number("node")))
                .allDescriptions().get();
        for (Map<String, LogDirDescription> directories : all.values()) {
            for (LogDirDescription one : directories.values()) {
                if (one.error() != null) {
                    throw one.error();
                }
                one.replicaInfos().forEach((at, info) -> sizes.put(at.toString(), info.size()));
            }
        }
        return sizes;
    }

    private Object features() throws Exception {
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        Map<String, Object> found = new LinkedHashMap<>();
        features.finalizedFeatures().forEach(
                (name, range) -> found.put(name, (int) range.maxVersionLevel()));
        return found;
    }

    private Object reassign(Request request) throws Exception {
        List<Integer> replicas = new ArrayList<>();
        request.texts("replicas").forEach(one -> replicas.add(Integer.parseInt(one)));
        Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
        for (TopicPartition at : new HashSet<>(request.partitions("partitions"))) {
            wanted.put(at, replicas.isEmpty()
                    ? Optional.empty() : Optional.of(new NewPartitionReassignment(replicas)));
        }
        return admin.alterPartitionReassignments(wanted).all().get();
    }
}
