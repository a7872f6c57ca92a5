//! Conflicts by every rule, through the database (the pure rules are tested beside `judge`).

use headwater_consolidated::Plan;
use headwater_consolidated::system::{ConflictQuery, conflicts};
use headwater_protocol::message::{ConflictEnd, Outcome};
use headwater_protocol::{Row, Value};

use super::database::{Database, plan};
use super::replica::{Replica, Synced};
use super::values::{customer, int, line};

const RULES: [&str; 6] =
    ["off", "consolidated_wins", "remote_wins", "newer_wins(changed)", "merge(consolidated)", "merge(remote)"];

const CONSOLIDATED: Option<ConflictEnd> = Some(ConflictEnd::Consolidated);
const REMOTE: Option<ConflictEnd> = Some(ConflictEnd::Remote);
const MERGED: Option<ConflictEnd> = Some(ConflictEnd::Merged);

/// The standard tables with another rule for `customer`. The database must be fresh, so rules share one and are re-read.
fn with_rule(database: &Database, rule: &str) -> Plan {
    if database.connect().catalogue().expect("a catalogue").tables.is_empty() {
        database.standard();
    }
    let model =
        super::database::MODEL.replacen("conflict = \"consolidated_wins\"", &format!("conflict = \"{rule}\""), 1);
    database.application("DELETE FROM customer");
    super::database::plan(&model)
}

/// What became of the first change, what is stored now, and that the remote has been sent that.
fn ended(database: &Database, plan: &Plan, remote: &mut Replica, synced: &Synced) -> (Option<ConflictEnd>, Vec<Row>) {
    let end = synced.outcomes().first().map(|(_, outcome)| match outcome {
        Outcome::Conflict(end) => *end,
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    });
    assert_eq!(synced.uploaded.as_ref().map(|u| u.counts.conflicts), Some(u64::from(end.is_some())));
    remote.assert_equals_fresh(database, plan);
    (end, remote.table(plan, "customer"))
}

/// What the manual says of pending edits of rows that a statement on the table has changed.
pub(crate) fn a_statement_on_the_table_is_the_other_side_of_a_conflict(database: &Database) {
    database.application(
        "CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE TABLE kept (id bigint PRIMARY KEY, mood mood, name text); \
         CREATE TABLE merged (LIKE kept INCLUDING ALL); INSERT INTO kept VALUES (1, 'ok', 'a'), (2, 'bad', 'b'); \
         INSERT INTO merged TABLE kept",
    );
    let table = |name: &str, rule: &str| {
        format!(
            "[tables.{name}]\nkey = [\"id\"]\nconflict = \"{rule}\"\ncolumns = {{ id = \"int not null\", mood = \"text\", name = \"text\" }}\n"
        )
    };
    let (kept, merged) = (table("kept", "consolidated_wins"), table("merged", "merge(consolidated)"));
    let plan = plan(&format!("name = \"moods\"\nversion = 1\n{kept}{merged}"));
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut anna = Replica::synced(database, &plan, "anna");
    let row = |id: i64, mood: &str, name: &str| vec![int(id), Value::text(mood), Value::text(name)];
    for table in ["kept", "merged"] {
        anna.update(&plan, table, row(1, "ok", "edited"));
        anna.update(&plan, table, row(2, "bad", "edited"));
    }
    database.application("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'");
    let synced = anna.sync(database, &plan);
    assert_eq!(
        synced.outcomes(),
        [(0, Outcome::Conflict(ConflictEnd::Consolidated)), (2, Outcome::Conflict(ConflictEnd::Merged))]
    );
    // A row that the statement did not change keeps its edit under every rule.
    assert_eq!(anna.table(&plan, "kept"), [row(1, "fine", "a"), row(2, "bad", "edited")]);
    assert_eq!(anna.table(&plan, "merged"), [row(1, "fine", "edited"), row(2, "bad", "edited")]);
    let found = conflicts(&mut *database.connect(), &ConflictQuery::default()).expect("conflicts");
    assert_eq!(found.len(), 2, "{found:?}");
}

pub(crate) fn each_rule_ends_an_update_against_an_update(database: &Database) {
    // The remote changes name and changed; here code and changed.
    let (mine, theirs) = (customer(1, "a", "Remote", 5), customer(1, "b", "Ada", 9));
    let expected = [
        (None, mine.clone()),
        (CONSOLIDATED, theirs.clone()),
        (REMOTE, mine.clone()),
        (CONSOLIDATED, theirs.clone()),
        (MERGED, customer(1, "b", "Remote", 9)),
        (MERGED, customer(1, "b", "Remote", 5)),
    ];
    for (rule, (end, row)) in RULES.iter().zip(expected) {
        let plan = with_rule(database, rule);
        database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
        let mut remote = Replica::synced(database, &plan, "anna");
        database.application("UPDATE customer SET code = 'b', changed = 9");
        remote.update(&plan, "customer", mine.clone());
        let synced = remote.sync(database, &plan);
        assert_eq!(ended(database, &plan, &mut remote, &synced), (end, vec![row]), "{rule}");
    }
    // Later than what is stored, the remote's wins.
    let plan = with_rule(database, "newer_wins(changed)");
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', NULL)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("UPDATE customer SET name = 'Eve'");
    remote.update(&plan, "customer", mine.clone());
    let synced = remote.sync(database, &plan);
    assert_eq!(ended(database, &plan, &mut remote, &synced), (REMOTE, vec![mine]), "NULL is least");
}

pub(crate) fn each_rule_ends_an_insert_of_an_existing_key(database: &Database) {
    let (mine, theirs) = (customer(1, "r", "Remote", 5), customer(1, "c", "Central", 3));
    let expected = [
        (None, &mine),
        (CONSOLIDATED, &theirs),
        (REMOTE, &mine),
        (REMOTE, &mine),
        (CONSOLIDATED, &theirs),
        (REMOTE, &mine),
    ];
    for (rule, (end, row)) in RULES.iter().zip(expected) {
        let plan = with_rule(database, rule);
        let mut remote = Replica::synced(database, &plan, "anna");
        database.application("INSERT INTO customer VALUES (1, 'c', 'Central', 3)");
        remote.insert(&plan, "customer", mine.clone());
        let synced = remote.sync(database, &plan);
        assert_eq!(ended(database, &plan, &mut remote, &synced), (end, vec![row.clone()]), "{rule}");
    }
}

pub(crate) fn an_existing_key_among_new_ones_is_found_batch_by_batch(database: &Database) {
    let plan = with_rule(database, "consolidated_wins");
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.batch_rows = 2;
    database.application("INSERT INTO customer VALUES (5, 'c', 'Central', 3)");
    for id in 1..=8 {
        remote.insert(&plan, "customer", customer(id, &format!("r{id}"), "Remote", 1));
    }
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.outcomes().len(), 1, "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'Remote'"), 7);
}

pub(crate) fn each_rule_ends_updates_against_deletions(database: &Database) {
    let mine = customer(1, "a", "Remote", 5);
    let expected =
        [(None, true), (CONSOLIDATED, false), (REMOTE, true), (REMOTE, true), (REMOTE, true), (REMOTE, true)];
    for (rule, (end, survives)) in RULES.iter().zip(expected) {
        let plan = with_rule(database, rule);
        database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
        let mut remote = Replica::synced(database, &plan, "anna");
        database.application("DELETE FROM customer");
        remote.update(&plan, "customer", mine.clone());
        let synced = remote.sync(database, &plan);
        let rows = if survives { vec![mine.clone()] } else { vec![] };
        assert_eq!(ended(database, &plan, &mut remote, &synced), (end, rows), "update of a deleted row, {rule}");
    }
    let theirs = customer(1, "a", "Central", 1);
    let expected = [
        (None, false),
        (CONSOLIDATED, true),
        (REMOTE, false),
        (CONSOLIDATED, true),
        (CONSOLIDATED, true),
        (CONSOLIDATED, true),
    ];
    for (rule, (end, survives)) in RULES.iter().zip(expected) {
        let plan = with_rule(database, rule);
        database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
        let mut remote = Replica::synced(database, &plan, "anna");
        database.application("UPDATE customer SET name = 'Central'");
        remote.delete(&plan, "customer", &customer(1, "a", "Ada", 1));
        let synced = remote.sync(database, &plan);
        let rows = if survives { vec![theirs.clone()] } else { vec![] };
        assert_eq!(ended(database, &plan, &mut remote, &synced), (end, rows), "deletion of a changed row, {rule}");
    }
}

pub(crate) fn a_change_whose_result_is_there_is_no_conflict(database: &Database) {
    let plan = with_rule(database, "remote_wins");
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application(
        "UPDATE customer SET name = 'Same' WHERE id = 1; DELETE FROM customer WHERE id = 2; \
         INSERT INTO customer VALUES (3, 'c', 'Cid', 1)",
    );
    remote.update(&plan, "customer", customer(1, "a", "Same", 1));
    remote.delete(&plan, "customer", &customer(2, "b", "Bob", 1));
    remote.insert(&plan, "customer", customer(3, "c", "Cid", 1));
    let synced = remote.sync(database, &plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
}

/// Nor is one that only spells a number otherwise: the stored spelling comes back.
pub(crate) fn a_result_that_is_there_in_another_spelling_comes_back(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'x'); \
         INSERT INTO line VALUES (1, 1, 'north', '7.50'), (1, 2, 'north', '8'), (1, 3, 'north', '9.0')",
    );
    let mut remote = Replica::synced(database, &plan, "anna");
    let line = |no, amount| line(1, no, "north", amount);
    assert!(remote.table(&plan, "line").contains(&line(1, "7.50")));
    database.application("UPDATE line SET amount = '8.50' WHERE no = 2; DELETE FROM line WHERE no = 3");
    remote.update(&plan, "line", line(1, "7.5"));
    remote.update(&plan, "line", line(2, "8.5"));
    remote.insert(&plan, "line", line(4, "4.0"));
    database.application("INSERT INTO line VALUES (1, 4, 'north', '4.00')");
    remote.delete(&plan, "line", &line(3, "9.0"));
    let synced = remote.sync(database, &plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
}

/// Also by a later download, where the one beside the upload did not come.
pub(crate) fn another_spelling_comes_back_after_a_lost_download(database: &Database) {
    let plan = database.standard();
    database
        .application("INSERT INTO orders VALUES (1, 'north', 'x'); INSERT INTO line VALUES (1, 1, 'north', '7.50')");
    let mut remote = Replica::synced(database, &plan, "anna");
    let stored = database.rows("SELECT amount FROM line");
    remote.update(&plan, "line", line(1, 1, "north", "7.5"));
    remote.upload(&mut *database.connect(), &plan).expect("applied");
    let synced = remote.sync(database, &plan);
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
    assert_eq!(database.rows("SELECT amount FROM line"), stored, "nothing was written");
    assert_eq!(remote.sync(database, &plan).count(), 0, "nothing is sent twice");
}

/// A text that is the stored value of its type is another spelling too.
pub(crate) fn a_text_that_is_the_stored_value_comes_back_as_that(database: &Database) {
    database.application(
        "CREATE TABLE seen (id bigint PRIMARY KEY, at timestamptz, day timestamp, hour time, who uuid, really boolean, price numeric); \
         INSERT INTO seen VALUES (1, '2026-01-01 05:00:00Z', '2026-01-01 05:00:00', '05:00:00', '00000000-0000-0000-0000-00000000000a', true, 7)",
    );
    let plan = plan(
        "name = \"seen\"\nversion = 1\n[tables.seen]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
         columns = { id = \"int not null\", at = \"timestamptz\", day = \"timestamp\", hour = \"time\", who = \"uuid\", really = \"bool\", price = \"decimal\" }",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    let stored = remote.table(&plan, "seen")[0].clone();
    let spellings = [
        (1, "2026-01-01T05:00:00.000Z"),
        (1, "2026-01-01 06:00:00+01"),
        (2, "2026-01-01T05:00"),
        (3, "05:00:00.0"),
        (4, "00000000-0000-0000-0000-00000000000A"),
        (5, "true"),
        (6, "7e0"),
    ];
    for (place, spelling) in spellings {
        let mut row = stored.clone();
        row[place] = Value::text(spelling);
        remote.update(&plan, "seen", row);
        let synced = remote.sync(database, &plan);
        assert!(synced.outcomes().is_empty(), "{spelling}: {:?}", synced.outcomes());
        assert_eq!(remote.table(&plan, "seen")[0], stored, "{spelling}");
    }
    remote.assert_equals_fresh(database, &plan);
}

/// The same of zeros, which are equal and have a sign.
pub(crate) fn a_zero_of_the_other_sign_comes_back(database: &Database) {
    database.application("CREATE TABLE reading (id bigint PRIMARY KEY, value double precision); INSERT INTO reading VALUES (1, 0.0), (2, 1)");
    let plan = plan(
        "name = \"zeros\"\nversion = 1\n[tables.reading]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
         columns = { id = \"int not null\", value = \"real\" }",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.update(&plan, "reading", vec![int(1), Value::Real(-0.0)]);
    remote.update(&plan, "reading", vec![int(2), Value::Real(-0.0)]);
    remote.sync(database, &plan);
    let bits = |replica: &Replica| {
        let bits = |row: &Row| if let Value::Real(value) = row[1] { value.to_bits() } else { 1 };
        replica.table(&plan, "reading").iter().map(bits).collect::<Vec<_>>()
    };
    assert_eq!(bits(&remote), bits(&Replica::synced(database, &plan, "anna")));
}

pub(crate) fn conflicts_are_on_record(database: &Database) {
    let plan = with_rule(database, "merge(remote)");
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', NULL, 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("UPDATE customer SET code = 'z' WHERE id = 1; DELETE FROM customer WHERE id = 2");
    remote.update(&plan, "customer", customer(1, "a", "Eve", 1));
    remote.update(&plan, "customer", customer(2, "b", "Bob", 1));
    // More than one statement's worth, to be found by page.
    for id in 10..60 {
        database.application(&format!("INSERT INTO customer VALUES ({id}, 'c{id}', 'theirs', 1)"));
        remote.insert(&plan, "customer", customer(id, &format!("c{id}"), "mine", 1));
    }
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.uploaded.as_ref().map(|uploaded| uploaded.counts.conflicts), Some(52));
    let mut connection = database.connect();
    let all = ConflictQuery { limit: 1_000, ..ConflictQuery::default() };
    let mut records = conflicts(&mut *connection, &all).expect("listed");
    records.sort_by_key(|record| std::cmp::Reverse(record.id));
    assert_eq!(records.len(), 52);
    let record = records.iter().find(|record| record.key == r#"{"id":1}"#).expect("the first");
    assert_eq!(record.old.as_deref(), Some(r#"{"changed":1,"code":"a","id":1,"name":"Ada"}"#));
    assert_eq!(record.uploaded.as_deref(), Some(r#"{"changed":1,"code":"a","id":1,"name":"Eve"}"#));
    assert_eq!(record.stored.as_deref(), Some(r#"{"changed":1,"code":"z","id":1,"name":"Ada"}"#));
    assert_eq!(record.result.as_deref(), Some(r#"{"changed":1,"code":"z","id":1,"name":"Eve"}"#));
    assert_eq!((record.outcome.as_str(), record.table.as_str(), record.user.as_str()), ("merged", "customer", "anna"));
    assert_eq!(record.remote_id, remote.id);
    let record = records.iter().find(|record| record.key == r#"{"id":2}"#).expect("the second");
    assert_eq!((record.stored.as_ref(), record.outcome.as_str()), (None, "remote"));
    let page = ConflictQuery { before: Some(records[9].id), limit: 5, ..all.clone() };
    let page = conflicts(&mut *connection, &page).expect("listed");
    assert_eq!(
        page.iter().map(|record| record.id).collect::<Vec<_>>(),
        records[10..15].iter().map(|r| r.id).collect::<Vec<_>>()
    );
    let none = ConflictQuery { table: Some("orders".into()), ..all.clone() };
    assert!(conflicts(&mut *connection, &none).expect("listed").is_empty());
    let none = ConflictQuery { remote_id: Some([0; 16]), ..all };
    assert!(conflicts(&mut *connection, &none).expect("listed").is_empty());
}

pub(crate) fn newer_wins_in_every_order_of_arrival(database: &Database) {
    let plan = with_rule(database, "newer_wins(changed)");
    // Two at the same time: the greater image wins.
    let images = [customer(1, "a", "one", 7), customer(1, "a", "two", 7), customer(1, "a", "old", 3)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        database.application("DELETE FROM customer; INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
        let mut remotes: Vec<Replica> = images.iter().map(|_| Replica::synced(database, &plan, "anna")).collect();
        for place in order {
            remotes[place].update(&plan, "customer", images[place].clone());
            remotes[place].sync(database, &plan);
        }
        assert_eq!(Replica::synced(database, &plan, "anna").table(&plan, "customer"), [images[1].clone()], "{order:?}");
    }
}

/// A column of a SQLite file that is declared DATETIME stores a text of digits as an integer, and 9999.5 as a real.
#[test]
fn the_newer_number_wins_in_every_order_of_arrival() {
    let database = Database::sqlite();
    database.application("CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME)");
    let plan = super::database::plan(
        "name = \"t\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\nconflict = \"newer_wins(at)\"\n\
         columns = { id = \"int not null\", at = \"timestamp\" }",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    let times = [Value::text("10000"), Value::Real(9999.5), Value::text("9999")];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        database.application("DELETE FROM t; INSERT INTO t VALUES (1, 8)");
        let mut remotes: Vec<Replica> = times.iter().map(|_| Replica::synced(&database, &plan, "anna")).collect();
        for place in order {
            remotes[place].update(&plan, "t", vec![Value::Int(1), times[place].clone()]);
            remotes[place].sync(&database, &plan);
        }
        assert_eq!(database.number("SELECT at FROM t"), 10_000, "{order:?}");
    }
}
