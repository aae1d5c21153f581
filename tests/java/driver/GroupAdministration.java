package driver;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;

/** What an administrator does with groups and their offsets. */
final class GroupAdministration {
    private final Admin admin;

    GroupAdministration(Admin admin) {
        this.admin = admin;
    }

    Object serve(Request request) throws Exception {
        return switch (request.what()) {
            case "list groups" -> list(request);
            case "describe group" -> describe(request);
            case "group offsets" -> offsets(request);
            case "alter group offsets" -> admin.alterConsumerGroupOffsets(
                    request.text("group"), request.offsets("offsets")).all().get();
            case "delete group offsets" -> admin.deleteConsumerGroupOffsets(
                    request.text("group"), Set.copyOf(request.partitions("partitions")))
                    .all().get();
            case "delete groups" -> admin.deleteConsumerGroups(request.texts("groups")).all().get();
            case "remove from group" -> remove(request);
            default -> throw new IllegalArgumentException(request.what());
        };
    }

    private Object list(Request request) throws Exception {
        ListGroupsOptions options = new ListGroupsOptions();
        if (request.has("states")) {
            options = options.inGroupStates(request.texts("states").stream()
                    .map(GroupState::parse).collect(Collectors.toSet()));
        }
        if (request.has("types")) {
            options = options.withTypes(request.texts("types").stream()
                    .map(GroupType::parse).collect(Collectors.toSet()));
        }
        Map<String, Object> found = new TreeMap<>();
        for (GroupListing one : admin.listGroups(options).all().get()) {
            found.put(one.groupId(), List.of(
                    one.type().map(GroupType::toString).orElse(""),
                    one.groupState().map(GroupState::toString).orElse(""),
                    one.protocol()));
        }
        return found;
    }

    private Object describe(Request request) throws Exception {
        String name = request.text("group");
        ConsumerGroupDescription group =
                admin.describeConsumerGroups(List.of(name)).all().get().get(name);
        List<Object> members = new ArrayList<>();
        for (MemberDescription one : group.members()) {
            Map<String, Object> member = new LinkedHashMap<>();
            member.put("id", one.consumerId());
            member.put("client", one.clientId());
            member.put("host", one.host());
            member.put("instance", one.groupInstanceId().orElse(null));
            member.put("assignment", Member.plain(one.assignment().topicPartitions()));
            one.targetAssignment().ifPresent(
                    target -> member.put("target", Member.plain(target.topicPartitions())));
            one.memberEpoch().ifPresent(epoch -> member.put("epoch", epoch));
            members.add(member);
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("type", group.type().toString());
        found.put("state", group.groupState().toString());
        found.put("assignor", group.partitionAssignor());
        found.put("coordinator", group.coordinator().id());
        group.groupEpoch().ifPresent(epoch -> found.put("epoch", epoch));
        found.put("members", members);
        return found;
    }

    private Object offsets(Request request) throws Exception {
        List<List<Object>> found = new ArrayList<>();
        admin.listConsumerGroupOffsets(request.text("group"))
                .partitionsToOffsetAndMetadata().get()
                .forEach((at, offset) -> found.add(List.of(
                        at.topic(), at.partition(), offset.offset(), offset.metadata())));
        return found;
    }

    private Object remove(Request request) throws Exception {
        var leaving = request.texts("instances").stream()
                .map(MemberToRemove::new).collect(Collectors.toSet());
        var options = leaving.isEmpty()
                ? new RemoveMembersFromConsumerGroupOptions()
                : new RemoveMembersFromConsumerGroupOptions(leaving);
        return admin.removeMembersFromConsumerGroup(request.text("group"), options).all().get();
    }
}
