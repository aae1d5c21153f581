package driver;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.common.TopicPartition;

/** What an administrator sees of producers and transactions. */
final class TransactionAdministration {
    private final Admin admin;

    TransactionAdministration(Admin admin) {
        this.admin = admin;
    }

    Object serve(Request request) throws Exception {
        return switch (request.what()) {
            case "describe producers" -> producers(request);
            case "describe transaction" -> describe(request);
            case "list transactions" -> list(request);
            case "abort transaction" -> admin.abortTransaction(new AbortTransactionSpec(
                    request.partitions("partitions").get(0),
                    request.number("producer"),
                    (short) request.number("epoch"),
                    (int) request.number("coordinator"))).all().get();
            case "terminate transaction" -> admin.forceTerminateTransaction(
                    request.text("transactional id")).result().get();
            case "fence producers" -> admin.fenceProducers(request.texts("transactional ids"))
                    .all().get();
            default -> throw new IllegalArgumentException(request.what());
        };
    }

    private Object producers(Request request) throws Exception {
        TopicPartition at = request.partitions("partitions").get(0);
        List<Object> found = new ArrayList<>();
        for (ProducerState one
                : admin.describeProducers(List.of(at)).all().get().get(at).activeProducers()) {
            found.add(Map.of(
                    "id", one.producerId(),
                    "epoch", one.producerEpoch(),
                    "sequence", one.lastSequence(),
                    "coordinator", one.coordinatorEpoch().orElse(-1),
                    "start", one.currentTransactionStartOffset().orElse(-1)));
        }
        return found;
    }

    private Object describe(Request request) throws Exception {
        String name = request.text("transactional id");
        TransactionDescription one =
                admin.describeTransactions(List.of(name)).all().get().get(name);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("state", one.state().toString());
        found.put("producer", one.producerId());
        found.put("epoch", one.producerEpoch());
        found.put("timeout_ms", one.transactionTimeoutMs());
        found.put("started", one.transactionStartTimeMs().isPresent());
        found.put("partitions", Member.plain(one.topicPartitions()));
        return found;
    }

    private Object list(Request request) throws Exception {
        ListTransactionsOptions options = new ListTransactionsOptions();
        if (request.has("states")) {
            options = options.filterStates(
                    request.texts("states").stream().map(TransactionState::parse).toList());
        }
        if (request.has("pattern")) {
            options = options.filterOnTransactionalIdPattern(request.text("pattern"));
        }
        Map<String, Object> found = new TreeMap<>();
        for (TransactionListing one : admin.listTransactions(options).all().get()) {
            found.put(one.transactionalId(), one.state().toString());
        }
        return found;
    }
}
