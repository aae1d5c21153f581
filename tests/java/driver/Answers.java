package driver;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;

/** What goes back: one line of JSON for each request, in the order things finish. */
final class Answers {
    private final ObjectMapper mapper;
    private final PrintStream out;

    Answers(ObjectMapper mapper, PrintStream out) {
        this.mapper = mapper;
        this.out = out;
    }

    void result(Request request, Object result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", request.id());
        line.put("result", result);
        print(line);
    }

    void failure(Request request, Exception failed) {
        Throwable cause = failed;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", request.id());
        line.put("error", cause.getClass().getSimpleName());
        String because = cause.getCause() == null ? "" : ": " + cause.getCause().getMessage();
        line.put("text", cause.getMessage() + because);
        print(line);
    }

    private void print(Map<String, Object> line) {
        try {
            String text = mapper.writeValueAsString(line);
            synchronized (out) {
                out.println(text);
                out.flush();
            }
        } catch (JsonProcessingException wrong) {
            throw new IllegalStateException(wrong);
        }
    }
}
