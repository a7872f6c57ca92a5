//! Parts of tables on which the server's role can't make triggers (PostgreSQL).

use headwater_consolidated::check::{self, Severity};
use headwater_consolidated::{Backend as _, Connection, Plan, track};

use super::database::{Database, plan};
use super::grants::by_role;
use super::replica::{Replica, Synced};
use super::table_identity::whole;

const TABLES: &str = "
    CREATE TABLE member (user_name text NOT NULL, area text NOT NULL);
    INSERT INTO member VALUES ('ben', 'north');
    CREATE TABLE log (id bigint, area text, note text, PRIMARY KEY (id, area)) PARTITION BY LIST (area);
    CREATE TABLE log_south PARTITION OF log FOR VALUES IN ('south');
    CREATE TABLE page (id bigint PRIMARY KEY, log bigint, area text, note text);
    CREATE TABLE old (id bigint PRIMARY KEY, note text);
    INSERT INTO old VALUES (1, 'old');
    CREATE TABLE other (id bigint PRIMARY KEY, note text);
    INSERT INTO other VALUES (1, 'other')";

const MODEL: &str = r#"
    name = "parts"
    version = 1

    [partitions.area]
    columns = { area = "text" }
    members = "SELECT area FROM member WHERE user_name = :s.user"

    [tables.log]
    key = ["id", "area"]
    partition = "area"
    columns = { id = "int not null", area = "text not null", note = "text" }

    [tables.page]
    key = ["id"]
    partition = { through = "log" }
    references = [{ columns = ["log", "area"], table = "log" }]
    columns = { id = "int not null", log = "int", area = "text", note = "text" }

    [tables.old]
    key = ["id"]
    columns = { id = "int not null", note = "text" }

    [tables.other]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
"#;

/// A server whose role owns the tables, but not all of their parts.
struct Served<'d> {
    database: &'d Database,
    plan: Plan,
    connection: Box<dyn Connection>,
    role: String,
    ben: Replica,
}

impl Served<'_> {
    fn new(database: &Database) -> Served<'_> {
        database.application(TABLES);
        database.application("CREATE SCHEMA headwater");
        let (role, backend) = by_role(database);
        database.application(&format!(
            "ALTER SCHEMA headwater OWNER TO {role}; GRANT CREATE ON DATABASE {} TO {role}",
            &role[5..]
        ));
        for table in ["log", "log_south", "page", "old", "other"] {
            database.application(&format!("ALTER TABLE {table} OWNER TO {role}"));
        }
        let (plan, mut connection) = (plan(MODEL), backend.connect().expect("connected"));
        track::track(&mut *connection, &plan).expect("tracked");
        let mut served = Served { database, plan, connection, role, ben: Replica::new("ben") };
        served.sync();
        served
    }

    fn sync(&mut self) -> Synced {
        let synced = self.ben.try_sync(&mut *self.connection, &self.plan).expect("synced");
        self.ben.assert_equals_fresh(self.database, &self.plan);
        synced
    }

    /// The names of the tables that come whole after this.
    fn whole(&mut self, statements: &str) -> Vec<String> {
        self.database.application(statements);
        let synced = self.sync();
        whole(&self.plan, &synced)
    }

    /// The statements that `check` gives for parts, by table.
    fn mends(&mut self) -> Vec<(String, String)> {
        let findings = check::privileges(&mut *self.connection, &self.plan).expect("checked");
        let found = findings.into_iter().filter(|finding| finding.code == "part_not_tracked");
        let statement = |mend: &str| mend.split('`').nth(1).expect("a statement").to_owned();
        found
            .map(|finding| {
                assert_eq!(finding.severity, Severity::Error);
                (finding.table.expect("a table"), statement(&finding.mend))
            })
            .collect()
    }
}

/// What is written directly to a part of another owner can't be noted: its table comes whole at each sync until a person mends that.
pub(crate) fn a_part_out_of_reach_brings_its_table_whole(database: &Database) {
    let mut served = Served::new(database);
    let none: [&str; 0] = [];
    assert_eq!(served.whole("INSERT INTO other VALUES (2, 'noted')"), none);
    assert_eq!(served.mends(), []);
    let role = served.role.clone();
    let made = "CREATE TABLE log_north PARTITION OF log FOR VALUES IN ('north'); CREATE TABLE older (PRIMARY KEY (id)) INHERITS (old); \
                CREATE SCHEMA hidden; CREATE TABLE hidden.oldest (PRIMARY KEY (id)) INHERITS (old)";
    database.application(&format!("{made}; ALTER TABLE hidden.oldest OWNER TO {role}"));
    let mends = [
        ("log".to_owned(), format!("ALTER TABLE \"public\".\"log_north\" OWNER TO {role}")),
        ("old".to_owned(), format!("GRANT USAGE ON SCHEMA \"hidden\" TO {role}")),
        ("old".to_owned(), format!("ALTER TABLE \"public\".\"older\" OWNER TO {role}")),
    ];
    assert_eq!(served.mends(), mends, "before a sync has found them");
    for writes in [
        "INSERT INTO log_north VALUES (1, 'north', 'direct'), (2, 'north', 'direct'); INSERT INTO older VALUES (2, 'direct'); \
         INSERT INTO page VALUES (1, 1, 'north', 'below'), (2, 2, 'north', 'below')",
        "UPDATE log_north SET note = 'again' WHERE id = 1; DELETE FROM log_north WHERE id = 2; INSERT INTO hidden.oldest VALUES (3, 'x')",
        "INSERT INTO log VALUES (3, 'north', 'through'); DELETE FROM older",
    ] {
        assert_eq!(served.whole(writes), ["log", "old", "page"], "{writes}");
    }
    track::track(&mut *served.connection, &served.plan).expect("the rest is tracked");
    assert_eq!(check::parts_out_of_reach(&mut *served.connection, &served.plan).expect("looked").len(), 3);
    assert_eq!(served.mends(), mends);
    assert_eq!(served.whole("INSERT INTO log_north VALUES (4, 'north', 'direct')"), ["log", "old", "page"]);
    for (_, mend) in &mends {
        database.application(mend);
    }
    assert_eq!(served.mends(), []);
    track::track(&mut *served.connection, &served.plan).expect("tracked");
    assert_eq!(served.whole("INSERT INTO log_north VALUES (5, 'north', 'direct')"), ["log", "old", "page"]);
    let writes = "INSERT INTO log_north VALUES (6, 'north', 'noted'); UPDATE hidden.oldest SET note = 'noted'; INSERT INTO older VALUES (9, 'x')";
    assert_eq!(served.whole(writes), none, "all is noted");
}
