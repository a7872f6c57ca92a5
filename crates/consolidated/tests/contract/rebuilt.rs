//! What is done to the tables of a SQLite file by statements that no trigger sees.

use headwater_consolidated::{Connection, Error, Plan, track};

use super::database::Database;
use super::replica::Replica;
use super::values::{customer, text};

/// A database with rows, a remote that has them and an edit of its own, and a connection that runs on.
struct Story {
    database: Database,
    plan: Plan,
    remote: Replica,
    running: Box<dyn Connection>,
}

impl Story {
    fn new() -> Story {
        let database = Database::sqlite();
        let plan = database.standard();
        database.application(
            "INSERT INTO customer VALUES (1, 'a', 'Ada', 10), (2, 'b', 'Bob', 20), (3, 'c', 'Cid', 30); \
             INSERT INTO orders VALUES (1, 'north', 'one'), (2, 'south', 'two'); \
             INSERT INTO line VALUES (1, 1, 'north', '5.00'), (2, 1, 'south', '6.00')",
        );
        let mut running = database.connect();
        let mut remote = Replica::new("anna");
        remote.try_sync(&mut *running, &plan).expect("a first sync");
        remote.update(&plan, "customer", customer(1, "a", "edited", 11));
        Story { database, plan, remote, running }
    }

    /// Syncs over the connection that has run all the time. Gives how many partitions came whole.
    fn sync(&mut self, event: &str) -> u64 {
        let synced = self.remote.try_sync(&mut *self.running, &self.plan);
        let synced = synced.unwrap_or_else(|error| panic!("{event}: {error}"));
        let edited = self.database.number("SELECT count(*) FROM customer WHERE id = 1 AND name = 'edited'");
        assert_eq!((synced.outcomes().len(), edited), (0, 1), "{event}: what was pending is at the head");
        self.remote.assert_equals_fresh(&self.database, &self.plan);
        synced.summary.partitions_whole
    }
}

/// The triggers of `customer` as they are, to be dropped and made again.
fn triggers_of(database: &Database, table: &str) -> Vec<(String, String)> {
    let sql =
        format!("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}' ORDER BY rowid");
    let words = |value: &headwater_protocol::Value| match value {
        headwater_protocol::Value::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    database.rows(&sql).iter().map(|row| (words(&row[0]), words(&row[1]))).collect()
}

fn dropped(triggers: &[(String, String)]) -> String {
    triggers.iter().map(|(name, _)| format!("DROP TRIGGER \"{name}\"; ")).collect::<Vec<_>>().concat()
}

fn made_again(triggers: &[(String, String)]) -> String {
    triggers.iter().map(|(_, sql)| format!("{sql}; ")).collect::<Vec<_>>().concat()
}

/// Customer 2 gets another name and customer 3 goes, while the table is rebuilt.
const COPIED: &str =
    "INSERT INTO made SELECT id, code, CASE id WHEN 2 THEN 'Bea' ELSE name END, changed FROM customer WHERE id <> 3; ";
const SHAPE: &str = "(id INTEGER NOT NULL PRIMARY KEY, code text NOT NULL UNIQUE, name text, changed INTEGER)";

pub(crate) fn a_table_rebuilt_with_its_triggers_comes_whole() {
    let twelve_steps = |triggers: &[(String, String)]| {
        format!(
            "PRAGMA foreign_keys = OFF; BEGIN; CREATE TABLE made {SHAPE}; {COPIED} DROP TABLE customer; \
             ALTER TABLE made RENAME TO customer; {} COMMIT",
            made_again(triggers)
        )
    };
    // Under the very same text.
    let by_the_same_text = |triggers: &[(String, String)]| {
        let text =
            "(\n        id INTEGER NOT NULL PRIMARY KEY, code text NOT NULL UNIQUE, name text, changed INTEGER\n    )";
        format!(
            "BEGIN; CREATE TEMP TABLE made AS SELECT * FROM customer WHERE id <> 3; UPDATE made SET name = 'Bea' WHERE id = 2; \
             DROP TABLE customer; CREATE TABLE customer {text}; INSERT INTO customer SELECT * FROM made; {} COMMIT",
            made_again(triggers)
        )
    };
    let away_and_back = |triggers: &[(String, String)]| {
        format!(
            "BEGIN; {} UPDATE customer SET name = 'Bea' WHERE id = 2; DELETE FROM customer WHERE id = 3; {} COMMIT",
            dropped(triggers),
            made_again(triggers)
        )
    };
    type Event<'e> = &'e dyn Fn(&[(String, String)]) -> String;
    let events: [(&str, Event<'_>); 3] = [
        ("twelve steps", &twelve_steps),
        ("the same text", &by_the_same_text),
        ("triggers away and back", &away_and_back),
    ];
    for (event, sql) in events {
        for after in ["", "VACUUM"] {
            let mut story = Story::new();
            let sql = sql(&triggers_of(&story.database, "customer"));
            story.database.application(&sql);
            story.database.application(after);
            assert!(story.sync(event) >= 1, "{event} {after}");
            assert_eq!(story.remote.table(&story.plan, "customer").len(), 2, "{event} {after}");
            assert_eq!(story.remote.table(&story.plan, "customer")[1], customer(2, "b", "Bea", 20));
            assert_eq!(story.sync(event), 0, "{event} {after}: once");
        }
    }
}

pub(crate) fn columns_that_are_not_what_they_were_come_whole() {
    for (event, sql) in [
        (
            "columns exchanged by rename",
            "ALTER TABLE orders RENAME COLUMN note TO n; ALTER TABLE orders RENAME COLUMN region TO note; \
             ALTER TABLE orders RENAME COLUMN n TO region; ",
        ),
        ("a column dropped and added", "ALTER TABLE orders DROP COLUMN note; ALTER TABLE orders ADD COLUMN note text"),
        (
            "a column dropped and added, with other work beside",
            "CREATE TABLE one (id INTEGER); ALTER TABLE orders DROP COLUMN note; CREATE INDEX two ON one (id); \
             ALTER TABLE orders ADD COLUMN note text; DROP TABLE one; VACUUM",
        ),
    ] {
        let mut story = Story::new();
        if event.contains("exchanged") {
            // The triggers name the partition's column, and are rewritten.
            story.database.application(sql);
            let refused = story.remote.try_sync(&mut *story.running, &story.plan).map(|_| ()).expect_err(event);
            assert!(matches!(&refused, Error::Untracked { table, .. } if table == "orders"), "{refused:?}");
            let before = incarnation(&story.database);
            track::track(&mut *story.database.connect(), &story.plan).expect("tracked again");
            assert_ne!(incarnation(&story.database), before, "all remotes start afresh");
            assert!(story.sync(event) > 1, "all tables");
            continue;
        }
        story.database.application(sql);
        assert!(story.sync(event) >= 1, "{event}");
        assert!(story.remote.table(&story.plan, "orders").iter().all(|row| row[2].is_null()), "{event}");
        assert_eq!(story.sync(event), 0, "{event}: once");
    }
}

fn incarnation(database: &Database) -> [u8; 16] {
    headwater_consolidated::system::identity(&mut *database.connect()).expect("an identity").incarnation
}

/// Columns that no trigger names: the table comes whole, and no other. The triggers name the columns of unique indexes, too.
pub(crate) fn plain_columns_exchanged_by_rename_come_whole() {
    let database = Database::sqlite();
    let columns = "(id INTEGER NOT NULL PRIMARY KEY, one text, two text, three text, four text UNIQUE)";
    database.application(&format!("CREATE TABLE pair {columns}; CREATE TABLE other {columns}"));
    let table = "key = [\"id\"]\ncolumns = { id = \"int not null\", one = \"text\", two = \"text\" }\n";
    let model = format!("name = \"pair\"\nversion = 1\n[tables.pair]\n{table}[tables.other]\n{table}");
    let plan = super::database::plan(&model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application(
        "INSERT INTO pair VALUES (1, 'a', 'b', 'e', 'f'), (2, 'c', 'd', 'g', 'h'); INSERT INTO other SELECT * FROM pair",
    );
    let mut running = database.connect();
    let mut remote = Replica::new("anna");
    remote.try_sync(&mut *running, &plan).expect("a first sync");
    let exchange = |one: &str, two: &str| {
        format!(
            "ALTER TABLE pair RENAME COLUMN {one} TO t; ALTER TABLE pair RENAME COLUMN {two} TO {one}; \
             ALTER TABLE pair RENAME COLUMN t TO {two}"
        )
    };
    database.application(&exchange("one", "two"));
    assert_eq!(remote.try_sync(&mut *running, &plan).expect("synced").summary.partitions_whole, 1);
    assert_eq!(remote.table(&plan, "pair")[0][1], text("b"));
    // Past SQLite: the schema's version stays, and connections go by what they have read.
    database.application(
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE TABLE pair \
         (id INTEGER NOT NULL PRIMARY KEY, one text, two text, three text, four text UNIQUE)' WHERE name = 'pair'",
    );
    assert_eq!(remote.try_sync(&mut *running, &plan).expect("synced").summary.partitions_whole, 1);
    assert_eq!(remote.table(&plan, "pair")[0][1], text("a"));
    remote.assert_equals_fresh(&database, &plan);
    database.application(&exchange("three", "four"));
    let refused = remote.try_sync(&mut *running, &plan).map(|_| ()).expect_err("a trigger was rewritten");
    assert!(matches!(&refused, Error::Untracked { table, .. } if table == "pair"), "{refused:?}");
}

/// Two tracked tables exchange their names, or their contents.
pub(crate) fn tables_that_change_places_are_refused_or_come_whole() {
    let two = |name: &str| format!("CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, what text)");
    let model = "name = \"two\"\nversion = 1\n[tables.p]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", what = \"text\" }\n\
                 [tables.q]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", what = \"text\" }";
    for event in ["names", "names and triggers", "root pages"] {
        let database = Database::sqlite();
        database.application(&format!("{}; {}", two("p"), two("q")));
        let plan = super::database::plan(model);
        track::track(&mut *database.connect(), &plan).expect("tracked");
        database.application("INSERT INTO p VALUES (1, 'p'); INSERT INTO q VALUES (1, 'q')");
        let mut running = database.connect();
        let mut remote = Replica::new("anna");
        remote.try_sync(&mut *running, &plan).expect("a first sync");
        let rename = "ALTER TABLE p RENAME TO r; ALTER TABLE q RENAME TO p; ALTER TABLE r RENAME TO q; ";
        let triggers = [triggers_of(&database, "p"), triggers_of(&database, "q")].concat();
        let sql = match event {
            "names" => rename.to_owned(),
            "names and triggers" => format!("BEGIN; {} {rename} {} COMMIT", dropped(&triggers), made_again(&triggers)),
            _ => "PRAGMA writable_schema = ON; CREATE TEMP TABLE roots AS SELECT name, rootpage FROM main.sqlite_schema; \
                  UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM roots WHERE name = 'q') WHERE name = 'p'; \
                  UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM roots WHERE name = 'p') WHERE name = 'q'"
                .to_owned(),
        };
        database.application(&sql);
        let synced = remote.try_sync(&mut *running, &plan);
        if event == "names" {
            assert!(matches!(synced, Err(Error::Untracked { .. })), "{event}");
            track::track(&mut *database.connect(), &plan).expect("tracked again");
            remote.try_sync(&mut *running, &plan).expect("synced");
        } else {
            assert_eq!(synced.expect(event).summary.partitions_whole, 2, "{event}");
        }
        assert_eq!(remote.table(&plan, "p")[0][1], text("q"), "{event}");
        remote.assert_equals_fresh(&database, &plan);
    }
}

/// What is noted of a table is gone with the table in which it is noted.
pub(crate) fn a_side_table_made_anew_sends_its_table_whole() {
    let mut story = Story::new();
    story.database.application("UPDATE customer SET name = 'Bea' WHERE id = 2; DELETE FROM customer WHERE id = 3");
    let sql =
        "SELECT sql FROM sqlite_schema WHERE tbl_name = 'headwater_side_customer' AND sql IS NOT NULL ORDER BY rowid";
    let words = |row: &Vec<headwater_protocol::Value>| match &row[0] {
        headwater_protocol::Value::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    let made: Vec<String> = story.database.rows(sql).iter().map(words).collect();
    story.database.application(&format!("BEGIN; DROP TABLE headwater_side_customer; {}; COMMIT", made.join("; ")));
    assert!(story.sync("a side table made anew") >= 1);
    assert_eq!(story.remote.table(&story.plan, "customer").len(), 2);
}

pub(crate) fn what_leaves_tables_as_they_are_sends_nothing_again() {
    for event in [
        "VACUUM",
        "CREATE INDEX by_name ON customer (name)",
        "DROP INDEX theirs; CREATE INDEX theirs ON customer (name)",
        "DROP INDEX theirs; CREATE INDEX theirs ON customer (name, id); DROP VIEW shown; CREATE VIEW shown AS SELECT id FROM customer",
        "ANALYZE; REINDEX; PRAGMA optimize",
        "CREATE TABLE one (id INTEGER PRIMARY KEY AUTOINCREMENT, b text UNIQUE); CREATE TABLE two AS SELECT * FROM customer; \
         CREATE TRIGGER theirs AFTER INSERT ON one BEGIN SELECT 1; END; ALTER TABLE one RENAME TO three",
        "CREATE TABLE made (id INTEGER PRIMARY KEY); DROP TABLE plain; ALTER TABLE made RENAME TO plain",
        "DROP TABLE plain",
        "ALTER TABLE customer ADD COLUMN more text DEFAULT 'x'; ALTER TABLE customer ADD COLUMN further text",
        "ALTER TABLE customer ADD COLUMN more text; VACUUM",
    ] {
        let mut story = Story::new();
        story.database.application(
            "CREATE INDEX theirs ON customer (name); CREATE VIEW shown AS SELECT id FROM customer; \
             CREATE TABLE plain (id INTEGER PRIMARY KEY); CREATE INDEX plainly ON plain (id)",
        );
        assert_eq!(story.sync("what the application has"), 0);
        story.database.application("UPDATE customer SET name = 'noted' WHERE id = 2");
        story.database.application(event);
        assert_eq!(story.sync(event), 0, "{event}");
        story.database.application("DELETE FROM customer WHERE id = 2");
        story.database.application(if event.contains("VACUUM") { "VACUUM" } else { "DROP VIEW IF EXISTS none" });
        assert_eq!(story.sync(event), 0, "{event}");
    }
}

/// What leaves nothing behind may have been a column that went and came; of tables that could not be the same after that it was not.
pub(crate) fn what_leaves_no_trace_sends_again_what_may_have_lost_a_column() {
    let database = Database::sqlite();
    database.application(
        "CREATE TABLE one (id INTEGER NOT NULL PRIMARY KEY, what text); \
         CREATE TABLE two (id INTEGER NOT NULL PRIMARY KEY, what text NOT NULL); \
         CREATE TABLE three (\n  id INTEGER NOT NULL PRIMARY KEY,\n  what text\n)",
    );
    let table = |name: &str, null: &str| {
        format!("[tables.{name}]\nkey = [\"id\"]\ncolumns = {{ id = \"int not null\", what = \"text{null}\" }}\n")
    };
    let tables = [table("one", ""), table("two", " not null"), table("three", "")].concat();
    let plan = super::database::plan(&format!("name = \"three\"\nversion = 1\n{tables}"));
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(&database, &plan, "anna");
    database.application("CREATE VIEW shown AS SELECT * FROM one; DROP VIEW shown");
    let synced = remote.sync(&database, &plan);
    let whole: Vec<&str> = synced.marks.iter().map(|mark| &*plan.tables[mark.table as usize].table.name).collect();
    assert_eq!(whole, ["one"]);
    for name in ["two", "three"] {
        let lost =
            format!("ALTER TABLE {name} DROP COLUMN what; ALTER TABLE {name} ADD COLUMN what text NOT NULL DEFAULT ''");
        database.application(&lost);
        let whole = remote.sync(&database, &plan).marks;
        assert!(whole.iter().any(|mark| plan.tables[mark.table as usize].table.name == name), "{name}");
    }
}

/// With a table go those that take their partition from it.
pub(crate) fn what_lies_below_a_rebuilt_table_comes_whole() {
    let database = Database::sqlite();
    let plan = super::kin::made(&database, "");
    database.application(
        "INSERT INTO shop VALUES (1, 'north', 'x'), (2, 'west', 'y'); INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'); \
         INSERT INTO line VALUES (1, 1, 'n'), (2, 1, 'm')",
    );
    let mut running = database.connect();
    let mut remote = Replica::new("anna");
    remote.try_sync(&mut *running, &plan).expect("a first sync");
    assert_eq!(remote.table(&plan, "line").len(), 1);
    let triggers = triggers_of(&database, "shop");
    database.application(&format!(
        "BEGIN; {} UPDATE shop SET region = 'south' WHERE id = 2; {} COMMIT",
        dropped(&triggers),
        made_again(&triggers)
    ));
    remote.try_sync(&mut *running, &plan).expect("synced");
    assert_eq!(remote.table(&plan, "line").len(), 2, "two levels below");
    remote.assert_equals_fresh(&database, &plan);
}

/// The steps of ALTER on tables of which one takes its partition from the other, as docs/server.md has them.
pub(crate) fn the_twelve_steps_beside_through() {
    for (table, columns) in [
        ("shop", "(id INTEGER NOT NULL PRIMARY KEY, region text, note text)"),
        ("orders", "(id INTEGER NOT NULL PRIMARY KEY, shop INTEGER REFERENCES shop (id), note text)"),
        (
            "line",
            "(orders INTEGER NOT NULL REFERENCES orders (id), no INTEGER NOT NULL, note text, PRIMARY KEY (orders, no))",
        ),
    ] {
        for made_with in ["", "triggers", "track"] {
            let event = format!("{table}: {made_with}");
            let database = Database::sqlite();
            let plan = super::kin::made(&database, "");
            database.application(
                "INSERT INTO shop VALUES (1, 'north', 'x'), (2, 'south', 'y'); \
                 INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'); INSERT INTO line VALUES (1, 1, 'n'), (2, 1, 'm')",
            );
            let mut remote = Replica::synced(&database, &plan, "anna");
            let before = incarnation(&database);
            let steps = |legacy: &str, triggers: &str| {
                format!(
                    "PRAGMA foreign_keys = OFF; {legacy} BEGIN; CREATE TABLE new_{table} {columns}; \
                     INSERT INTO new_{table} SELECT * FROM {table}; UPDATE new_{table} SET note = 'rebuilt'; DROP TABLE {table}; \
                     ALTER TABLE new_{table} RENAME TO {table}; {triggers} PRAGMA foreign_key_check; COMMIT; \
                     PRAGMA legacy_alter_table = OFF; PRAGMA foreign_keys = ON"
                )
            };
            let legacy = "PRAGMA legacy_alter_table = ON;";
            let triggers = made_again(&triggers_of(&database, table));
            match made_with {
                "" => {
                    let refused = database.connect().batch(&steps("", "")).map(drop).expect_err(&event);
                    assert!(refused.to_string().contains("error in trigger headwater_"), "{event}: {refused}");
                    continue;
                }
                "triggers" => database.application(&steps(legacy, &triggers)),
                _ => {
                    database.application(&steps(legacy, ""));
                    let refused = remote.try_sync(&mut *database.connect(), &plan).map(|_| ()).expect_err(&event);
                    assert!(matches!(&refused, Error::Untracked { table: named, .. } if named == table), "{refused:?}");
                    track::track(&mut *database.connect(), &plan).expect("tracked");
                }
            }
            remote.sync(&database, &plan);
            assert_eq!(incarnation(&database) == before, made_with == "triggers", "{event}");
            assert!(remote.table(&plan, table).iter().all(|row| row.contains(&text("rebuilt"))), "{event}");
            remote.assert_equals_fresh(&database, &plan);
            database.application(&format!(
                "UPDATE {table} SET note = 'noted'; UPDATE shop SET region = 'west' WHERE id = 2"
            ));
            assert_eq!(remote.sync(&database, &plan).marks.len(), 0, "{event}: changes are noted");
            remote.assert_equals_fresh(&database, &plan);
        }
    }
}

/// `track` does not cover up what was done before it, and a database that an older build tracked goes on.
pub(crate) fn tracking_again_hides_nothing() {
    let mut story = Story::new();
    let triggers = triggers_of(&story.database, "customer");
    let rebuilt = format!(
        "BEGIN; {} UPDATE customer SET name = 'Bea' WHERE id = 2; {} COMMIT",
        dropped(&triggers),
        made_again(&triggers)
    );
    story.database.application(&rebuilt);
    assert_eq!(track::track(&mut *story.database.connect(), &story.plan).expect("tracked"), Vec::<String>::new());
    assert!(story.sync("tracked again") >= 1);

    let older = "DROP TABLE headwater_schema_seen; DROP TABLE headwater_refresh; DROP VIEW headwater_newest";
    story.database.application(older);
    assert_eq!(story.sync("an older build"), 0, "nothing is known of what was before");
    story.database.application(&rebuilt.replace("Bea", "Bert"));
    assert!(story.sync("an older build, then rebuilt") >= 1);
}

/// Such rows are noted where SQLite fires their triggers, and `check` says where it does not.
pub(crate) fn what_replace_deletes_by_an_expression_is_named() {
    let database = Database::sqlite();
    let plan = database.standard();
    let codes = || {
        let found = headwater_consolidated::check::check(&mut *database.connect(), &plan).expect("checked");
        found.into_iter().map(|finding| finding.code).filter(|code| code.starts_with("replace")).collect::<Vec<_>>()
    };
    assert_eq!(codes(), Vec::<&str>::new());
    database.application("CREATE UNIQUE INDEX by_upper ON customer (upper(name))");
    assert_eq!(codes(), ["replace_not_tracked"]);
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    let mut remote = Replica::synced(&database, &plan, "anna");
    database.application("PRAGMA recursive_triggers = ON; INSERT OR REPLACE INTO customer VALUES (2, 'b', 'ADA', 1)");
    remote.sync(&database, &plan);
    remote.assert_equals_fresh(&database, &plan);
}
