import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;

/** An application of JDBC: FILE STEP. */
public class JdbcShop {
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection("jdbc:sqlite:" + arguments[0])) {
            try (Statement statement = connection.createStatement()) {
                statement.execute("PRAGMA busy_timeout = 20000");
                statement.execute("PRAGMA foreign_keys = ON");
                if (arguments[1].equals("begin")) {
                    statement.execute("CREATE TABLE shop_project (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL)");
                    statement.execute("CREATE TABLE shop_task (id INTEGER PRIMARY KEY AUTOINCREMENT, title VARCHAR(100) NOT NULL, "
                        + "done BOOLEAN NOT NULL, project_id INTEGER NOT NULL REFERENCES shop_project (id) ON DELETE CASCADE)");
                    statement.execute("INSERT INTO shop_project (name) VALUES ('home')");
                    statement.execute("INSERT INTO shop_task (title, done, project_id) VALUES ('one', 0, 1), ('two', 1, 1)");
                    return;
                }
                statement.execute("PRAGMA journal_mode = WAL");
            }
            System.out.println(write(connection) + " keys");
        }
    }

    /** Thirty transactions of ten inserts each, of which one is replaced. */
    static int write(Connection connection) throws Exception {
        int keys = 0;
        String insert = "INSERT INTO shop_task (title, done, project_id) VALUES (?, ?, 1)";
        String replace = "INSERT OR REPLACE INTO shop_task (id, title, done, project_id) VALUES (?, 'replaced', 1, 1)";
        for (int round = 0; round < 30; round++) {
            try (Statement begin = connection.createStatement();
                PreparedStatement inserting = connection.prepareStatement(insert, Statement.RETURN_GENERATED_KEYS);
                PreparedStatement replacing = connection.prepareStatement(replace)) {
                begin.execute("BEGIN IMMEDIATE");
                long last = 0;
                for (int row = 0; row < 9; row++) {
                    inserting.setString(1, "round " + round);
                    inserting.setBoolean(2, row % 2 == 0);
                    inserting.executeUpdate();
                    try (ResultSet made = inserting.getGeneratedKeys()) {
                        made.next();
                        last = made.getLong(1);
                    }
                    keys++;
                }
                inserting.setString(1, "round " + round);
                inserting.setBoolean(2, true);
                inserting.addBatch();
                keys += inserting.executeBatch().length;
                replacing.setLong(1, last);
                replacing.executeUpdate();
                begin.execute("COMMIT");
            }
            Thread.sleep(10);
        }
        return keys;
    }
}
