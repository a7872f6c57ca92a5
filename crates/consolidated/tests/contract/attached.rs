//! Tracked tables, and parts of them, that are below other tables, tracked or not: a partition of one, or a table that inherits.

use headwater_consolidated::check::{Finding, Severity, check};
use headwater_consolidated::{Connection, Plan, track};

use super::database::{Database, plan};
use super::replica::Replica;
use super::table_identity::whole;

const MODEL: &str = r#"
    name = "m"
    version = 1
    [tables.whole]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.piece]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.below]
    key = ["id"]
    references = [{ columns = ["piece"], table = "piece" }]
    columns = { id = "int not null", piece = "int" }
"#;

pub(crate) fn a_tracked_table_becomes_a_partition(database: &Database) {
    database.application(
        "CREATE TABLE whole (id bigint NOT NULL PRIMARY KEY, note text) PARTITION BY RANGE (id); \
         CREATE TABLE piece (id bigint NOT NULL PRIMARY KEY, note text); \
         CREATE TABLE below (id bigint NOT NULL PRIMARY KEY, piece bigint REFERENCES piece (id))",
    );
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("INSERT INTO piece VALUES (1, 'one'), (2, 'two'); INSERT INTO below VALUES (1, 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut check = |sql: &str, rows: [usize; 2]| {
        database.application(sql);
        remote.sync(database, &plan);
        remote.assert_equals_fresh(database, &plan);
        assert_eq!(["whole", "piece"].map(|table| remote.table(&plan, table).len()), rows, "{sql}");
    };
    check("ALTER TABLE whole ATTACH PARTITION piece FOR VALUES FROM (0) TO (10)", [2, 2]);
    check("INSERT INTO piece VALUES (3, 'x'); UPDATE piece SET note = 'y' WHERE id = 1", [3, 3]);
    check(
        "INSERT INTO whole VALUES (4, 'x'); UPDATE whole SET note = 'z' WHERE id = 1; DELETE FROM whole WHERE id = 4",
        [3, 3],
    );
    check("INSERT INTO whole VALUES (4, 'x'); DELETE FROM whole WHERE id = 3", [3, 3]);
    check("UPDATE whole SET id = 3 WHERE id = 4", [3, 3]);
    check(
        "SET session_replication_role = replica; INSERT INTO piece VALUES (5, 'x'); DELETE FROM piece WHERE id = 2",
        [3, 3],
    );
    check("ALTER TABLE whole DETACH PARTITION piece", [0, 3]);
    check("INSERT INTO piece VALUES (6, 'y')", [0, 4]);
}

const BELOW: &str = r#"
    name = "below"
    version = 1
    [partitions.area]
    columns = { area = "text" }
    members = "SELECT 'north' AS area"
    [tables.solo]
    key = ["id"]
    partition = "area"
    columns = { id = "int not null", area = "text not null", note = "text" }
    [tables.line]
    key = ["id"]
    partition = { through = "solo" }
    references = [{ columns = ["solo"], table = "solo" }]
    columns = { id = "int not null", solo = "int" }
    [tables.log]
    key = ["id", "area"]
    partition = "area"
    columns = { id = "int not null", area = "text not null", note = "text" }
    [tables.pa]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.pb]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.other]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
"#;

const BELOW_TABLES: &str = "
    CREATE TABLE solo (id bigint PRIMARY KEY, area text NOT NULL, note text);
    CREATE TABLE line (id bigint PRIMARY KEY, solo bigint REFERENCES solo (id));
    CREATE INDEX ON line (solo);
    CREATE TABLE log (id bigint NOT NULL, area text NOT NULL, note text, PRIMARY KEY (id, area)) PARTITION BY LIST (area);
    CREATE TABLE log_north PARTITION OF log FOR VALUES IN ('north');
    CREATE TABLE pa (id bigint PRIMARY KEY, note text);
    CREATE TABLE pb (id bigint PRIMARY KEY, note text);
    CREATE TABLE kid (PRIMARY KEY (id)) INHERITS (pa);
    CREATE TABLE other (id bigint PRIMARY KEY, note text);
    CREATE TABLE big (id bigint NOT NULL, area text NOT NULL, note text) PARTITION BY RANGE (id);
    CREATE TABLE bigger (id bigint NOT NULL, area text NOT NULL, note text) PARTITION BY RANGE (id);
    INSERT INTO solo SELECT g, 'north', 'n' FROM generate_series(1, 6) g;
    INSERT INTO line SELECT g, g FROM generate_series(1, 6) g;
    INSERT INTO log SELECT g, 'north', 'n' FROM generate_series(1, 6) g;
    INSERT INTO pa VALUES (1, 'pa');
    INSERT INTO pb VALUES (2, 'pb');
    INSERT INTO kid SELECT g, 'kid' FROM generate_series(11, 16) g";

/// A remote of a model whose tables are attached below others.
struct Below<'d> {
    database: &'d Database,
    plan: Plan,
    connection: Box<dyn Connection>,
    remote: Replica,
}

impl Below<'_> {
    fn new(database: &Database) -> Below<'_> {
        database.application(BELOW_TABLES);
        let plan = plan(BELOW);
        track::track(&mut *database.connect(), &plan).expect("tracked");
        let remote = Replica::synced(database, &plan, "anna");
        Below { database, plan, connection: database.connect(), remote }
    }

    /// The tables that come whole after this.
    fn whole(&mut self, statements: &str) -> Vec<String> {
        self.database.application(statements);
        let synced = self.remote.try_sync(&mut *self.connection, &self.plan).expect("synced");
        self.remote.assert_equals_fresh(self.database, &self.plan);
        whole(&self.plan, &synced)
    }

    /// The tables that `check` names, each with the statement of which it says that it ends the state.
    fn warned(&mut self) -> Vec<(String, String)> {
        let found = check(&mut *self.connection, &self.plan).expect("checked");
        assert!(found.iter().all(|finding| finding.severity == Severity::Warning), "{found:?}");
        let statement = |finding: &Finding| finding.mend.split('`').nth(1).expect("a statement").to_owned();
        let found = found.into_iter().filter(|finding| finding.code == "parent_not_followed");
        found.map(|finding| (finding.table.clone().expect("a table"), statement(&finding))).collect()
    }

    /// Each of the statements that `check` gives is run, and then all is noted.
    fn ends(&mut self, named: &[(&str, &str)], whole: &[&str], last: &str) {
        let named: Vec<_> = named.iter().map(|(table, mend)| ((*table).to_owned(), (*mend).to_owned())).collect();
        assert_eq!(self.warned(), named);
        assert_eq!(track::track(&mut *self.database.connect(), &self.plan).expect("looked"), [] as [String; 0]);
        let mends = named.iter().map(|(_, mend)| mend.as_str()).collect::<Vec<_>>().join("; ");
        assert_eq!(self.whole(&format!("{last}; {mends}")), whole, "what went before the end is not lost");
        assert_eq!(self.warned(), []);
        assert_eq!(
            self.whole("INSERT INTO other SELECT max(id) + 1, 'x' FROM (SELECT id FROM other UNION SELECT 0) o"),
            [] as [&str; 0]
        );
    }
}

/// A statement on a table above fires no trigger of a tracked one: the table comes whole at each sync.
pub(crate) fn what_is_written_through_a_table_above_comes(database: &Database) {
    let mut below = Below::new(database);
    let none: [&str; 0] = [];
    assert_eq!(below.warned(), []);
    assert_eq!(below.whole("UPDATE solo SET note = 'noted' WHERE id = 1"), none);
    // A table becomes a partition of one that is not tracked, together with what is written through that one.
    let written = "INSERT INTO big VALUES (50, 'north', 'b'); UPDATE big SET note = 'b' WHERE id = 1; \
                   UPDATE big SET area = 'south' WHERE id = 2; DELETE FROM line WHERE id = 3; DELETE FROM big WHERE id = 3";
    let attached = format!("ALTER TABLE big ATTACH PARTITION solo FOR VALUES FROM (0) TO (100); {written}");
    assert_eq!(below.whole(&attached), ["line", "solo"]);
    assert_eq!(below.whole("UPDATE big SET note = 'c'; UPDATE big SET area = 'south' WHERE id = 4"), ["line", "solo"]);
    below.remote.sync(database, &below.plan);
    below.ends(
        &[("solo", "ALTER TABLE \"public\".\"big\" DETACH PARTITION \"public\".\"solo\"")],
        &["line", "solo"],
        "UPDATE big SET note = 'd'; DELETE FROM line WHERE id = 5; DELETE FROM big WHERE id = 5",
    );
    // It comes and goes between two downloads.
    let visit = "ALTER TABLE big ATTACH PARTITION solo FOR VALUES FROM (0) TO (100); UPDATE big SET note = 'visit'; \
                 ALTER TABLE big DETACH PARTITION solo";
    assert_eq!(below.whole(visit), ["line", "solo"]);
    assert_eq!(below.whole("UPDATE solo SET note = 'noted' WHERE id = 1"), none);
    // A partitioned table goes below a larger one.
    let attached =
        "ALTER TABLE bigger ATTACH PARTITION log FOR VALUES FROM (0) TO (100); DELETE FROM bigger WHERE id = 1";
    assert_eq!(below.whole(attached), ["log"]);
    assert_eq!(
        below.whole("UPDATE bigger SET note = 'c'; TRUNCATE bigger; INSERT INTO bigger VALUES (9, 'north', 'x')"),
        ["log"]
    );
    below.ends(
        &[("log", "ALTER TABLE \"public\".\"bigger\" DETACH PARTITION \"public\".\"log\"")],
        &["log"],
        "UPDATE bigger SET note = 'd'",
    );
    // A part of one table becomes a part of another one.
    assert_eq!(below.whole("UPDATE pa SET note = 'noted' WHERE id = 12"), none);
    assert_eq!(below.whole("ALTER TABLE kid INHERIT pb; UPDATE pb SET note = 'via pb' WHERE id = 13"), ["pa", "pb"]);
    for writes in ["DELETE FROM pa WHERE id = 14; DELETE FROM pb WHERE id = 15", "UPDATE kid SET note = 'kid'"] {
        assert_eq!(below.whole(writes), ["pa", "pb"], "{writes}");
    }
    below.ends(
        &[
            ("pa", "ALTER TABLE \"public\".\"kid\" NO INHERIT \"public\".\"pb\""),
            ("pb", "ALTER TABLE \"public\".\"kid\" NO INHERIT \"public\".\"pa\""),
        ],
        &["pa", "pb"],
        "UPDATE pb SET note = 'last' WHERE id = 11; UPDATE pa SET note = 'last' WHERE id = 12",
    );
    // A part inherits from a table that is not tracked.
    let inherits = "CREATE TABLE asset (note text); ALTER TABLE kid INHERIT pa, INHERIT asset";
    assert_eq!(below.whole(inherits), ["pa"]);
    let mend = "ALTER TABLE \"public\".\"kid\" NO INHERIT \"public\".\"asset\"";
    below.ends(&[("pa", mend)], &["pa"], "UPDATE asset SET note = 'last'");
    // It inherits from a table that is not tracked: no answer to a query on it is kept either.
    let is_watched = |below: &mut Below<'_>| below.connection.watch("SELECT note FROM other").expect("asked").is_some();
    assert!(is_watched(&mut below));
    let inherits = "ALTER TABLE other INHERIT asset; UPDATE asset SET note = 'via asset'";
    assert_eq!(below.whole(inherits), ["other"]);
    assert!(!is_watched(&mut below));
    let mend = "ALTER TABLE \"public\".\"other\" NO INHERIT \"public\".\"asset\"";
    below.ends(&[("other", mend)], &["other"], "UPDATE asset SET note = 'last'");
    assert!(is_watched(&mut below));
}
