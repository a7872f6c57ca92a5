//! Tables that are tracked for named queries alone, as the documentation says: nothing is synced.

use std::time::Duration;

use headwater_testkit::wait_until;

use super::{Stage, TABLES, change, get, postgres};

const PATIENCE: Duration = Duration::from_mins(1);
const TARGET: &str = "/q/flights.csv?origin=JFK";

/// The lines of the documentation's blocks in this language, in their order.
fn lines(language: &str) -> Vec<String> {
    let text = include_str!("../../../../docs/gateway.md");
    let section = text.split("### Tracked tables\n").nth(1).and_then(|text| text.split("\n## ").next());
    let begin = format!("```{language}\n");
    let blocks = section.expect("the section").split(&begin).skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    lines.map(str::to_owned).collect()
}

impl Stage {
    /// Runs a command of the documentation on this database.
    fn documented(&self, line: &str, url: &str) -> String {
        let arguments: Vec<&str> = line.split(' ').skip(1).collect();
        let placed: Vec<&str> =
            arguments.iter().map(|word| if word.starts_with("postgres://") { url } else { word }).collect();
        self.ok(&placed)
    }
}

/// What the record of changes does not tell is seen by nobody who has not run the query.
fn is_asked_of_change_tracking(stage: &mut Stage, url: &str, untold: &str) {
    let address = stage.serve();
    change(stage, url, "INSERT INTO flight (id) VALUES (8)");
    let (_, first) = get(&address, TARGET, "");
    change(stage, url, untold);
    let (head, second) = get(&address, TARGET, "");
    assert_eq!(second, first, "the query is not run: {head}");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    assert!(get(&address, TARGET, &format!("If-None-Match: {tag}\r\n")).0.starts_with("http/1.1 304"));
    change(stage, url, "INSERT INTO flight VALUES (9, 'JFK', 1, '1.00')");
    assert!(get(&address, TARGET, "").1.contains("9,1,1.00"));
    let (head, _) = get(&address, "/v1/model", "");
    assert!(head.starts_with("http/1.1 404"), "nothing is synced: {head}");
    stage.stop();
}

#[test]
fn sqlite_tables_are_tracked_as_documented() {
    const UNTOLD: &str = "UPDATE flight SET delay = 6 WHERE id = 1; \
                          UPDATE headwater_table_change SET version = version - 1 WHERE table_name = 'flight'";
    let mut stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(TABLES);
    let url = format!("sqlite:{}", stage.path("central.db").display());
    let commands = lines("sh");
    for line in &commands[..4] {
        stage.documented(line, &url);
    }
    is_asked_of_change_tracking(&mut stage, "sqlite:", UNTOLD);
    assert!(stage.documented(&commands[4], &url).contains("no longer tracked: 1 table"));
}

#[test]
fn postgres_tables_are_tracked_as_documented() {
    const UNTOLD: &str = "BEGIN; UPDATE flight SET delay = 6 WHERE id = 1; \
                          DELETE FROM headwater.table_change WHERE transaction = pg_current_xact_id(); COMMIT";
    let url = postgres();
    headwater_testkit::sql(&url, &TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables");
    let database = url.rsplit('/').next().expect("a name").to_owned();
    let reader = format!("reader_{database}");
    let role = format!(
        "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC; CREATE ROLE {reader} LOGIN; GRANT SELECT ON flight TO {reader}"
    );
    headwater_testkit::sql(&url, &role).expect("a role");
    let mut stage = Stage::alone(&url.replace("postgres@", &format!("{reader}@")));
    let commands = lines("sh");
    for line in &commands[..4] {
        stage.documented(line, &url);
    }
    // Until it is granted, that is said once, and the query is run.
    stage.serve();
    let said = || stage.log();
    assert!(wait_until(PATIENCE, || said().contains("may not ask change tracking")), "{}", said());
    let grants: Vec<String> = lines("sql")
        .iter()
        .map(|line| {
            line.replace("DATABASE shop", &format!("DATABASE {database}")).replace("TO reader", &format!("TO {reader}"))
        })
        .collect();
    assert_eq!(grants.len(), 4);
    for grant in &grants {
        assert!(said().contains(grant.trim_end_matches(';')), "{grant}: {}", said());
    }
    assert_eq!(said().matches("may not ask change tracking").count(), 1);
    stage.stop();

    headwater_testkit::sql(&url, &grants.join("\n")).expect("granted");
    is_asked_of_change_tracking(&mut stage, &url, UNTOLD);
    assert!(stage.documented(&commands[4], &url).contains("no longer tracked: 1 table"));
}
