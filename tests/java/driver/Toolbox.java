package driver;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's command line classes here, because starting a process for each takes too long. */
final class Toolbox implements Client {

    /** Thrown where a tool would end the process. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    private Integer code;

    @Override
    public Object serve(Request request) throws Exception {
        return switch (request.what()) {
            case "run" -> run(request.text("tool"), request.texts("arguments"),
                    request.has("input") ? request.text("input") : "");
            case "close" -> "";
            default -> throw new IllegalArgumentException(request.what());
        };
    }

    private Object run(String tool, List<String> arguments, String input) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        PrintStream outBefore = System.out;
        PrintStream errorsBefore = System.err;
        InputStream inBefore = System.in;
        code = null;
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        try {
            Class.forName(tool).getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(String[]::new));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                code = code == null ? 1 : code;
            }
        } finally {
            System.setOut(outBefore);
            System.setErr(errorsBefore);
            System.setIn(inBefore);
        }
        return Map.of(
                "code", code == null ? 0 : code,
                "out", out.toString(StandardCharsets.UTF_8),
                "errors", errors.toString(StandardCharsets.UTF_8));
    }

    /** The first status counts: some tools catch what is thrown here and end once more. */
    private void end(int status) {
        if (code == null) {
            code = status;
        }
        throw new Ended();
    }
}
