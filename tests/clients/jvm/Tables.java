// Transactions by pgJDBC: a line of JSON on the standard input has the address, properties and statements of one.
// The answer is a line: how many rows each statement has changed, or the refusal. The classpath is the folder lib.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

public class Tables {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      Map<String, Object> answer = new LinkedHashMap<>(Map.of("rows", List.of(), "state", "", "message", "", "detail", ""));
      try {
        answer.put("rows", write(json.readTree(line)));
      } catch (SQLException failure) {
        // That of a batch has the refusal of its row behind it.
        SQLException refused = failure.getNextException() == null ? failure : failure.getNextException();
        ServerErrorMessage error = refused instanceof PSQLException one ? one.getServerErrorMessage() : null;
        answer.put("state", refused.getSQLState());
        answer.put("message", refused.getMessage());
        answer.put("detail", error == null || error.getDetail() == null ? "" : error.getDetail());
      }
      System.out.println(json.writeValueAsString(answer));
    }
  }

  /** Statements with parameters are a batch: a list that begins with the text. */
  static List<Integer> write(JsonNode asked) throws Exception {
    Properties properties = new Properties();
    asked.get("properties").fields().forEachRemaining(one -> properties.put(one.getKey(), one.getValue().asText()));
    List<Integer> rows = new ArrayList<>();
    try (Connection connection = DriverManager.getConnection(asked.get("url").asText(), properties)) {
      connection.setAutoCommit(false);
      for (JsonNode statement : asked.get("statements")) {
        try (PreparedStatement prepared = connection.prepareStatement(statement.get(0).asText())) {
          for (int row = 1; row < statement.size(); row++) {
            for (int column = 0; column < statement.get(row).size(); column++)
              prepared.setObject(column + 1, json(statement.get(row).get(column)));
            prepared.addBatch();
          }
          if (statement.size() > 1) for (int count : prepared.executeBatch()) rows.add(count);
          else rows.add(prepared.execute() ? -1 : prepared.getUpdateCount());
        }
      }
      connection.commit();
    }
    return rows;
  }

  static Object json(JsonNode value) {
    return value.isNumber() ? (Object) value.asLong() : value.asText();
  }
}
