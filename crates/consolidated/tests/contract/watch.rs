//! Whether what a query reads has changed, told without running it.

use headwater_consolidated::watch::{Marked, Watched};
use headwater_consolidated::{Connection, Dialect, system};

use super::database::Database;

fn watched(database: &Database, sql: &str) -> Option<Watched> {
    database.connect().watch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// A query's marks, one after the other.
struct Watch {
    connection: Box<dyn Connection>,
    watched: Watched,
    mark: String,
}

impl Watch {
    fn new(database: &Database, sql: &str) -> Watch {
        let watched = watched(database, sql).unwrap_or_else(|| panic!("{sql} can't be watched"));
        let mut connection = database.connect();
        let Marked::Changed(mark) = connection.marked(&watched, None).expect("a mark") else {
            panic!("there is no mark before the first");
        };
        Watch { connection, watched, mark }
    }

    fn has_changed(&mut self) -> bool {
        match self.connection.marked(&self.watched, Some(&self.mark)).expect("a mark") {
            Marked::Changed(mark) => {
                self.mark = mark;
                true
            }
            Marked::Unchanged(mark) => {
                self.mark = mark;
                false
            }
            Marked::Altered => panic!("nothing was altered"),
        }
    }

    fn is_altered(&mut self) -> bool {
        self.connection.marked(&self.watched, Some(&self.mark)).expect("a mark") == Marked::Altered
    }
}

const NAMES: &str = "SELECT name FROM customer ORDER BY id";

pub(crate) fn every_change_of_a_table_is_told(database: &Database) {
    database.standard();
    database.application("CREATE VIEW named AS SELECT o.id, c.name FROM orders o LEFT JOIN customer c ON c.id = o.id");
    let mut names = Watch::new(database, NAMES);
    let mut view = Watch::new(database, "WITH n AS (SELECT id FROM named) SELECT count(*) FROM n");
    let (mut orders, mut both) =
        (Watch::new(database, "SELECT id FROM orders"), Watch::new(database, "SELECT 1 FROM orders, line"));
    for (change, expected) in [
        ("INSERT INTO customer VALUES (1, 'a', 'x', 1)", [true, true, false, false]),
        ("UPDATE customer SET name = 'y'", [true, true, false, false]),
        ("UPDATE customer SET name = 'z' WHERE id = 99", [false, false, false, false]),
        // In nobody's partition.
        ("INSERT INTO orders VALUES (1, NULL, 'x')", [false, true, true, true]),
        ("INSERT INTO line VALUES (1, 1, 'north', 5)", [false, false, false, true]),
        // Its line goes with it.
        ("DELETE FROM orders", [false, true, true, true]),
        ("DELETE FROM customer", [true, true, false, false]),
        ("INSERT INTO measure VALUES (1, 1.5)", [false, false, false, false]),
    ] {
        database.application(change);
        let changed = [&mut names, &mut view, &mut orders, &mut both].map(Watch::has_changed);
        assert_eq!(changed, expected, "{change}");
        assert_eq!([&mut names, &mut view, &mut orders, &mut both].map(Watch::has_changed), [false; 4], "told once");
    }
    if database.dialect() == Dialect::Postgres {
        database.application("TRUNCATE customer");
        // It also gives the table another file.
        assert!(names.is_altered());
    }
}

/// It began before the mark and commits after it; a largest version would miss it.
pub(crate) fn a_late_commit_is_told(database: &Database) {
    database.standard();
    let mut names = Watch::new(database, NAMES);
    let mut late = database.connect();
    late.batch("BEGIN").expect("begun");
    late.batch("INSERT INTO customer VALUES (1, 'a', 'late', 1)").expect("inserted");
    if database.dialect() == Dialect::Postgres {
        database.application("INSERT INTO customer VALUES (2, 'b', 'early', 1)");
        assert!(names.has_changed(), "the early one");
    }
    assert!(!names.has_changed(), "the late one is not there yet");
    late.batch("COMMIT").expect("committed");
    assert!(names.has_changed(), "the late one");
    assert!(!names.has_changed());
    late.batch("BEGIN").expect("begun");
    late.batch("DELETE FROM customer").expect("deleted");
    late.batch("ROLLBACK").expect("rolled back");
    assert!(!names.has_changed(), "what was rolled back is no change");
}

/// The text may come from whoever may send SQL: nothing of it is run, in whatever it is put.
pub(crate) fn what_is_looked_into_is_one_query(database: &Database) {
    database.standard();
    for text in [
        "SELECT 1) AS q; COMMIT; CREATE TABLE made (id {int}); SELECT FROM (SELECT 1",
        "SELECT id FROM customer; CREATE TABLE made (id {int})",
        "CREATE TABLE made (id {int})",
    ] {
        let text = text.replace("{int}", "int");
        assert_eq!(watched(database, &text), None, "{text}");
        let found = database.connect().query("SELECT count(*) FROM made", &[]);
        assert!(found.is_err(), "{text} was run");
    }
}

pub(crate) fn what_depends_on_more_than_tracked_tables_is_not_watched(database: &Database) {
    database.application("CREATE TABLE alone (id {int} PRIMARY KEY)");
    assert_eq!(watched(database, "SELECT id FROM alone"), None, "nothing of Headwater's is there");
    database.standard();
    let postgres = database.dialect() == Dialect::Postgres;
    database.application("CREATE TABLE other (id {int} PRIMARY KEY); CREATE VIEW mixed AS SELECT id FROM other");
    let mut not = vec![
        "SELECT id FROM other",
        "SELECT c.id FROM customer c JOIN mixed m ON m.id = c.id",
        "SELECT id FROM customer WHERE EXISTS (SELECT 1 FROM other)",
        "SELECT id FROM customer WHERE random() > 2",
        "SELECT id, current_timestamp FROM customer",
        "SELECT 1",
    ];
    if postgres {
        database.application(
            "CREATE FUNCTION mine() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT count(*) FROM other';
             CREATE MATERIALIZED VIEW made AS SELECT id FROM customer;
             CREATE TABLE split (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE TABLE secret (id bigint PRIMARY KEY); ALTER TABLE secret ENABLE ROW LEVEL SECURITY",
        );
        not.extend([
            "SELECT mine() FROM customer",
            "SELECT id FROM made",
            "SELECT id FROM split",
            "SELECT id FROM secret",
            "SELECT c.id FROM customer c, pg_class",
            "SELECT id FROM customer WHERE now() > '2020-01-01'",
            "SELECT id FROM customer WHERE name::timestamp < '2020-01-01'",
            "SELECT id FROM customer TABLESAMPLE bernoulli (50)",
            "SELECT id, 'now'::timestamptz FROM customer",
            "SELECT id FROM customer WHERE date $$today$$ > '2020-01-01'",
            "SELECT o.id FROM (SELECT id, date '2020-01-01' AS day FROM customer) o WHERE o.day < E' Yesterday'",
        ]);
    } else {
        not.extend([
            "SELECT id FROM customer, pragma_page_count",
            "SELECT id FROM customer WHERE date('now') > '2020-01-01'",
        ]);
    }
    for sql in not {
        assert_eq!(watched(database, sql), None, "{sql}");
    }
    assert!(watched(database, "SELECT id FROM customer WHERE name = 'nowhere' -- 'now'").is_some());
    let bound = if postgres { "?1::bigint" } else { "?1" };
    let by_code = format!(
        "SELECT upper(name) AS a, count(*) AS a FROM customer WHERE id > {bound} AND code LIKE 'x%' GROUP BY name"
    );
    assert!(watched(database, &by_code).is_some(), "columns may have the same name");
}

pub(crate) fn what_was_altered_is_looked_at_again(database: &Database) {
    database.standard();
    database.application(
        "CREATE VIEW few AS SELECT id FROM customer WHERE id < 10; CREATE TABLE other (id {int} PRIMARY KEY)",
    );
    let mut few = Watch::new(database, "SELECT id FROM few");
    database.application("DROP VIEW few; CREATE VIEW few AS SELECT id FROM other");
    assert!(few.is_altered());
    assert_eq!(watched(database, "SELECT id FROM few"), None);

    // What was seen of a view says nothing of the one that has taken its place, whoever has looked at that meanwhile.
    database.application("DROP VIEW few; CREATE VIEW few AS SELECT id FROM customer WHERE id < 20");
    let mut few = Watch::new(database, "SELECT id FROM few");
    database.application("DROP VIEW few; CREATE VIEW few AS SELECT id FROM customer WHERE id < 30");
    few.watched = watched(database, "SELECT id FROM few").expect("it can be watched again");
    assert!(few.has_changed());
    assert!(!few.has_changed());

    let mut all = Watch::new(database, "SELECT * FROM customer");
    database.application("ALTER TABLE customer ADD COLUMN extra {int}");
    assert!(all.is_altered());
    let mut all = Watch::new(database, "SELECT * FROM customer");
    database.application("ALTER TABLE customer DROP COLUMN extra");
    assert!(all.is_altered());

    let mut names = Watch::new(database, NAMES);
    let trigger = match database.dialect() {
        Dialect::Postgres => "ALTER TABLE customer DISABLE TRIGGER headwater_insert",
        Dialect::Sqlite => "DROP TRIGGER headwater_after_insert_customer",
    };
    database.application(trigger);
    assert!(names.is_altered());
    assert_eq!(watched(database, NAMES), None, "insertions are not noted");
}

/// What was purged may have been a change that a mark does not know.
pub(crate) fn an_old_mark_is_good_for_nothing_once_changes_are_purged(database: &Database) {
    use std::time::Duration;

    database.standard();
    let mut old = Watch::new(database, NAMES);
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    let mut young = Watch::new(database, NAMES);
    let mut connection = database.connect();
    system::take_note(&mut *connection).expect("a note");
    let request = system::PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
    assert!(system::purge(&mut *connection, &request, &mut || true).expect("purged").has_moved);
    if database.dialect() == Dialect::Postgres {
        assert_eq!(database.number("SELECT count(*) FROM headwater.table_change WHERE table_name <> ''"), 0);
    }
    assert!(old.has_changed());
    young.has_changed();
    assert!(!young.has_changed());
}
