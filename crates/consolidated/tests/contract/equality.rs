//! Partitions that the database calls equal although their bytes differ: one partition, several spellings.

use headwater_consolidated::check::{Finding, check, unenforced};
use headwater_consolidated::init::first_model;
use headwater_consolidated::{Dialect, Plan, track};
use headwater_protocol::message::Change;
use headwater_protocol::{Row, Value};

use super::database::{Database, plan};
use super::logged::{logged, only};
use super::replica::{Replica, find};
use super::values::{decimal, int, order, text};

/// A kind of column that has another equality than that of bytes.
struct Kind {
    column: &'static str,
    model: &'static str,
    before: &'static str,
    /// The type of the memberships' own column.
    member_column: &'static str,
    /// How the membership spells the partition.
    member: &'static str,
    /// How rows of it do.
    rows: [&'static str; 2],
    /// How a later row does, and what it is at a remote.
    later: (&'static str, Value),
    /// A partition that is not equal.
    other: (&'static str, Value),
}

pub(crate) fn texts_without_case_are_one_partition(database: &Database) {
    let (before, column) = match database.dialect() {
        Dialect::Postgres => ("CREATE EXTENSION IF NOT EXISTS citext", "citext"),
        Dialect::Sqlite => ("", "TEXT COLLATE NOCASE"),
    };
    story(
        database,
        &Kind {
            column,
            model: "text",
            before,
            member_column: "text",
            member: "'North'",
            rows: ["'north'", "'North'"],
            later: ("'NORTH'", text("NORTH")),
            other: ("'south'", text("south")),
        },
    );
}

pub(crate) fn texts_of_a_collation_are_one_partition(database: &Database) {
    let (before, column) = match database.dialect() {
        Dialect::Postgres => (
            "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            "text COLLATE nocase",
        ),
        Dialect::Sqlite => ("", "TEXT COLLATE NOCASE"),
    };
    story(
        database,
        &Kind {
            column,
            model: "text",
            before,
            member_column: "text",
            member: "'norTH'",
            rows: ["'north'", "'North'"],
            later: ("'NORTH'", text("NORTH")),
            other: ("'south'", text("south")),
        },
    );
}

pub(crate) fn a_collation_of_the_membership_query_decides_nothing(database: &Database) {
    if database.dialect() == Dialect::Postgres {
        database
            .application("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    }
    let members = "SELECT region COLLATE nocase AS region FROM member";
    let plan = database.standard_with(|model| model.replace("SELECT region FROM member", members));
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'North', 'x')");
    let mut anna = Replica::synced(database, &plan, "anna");
    assert_eq!(anna.table(&plan, "orders"), [order(1, "north", "x")]);
    anna.insert(&plan, "orders", order(3, "North", "x"));
    assert_eq!(anna.sync(database, &plan).refusals(), [(0, "partition")]);
}

pub(crate) fn blanks_at_the_end_make_no_other_partition(database: &Database) {
    let column = match database.dialect() {
        Dialect::Postgres => "char(4)",
        Dialect::Sqlite => "TEXT COLLATE RTRIM",
    };
    story(
        database,
        &Kind {
            column,
            model: "text",
            before: "",
            member_column: "text",
            member: "'ab'",
            rows: ["'ab '", "'ab'"],
            later: ("'ab    '", text("ab   ")),
            other: ("'abc'", text("abc ")),
        },
    );
}

pub(crate) fn zeros_at_the_end_make_no_other_partition(database: &Database) {
    story(
        database,
        &Kind {
            column: "numeric",
            model: "decimal",
            before: "",
            member_column: "text",
            member: "'7.000'",
            rows: ["7", "7.0"],
            later: ("7.00", decimal("7.00")),
            other: ("8", decimal("8")),
        },
    );
}

/// A SQLite head stores a negative zero as a text of its own.
pub(crate) fn both_zeros_are_one_partition(database: &Database) {
    story(
        database,
        &Kind {
            column: "{real}",
            model: "real",
            before: "",
            member_column: "{real}",
            member: "'-0'",
            rows: ["0.0", "'-0'"],
            later: ("'-0'", Value::Real(-0.0)),
            other: ("1.0", Value::Real(1.0)),
        },
    );
}

/// A SQLite column of numeric affinity makes numbers of texts.
pub(crate) fn numbers_in_texts_are_one_partition(database: &Database) {
    story(
        database,
        &Kind {
            column: "DATETIME",
            model: "text",
            before: "",
            member_column: "text",
            member: "'7.0'",
            rows: ["7", "'7'"],
            later: ("'7.00'", text("7.00")),
            other: ("8", int(8)),
        },
    );
}

const MODEL: &str = r#"
    name = "spelled"
    version = 1

    [partitions.region]
    columns = { region = "TYPE" }
    members = "SELECT region FROM member WHERE user_name = :s.user ORDER BY no"

    [tables.d]
    key = ["id"]
    partition = "region"
    columns = { id = "int not null", region = "TYPE", v = "text" }

    [tables.e]
    key = ["id"]
    partition = { through = "d" }
    references = [{ columns = ["d"], table = "d" }]
    columns = { id = "int not null", d = "int", v = "text" }
"#;

fn made(database: &Database, kind: &Kind) -> Plan {
    if !kind.before.is_empty() {
        database.application(kind.before);
    }
    database.application(&format!(
        "CREATE TABLE member (no {{int}} PRIMARY KEY, user_name text, region {}); \
         CREATE TABLE d (id {{int}} NOT NULL PRIMARY KEY, region {}, v text); \
         CREATE TABLE e (id {{int}} NOT NULL PRIMARY KEY, d {{int}} REFERENCES d (id), v text); CREATE INDEX e_d ON e (d); \
         INSERT INTO member VALUES (1, 'anna', {}); INSERT INTO d VALUES (1, {}, 'x'), (2, {}, 'y'), (9, {}, 'z'); \
         INSERT INTO e VALUES (1, 1, 'x'), (2, 2, 'y'), (9, 9, 'z')",
        kind.member_column, kind.column, kind.member, kind.rows[0], kind.rows[1], kind.other.0
    ));
    let plan = plan(&MODEL.replace("TYPE", kind.model));
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

fn edited(row: &Row) -> Row {
    vec![row[0].clone(), row[1].clone(), text("mine")]
}

fn story(database: &Database, kind: &Kind) {
    let plan = made(database, kind);
    let findings = check(&mut *database.connect(), &plan).expect("checked");
    let named = |finding: &Finding| finding.code == "partition_equality" && finding.column.as_deref() == Some("region");
    assert!(findings.iter().any(named), "{}: {findings:?}", kind.column);
    let mut anna = Replica::synced(database, &plan, "anna");
    let ids = |replica: &Replica, table: &str| {
        replica.table(&plan, table).iter().map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!((ids(&anna, "d"), ids(&anna, "e")), (vec![int(1), int(2)], vec![int(1), int(2)]), "{}", kind.column);
    let idle = |anna: &mut Replica| {
        let idle = anna.sync(database, &plan);
        assert_eq!((idle.marks.len(), idle.count()), (0, 0), "{}: {:?}", kind.column, idle.marks);
    };
    idle(&mut anna);

    // What came down may be changed.
    for table in ["d", "e"] {
        for row in anna.table(&plan, table) {
            anna.update(&plan, table, edited(&row));
        }
    }
    assert_eq!(anna.sync(database, &plan).refusals(), [], "{}", kind.column);
    let count = |sql: &str| database.number(&format!("SELECT count(*) FROM {sql}"));
    assert_eq!((count("d WHERE v = 'mine'"), count("e WHERE v = 'mine'")), (2, 2), "{}", kind.column);

    // Other spellings come and go, here and there.
    database.application(&format!(
        "INSERT INTO d VALUES (3, {}, 'late'); INSERT INTO e VALUES (3, 3, 'late')",
        kind.later.0
    ));
    let synced = anna.sync(database, &plan);
    assert_eq!((synced.marks.len(), synced.upserts.len(), synced.deletes.len()), (0, 2, 0), "{}", kind.column);
    anna.insert(&plan, "d", vec![int(4), kind.later.1.clone(), text("made")]);
    anna.insert(&plan, "e", vec![int(4), int(4), text("made")]);
    assert_eq!(anna.sync(database, &plan).refusals(), [], "{}", kind.column);
    database.application(&format!(
        "UPDATE d SET region = {} WHERE id = 1; UPDATE e SET v = 'below' WHERE id = 1",
        kind.later.0
    ));
    anna.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
    idle(&mut anna);
    assert_eq!(ids(&anna, "e"), [int(1), int(2), int(3), int(4)], "{}", kind.column);

    // A remote that has seen nothing of one of the spellings gets the partition whole, and the log says why.
    let spelled = anna.watermarks.entries.iter_mut().find(|entry| entry.table == find(&plan, "d").number);
    spelled.expect("an entry").mark = 1;
    anna.watermarks.marks.push(Vec::new());
    let (lines, synced) = logged(|| anna.sync(database, &plan));
    assert!(synced.marks.iter().all(|mark| mark.table == find(&plan, "d").number) && !synced.marks.is_empty());
    only(&lines, &["the remote spelled the value of a partition otherwise", "table=d"]);
    idle(&mut anna);

    // What is not equal is another's.
    anna.send(find(&plan, "d"), Change { old: None, new: Some(vec![int(5), kind.other.1.clone(), text("outside")]) });
    assert_eq!(anna.sync(database, &plan).refusals(), [(0, "partition")], "{}", kind.column);
    anna.rows.retain(|_, row| row[0] != int(5));
    database.application(&format!("UPDATE d SET region = {} WHERE id = 2", kind.other.0));
    let synced = anna.sync(database, &plan);
    assert_eq!(synced.deletes.len(), 2, "{}: {:?}", kind.column, synced.upserts);
    anna.assert_equals_fresh(database, &plan);
    let mut ben = Replica::synced(database, &plan, "ben");
    ben.send(find(&plan, "d"), Change { old: None, new: Some(vec![int(6), kind.later.1.clone(), text("outside")]) });
    assert_eq!(ben.sync(database, &plan).refusals(), [(0, "partition")], "{}", kind.column);

    // A membership may be spelled otherwise, and several times.
    database.application(&format!(
        "UPDATE member SET region = {0}; INSERT INTO member VALUES (2, 'anna', {1}), (3, 'anna', {0})",
        kind.rows[1], kind.member
    ));
    idle(&mut anna);
    let twice = Replica::synced(database, &plan, "anna");
    assert_eq!(twice.table(&plan, "d"), anna.table(&plan, "d"), "{}", kind.column);

    // When it ends, all spellings go.
    database.application("DELETE FROM member");
    anna.sync(database, &plan);
    assert!(anna.rows.is_empty(), "{}: {:?}", kind.column, anna.rows);
    idle(&mut anna);
    database.application(&format!("INSERT INTO member VALUES (1, 'anna', {})", kind.rows[0]));
    anna.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
    assert_eq!(ids(&anna, "d"), [int(1), int(3), int(4)], "{}", kind.column);
}

/// A row may spell its partition larger than any frame takes: it is left out, and the rest goes on.
pub(crate) fn a_spelling_that_is_too_large_to_travel_does_not_come_down(database: &Database) {
    let (before, column) = match database.dialect() {
        Dialect::Postgres => (
            "CREATE COLLATION bare (provider = icu, locale = 'und-u-ka-shifted', deterministic = false)",
            "text COLLATE bare",
        ),
        Dialect::Sqlite => ("", "TEXT COLLATE RTRIM"),
    };
    let kind = Kind {
        column,
        model: "text",
        before,
        member_column: "text",
        member: "'ab'",
        rows: ["'ab '", "'ab'"],
        later: ("'ab  '", text("ab  ")),
        other: ("'abc'", text("abc")),
    };
    let plan = made(database, &kind);
    let large = format!("ab{}", " ".repeat(5_000));
    let mut anna = Replica::synced(database, &plan, "anna");
    database.application(&format!(
        "INSERT INTO d VALUES (3, '{large}', 'large'), (4, 'ab', 'late'); UPDATE d SET region = '{large}' WHERE id = 2"
    ));
    let (lines, synced) = logged(|| anna.sync(database, &plan));
    assert_eq!((synced.upserts.len(), synced.marks.len()), (1, 0));
    only(&lines, &["larger than can travel", "table=d", "key={\"id\":2}", "bytes=5"]);
    let ids = |anna: &Replica| anna.table(&plan, "d").iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&anna), [int(1), int(4)]);
    anna.assert_equals_fresh(database, &plan);
    // Nobody uploads one.
    anna.insert(&plan, "d", vec![int(5), text("ab"), text("mine")]);
    anna.insert(&plan, "d", vec![int(6), text(&large), text("mine")]);
    assert_eq!(anna.sync(database, &plan).refusals(), [(1, "partition")]);
    anna.rows.retain(|_, row| row[0] != int(6));
    database.application("UPDATE d SET region = 'ab' WHERE id = 3");
    anna.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
    assert_eq!(ids(&anna), [int(1), int(3), int(4), int(5)]);
}

/// A child and its parent that are equal here, and not at a remote.
pub(crate) fn references_of_another_equality_are_left_to_the_database(database: &Database) {
    let (before, other) = match database.dialect() {
        Dialect::Postgres => ("CREATE EXTENSION IF NOT EXISTS citext;", "citext"),
        Dialect::Sqlite => ("", "TEXT COLLATE NOCASE"),
    };
    database.application(&format!(
        "{before} CREATE TABLE kind (id {{int}} NOT NULL PRIMARY KEY, code {other} NOT NULL UNIQUE, plain text NOT NULL UNIQUE); \
         CREATE TABLE item (id {{int}} NOT NULL PRIMARY KEY, code {other} REFERENCES kind (code), plain text REFERENCES kind (plain)); \
         INSERT INTO kind VALUES (1, 'ABC', 'abc'); INSERT INTO item VALUES (1, 'abc', 'abc')"
    ));
    let catalogue = database.connect().catalogue().expect("a catalogue");
    let model = first_model("kinds", &catalogue).model;
    let item = model.tables.iter().position(|table| table.name == "item").expect("the table");
    let columns = |place: usize| model.tables[item].references[place].columns.clone();
    let left_out = unenforced(&model, &catalogue);
    assert_eq!(left_out.iter().map(|(table, place)| (*table, columns(*place))).collect::<Vec<_>>(), [(item, vec![1])]);
    let findings = check(&mut *database.connect(), &Plan::new(model)).expect("checked");
    let named: Vec<_> = findings.iter().filter(|finding| finding.code == "reference_equality").collect();
    assert_eq!(named.iter().map(|finding| finding.column.as_deref()).collect::<Vec<_>>(), [Some("code")]);
}

/// Names of tables and columns have no case in SQLite.
pub(crate) fn references_are_found_by_names_in_other_case(database: &Database) {
    database.application(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, code TEXT NOT NULL UNIQUE); \
         CREATE TABLE child (id INTEGER PRIMARY KEY, up INTEGER REFERENCES Parent(ID), Code TEXT REFERENCES PARENT(Code), \
         own INTEGER REFERENCES CHILD)",
    );
    let catalogue = database.connect().catalogue().expect("a catalogue");
    let model = first_model("m", &catalogue).model;
    let child = model.tables.iter().find(|table| table.name == "child").expect("the table");
    assert_eq!(child.references.len(), 3, "{:?}", catalogue.tables);
    track::track(&mut *database.connect(), &Plan::new(model.clone())).expect("tracked");
    let findings = check(&mut *database.connect(), &Plan::new(model)).expect("checked");
    assert!(findings.iter().all(|finding| finding.code != "reference_not_enforced"), "{findings:?}");
}
