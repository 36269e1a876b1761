// The JDK's own HTTP client, as Spring AI and LangChain4j use it: it offers HTTP/2 with every request ("Upgrade: h2c").
//
//     java JavaClient.java URL PATH BODY_FILE REPLY_FILE
//
// Posts the body three times: as text, whose length is known; as a stream, which is sent in chunks; and as text again,
// its reply read line by line as it comes. Writes the replies to REPLY_FILE.text, .chunked and .lines.
import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandler;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class JavaClient {
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    static <T> T sent(String url, BodyPublisher body, BodyHandler<T> handler) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
            .header("Content-Type", "application/json")
            .timeout(Duration.ofMinutes(5))
            .POST(body)
            .build();
        HttpResponse<T> response = CLIENT.send(request, handler);
        if (response.statusCode() != 200) {
            throw new IllegalStateException("status " + response.statusCode());
        }
        return response.body();
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0] + arguments[1];
        String body = Files.readString(Path.of(arguments[2]));
        String file = arguments[3];
        Files.writeString(Path.of(file + ".text"), sent(url, BodyPublishers.ofString(body), BodyHandlers.ofString()));
        BodyPublisher chunked = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body.getBytes()));
        Files.writeString(Path.of(file + ".chunked"), sent(url, chunked, BodyHandlers.ofString()));
        try (Stream<String> lines = sent(url, BodyPublishers.ofString(body), BodyHandlers.ofLines())) {
            Files.writeString(Path.of(file + ".lines"), lines.collect(Collectors.joining("\n", "", "\n")));
        }
    }
}
