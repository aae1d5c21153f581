package driver;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;

/** Kafka's Java clients, driven from outside: a request per line comes in, an answer goes out. */
public final class Driver {
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();
    private final Map<String, Member> members = new ConcurrentHashMap<>();
    private final Answers answers;

    private Driver(Answers answers) {
        this.answers = answers;
    }

    public static void main(String[] arguments) throws IOException {
        ObjectMapper mapper = new ObjectMapper();
        Driver driver = new Driver(new Answers(mapper, System.out));
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            driver.accept(Request.of(mapper.readTree(line)));
        }
        // Clients are left as they are: who wants them to say goodbye closes them before.
        Runtime.getRuntime().halt(0);
    }

    private void accept(Request request) {
        if (request.what().startsWith("open ")) {
            Worker worker = new Worker(request, opening(request), answers);
            workers.put(request.client(), worker);
            worker.start();
            return;
        }
        Worker worker = workers.get(request.client());
        if (worker == null) {
            answers.failure(request, new IllegalStateException("no client " + request.client()));
        } else {
            worker.submit(request);
        }
    }

    private Callable<Client> opening(Request request) {
        Map<String, Object> settings = Map.copyOf(request.settings("settings"));
        return () -> switch (request.what()) {
            case "open producer" -> new Writer(settings, members);
            case "open admin" -> new Administrator(settings);
            case "open toolbox" -> new Toolbox();
            case "open consumer" -> {
                Member member = new Member(settings);
                members.put(request.client(), member);
                yield member;
            }
            default -> throw new IllegalArgumentException(request.what());
        };
    }
}
