//! `hw_next_key` names no key that a row has, however the row came.

use headwater_model::KeyRangeRule;
use headwater_protocol::Type;
use rusqlite::config::DbConfig;

use super::support::{Fixture, model, query, row, table};
use crate::key_ranges;

const NEXT: &str = "SELECT key, \"left\" FROM hw_next_key WHERE \"table\" = 'item'";
const INSERT: &str = "INSERT INTO item (id) SELECT key FROM hw_next_key WHERE \"table\" = 'item'";

/// `item (id, of)` with keys 1000 to 1009, and 1050 to 1059.
fn items() -> Fixture {
    let mut item = table("item", &[("id", Type::Int), ("of", Type::Int)]);
    item.key_range = Some(KeyRangeRule { size: 10, from: 1000 });
    let f = Fixture::new(&model(vec![table("other", &[("id", Type::Int)]), item]));
    f.sql("INSERT INTO hw_key_range VALUES (1, 1000, 1009, 1000), (1, 1050, 1059, 1050)");
    f
}

/// What is left of each range, as the server is told.
fn left(f: &Fixture) -> Vec<(i64, i64)> {
    let left = key_ranges::left(&f.remote.database.connection, &f.remote.plan).expect("the ranges are read");
    left.map(|left| left.ranges.iter().map(|range| (range.first, range.last)).collect()).unwrap_or_default()
}

#[test]
fn keys_that_came_down_are_passed_over() {
    let f = items();
    let came = ["1000,1", "1001,1", "1003,1"].map(row);
    f.download(f.down().whole("item", &[]).rows("item", &came));
    assert_eq!(f.rows(NEXT), ["1002|18"]);
    assert_eq!(left(&f), [(1002, 1009), (1050, 1059)]);
    f.sql(INSERT);
    assert_eq!(f.rows(NEXT), ["1004|16"], "1003 came down in the middle of the range");
    // A row that goes again gives its key to nobody.
    f.download(f.down().delete("item", &[row("1003")]));
    f.sql("DELETE FROM item WHERE id = 1002");
    assert_eq!(f.rows(NEXT), ["1004|16"]);
    assert_eq!(f.cut_changes(), Vec::<String>::new());
    f.check();
}

/// The row behind a range's last key is in another remote's range, and says nothing of this one.
#[test]
fn a_range_of_which_every_key_is_taken_is_used_up() {
    let f = items();
    let came: Vec<_> = (1000..=1012).map(|id| row(&format!("{id},1"))).collect();
    f.download(f.down().whole("item", &[]).rows("item", &came));
    assert_eq!(f.rows("SELECT next FROM hw_key_range"), ["1010", "1050"]);
    assert_eq!(f.rows(NEXT), ["1050|10"]);
    let came: Vec<_> = (1051..=1060).map(|id| row(&format!("{id},1"))).collect();
    f.download(f.down().rows("item", &came));
    f.sql(INSERT);
    assert_eq!(f.rows(NEXT), Vec::<String>::new());
    assert_eq!(left(&f), [(1059, 1059)], "the newest is told by its last key");
    f.check();
}

/// A table made anew under its name has lost its triggers, and the view must not keep anybody from doing that.
#[test]
fn keys_that_were_used_untracked_are_passed_over_when_the_file_is_opened() {
    let mut f = items();
    f.sql(INSERT);
    f.sql(
        "CREATE TABLE new_item (id INTEGER PRIMARY KEY, of BIGINT, mine TEXT); \
         INSERT INTO new_item (id, of) SELECT id, of FROM item; DROP TABLE item; \
         PRAGMA legacy_alter_table = OFF; ALTER TABLE new_item RENAME TO item",
    );
    f.sql(INSERT);
    assert!(f.application.execute(INSERT, []).is_err(), "nothing moves the range on");
    f.reopen();
    assert_eq!(f.rows(NEXT), ["1002|18"]);
    assert_eq!(left(&f), [(1002, 1009), (1050, 1059)]);
    f.sql(INSERT);
    assert_eq!(f.rows("SELECT id FROM item"), ["1000", "1001", "1002"]);
    f.check();
}

/// A file of before has triggers that move a range on by one.
#[test]
fn triggers_of_before_are_made_anew_without_doubt() {
    let mut f = items();
    f.sql(
        "DROP VIEW hw_made_item; DROP TRIGGER hw_key_used_item; \
         CREATE TRIGGER hw_key_used_item AFTER INSERT ON item BEGIN \
         UPDATE hw_key_range SET next = NEW.id + 1 WHERE \"table\" = 1 AND NEW.id BETWEEN next AND last; END; \
         UPDATE hw_tracking SET triggers = (SELECT group_concat(sql, char(10)) FROM (SELECT sql FROM sqlite_schema \
         WHERE type = 'trigger' AND tbl_name = 'item' AND name LIKE 'hw\\_%' ESCAPE '\\' ORDER BY name)) WHERE \"table\" = 1",
    );
    f.reopen();
    assert_eq!(f.rows("SELECT count(*) FROM hw_tracking WHERE doubt > 0"), ["0"]);
    f.download(f.down().whole("item", &[]).rows("item", &[row("1001,1")]));
    f.sql(INSERT);
    assert_eq!(f.rows(NEXT), ["1002|18"]);
}

#[test]
fn a_row_that_a_trigger_takes_away_costs_one_key() {
    let f = items();
    f.download(f.down().whole("item", &[]).rows("item", &[row("1005,1")]));
    f.sql("CREATE TRIGGER app AFTER INSERT ON item BEGIN DELETE FROM item WHERE id = NEW.id; END");
    f.sql(INSERT);
    assert_eq!(f.rows(NEXT), ["1001|19"]);
}

#[test]
fn names_that_need_quotes_or_are_those_of_the_range_do() {
    for (name, key) in [("last", "next"), ("hw \"it\" em's", "k\"ey"), ("i", "last"), ("j", "first")] {
        let mut item = table(name, &[(key, Type::Int)]);
        item.key_range = Some(KeyRangeRule { size: 10, from: 1000 });
        let f = Fixture::new(&model(vec![item]));
        f.sql("INSERT INTO hw_key_range VALUES (0, 1000, 1009, 1000)");
        f.download(f.down().whole(name, &[]).rows(name, &[row("1000"), row("1002")]));
        assert_eq!(f.rows("SELECT key FROM hw_next_key"), ["1001"], "{name} {key}");
        let quoted = headwater_model::sql::quote(name);
        f.sql(&format!("INSERT INTO {quoted} SELECT key FROM hw_next_key"));
        assert_eq!(f.rows("SELECT key FROM hw_next_key"), ["1003"], "{name} {key}");
        f.check();
    }
}

/// However many rows there are: they are searched by their key.
#[test]
fn no_table_is_read_through_for_its_next_key() {
    let f = items();
    f.sql("CREATE TABLE adopted (id BIGINT NOT NULL PRIMARY KEY)");
    let connection = &f.remote.database.connection;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRIGGER_EQP, true).expect("triggers are explained too");
    let mut plans = Vec::new();
    let item = &f.remote.plan.tables[1];
    let mut adopted = item.table.clone();
    "adopted".clone_into(&mut adopted.name);
    for table in [&item.table, &adopted] {
        for sql in
            [headwater_model::remote_sql::taken_keys(1, table), headwater_model::remote_sql::pass_taken_keys(1, table)]
        {
            plans.push(sql.expect("its keys come in ranges"));
        }
    }
    plans.push("INSERT INTO item (id) VALUES (1000)".to_owned());
    for sql in plans {
        let steps = query(connection, &format!("EXPLAIN QUERY PLAN {sql}"));
        assert!(steps.iter().any(|step| step.contains("SEARCH i ")), "{sql}: {steps:?}");
        assert!(steps.iter().all(|step| !step.contains("SCAN hw_log_item")), "{sql}: {steps:?}");
        let of_ours = steps.iter().skip_while(|step| sql.starts_with("INSERT") && !step.contains("hw_key_used_item"));
        let scans: Vec<_> = of_ours.filter(|step| step.contains("SCAN") && !step.contains("CONSTANT ROW")).collect();
        assert!(scans.is_empty(), "{sql}: {steps:?}");
    }
}

/// A file that was made when the ranges of a table went with it.
#[test]
fn a_file_that_kept_no_ranges_of_tables_that_are_gone_is_put_right() {
    let mut f = items();
    f.sql("DROP TABLE hw_key_range_gone");
    f.reopen();
    let connection = &f.remote.database.connection;
    key_ranges::keep(connection, &f.remote.plan.tables[1]).expect("kept");
    assert_eq!(f.rows("SELECT * FROM hw_key_range_gone"), ["item|1000|1009|1000", "item|1050|1059|1050"]);
    // A copy that goes on under another remote ID has no keys of this one's.
    key_ranges::forget(connection).expect("forgotten");
    assert_eq!(f.rows("SELECT * FROM hw_key_range_gone"), Vec::<String>::new());
    assert_eq!(left(&f), []);
}
