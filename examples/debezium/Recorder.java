import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Prints each change event of a database as a line of JSON, until its standard input ends. */
public class Recorder {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ObjectMapper json = new ObjectMapper();
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(settings)
                .using((succeeded, message, error) -> {
                    if (!succeeded) {
                        System.err.println(message);
                        System.exit(1);
                    }
                })
                .notifying(event -> {
                    Map<String, String> line = new LinkedHashMap<>();
                    line.put("topic", event.destination());
                    line.put("key", event.key());
                    line.put("value", event.value());
                    try {
                        out.println(json.writeValueAsString(line));
                    } catch (Exception error) {
                        throw new IllegalStateException(error);
                    }
                })
                .build();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        while (System.in.read() >= 0) {
        }
        engine.close();
        executor.shutdown();
    }
}
