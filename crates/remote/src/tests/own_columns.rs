//! Columns that the application has added to tables of the model.

use headwater_model::remote_sql::{KeyTraits, Term, Unique, triggers};
use headwater_protocol::{Type, Value};

use super::support::{Down, Fixture, model, row, shop, table};

fn north() -> [Value; 1] {
    [Value::text("north")]
}

/// Items 1 to 4, with a column of the application's own, and one that is generated.
fn items() -> Fixture {
    let mut f = Fixture::new(&shop());
    let rows = [row("1,north,axe,$1"), row("2,north,saw,$2"), row("3,north,hoe,$3"), row("4,north,awl,$4")];
    f.download(f.down().whole("item", &north()).rows("item", &rows).whole("kind", &[]).whole("part", &[]));
    f.sql("ALTER TABLE item ADD COLUMN \"my own\" TEXT; ALTER TABLE item ADD COLUMN loud AS (upper(name))");
    f.sql("UPDATE item SET \"my own\" = 'local' || id");
    f.reopen();
    assert_eq!(f.cut(), None, "it is nobody else's");
    f
}

fn own(f: &Fixture) -> Vec<String> {
    f.rows("SELECT id, name, \"my own\", loud FROM item ORDER BY id")
}

/// Unique values have moved between the rows, one row is gone and one is new.
fn afresh(f: &Fixture) -> Down {
    let rows = [row("5,north,awl,$5"), row("1,north,saw,$1"), row("2,north,hoe,$2"), row("3,north,axe,$3")];
    f.down().whole("item", &north()).rows("item", &rows)
}

const EXPECTED: [&str; 4] = ["1|saw|local1|SAW", "2|hoe|local2|HOE", "3|axe|local3|AXE", "5|awl|NULL|AWL"];

#[test]
fn own_columns_outlive_a_fresh_start() {
    let f = items();
    f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
    f.download(afresh(&f));
    assert_eq!(own(&f), EXPECTED);
    assert_eq!(f.cut(), None);
    f.download(afresh(&f));
    assert_eq!(own(&f), EXPECTED, "a table that comes whole for another reason");
    f.check();
}

#[test]
fn own_columns_of_rows_that_step_aside_stay() {
    let f = items();
    f.download(f.down().rows("item", &[row("1,north,saw,$1"), row("2,north,hoe,$2"), row("3,north,axe,$3")]));
    let expected = ["1|saw|local1|SAW", "2|hoe|local2|HOE", "3|axe|local3|AXE", "4|awl|local4|AWL"];
    assert_eq!(own(&f), expected);
    f.check();
}

/// With a trigger of the application's no row goes, so there is nothing to be written back.
#[test]
fn own_columns_and_own_triggers() {
    let f = items();
    f.sql("CREATE TRIGGER app AFTER UPDATE OF \"my own\" ON item WHEN NEW.id = 3 BEGIN UPDATE item SET price = '33' WHERE id = 3; END");
    f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
    f.download(afresh(&f));
    assert_eq!(own(&f), EXPECTED);
    assert_eq!((f.rows("SELECT count(*) FROM hw_log_item"), f.cut()), (vec!["0".to_owned()], None));
    f.check();
}

/// What does not fit any more, or is refused, keeps no download from being applied.
#[test]
fn own_columns_never_block_a_download() {
    for obstacle in [
        "CREATE TRIGGER app BEFORE UPDATE OF \"my own\" ON item BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER app BEFORE UPDATE OF \"my own\" ON item BEGIN SELECT RAISE(IGNORE); END",
    ] {
        let f = items();
        f.sql(obstacle);
        f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
        f.download(afresh(&f));
        assert_eq!(own(&f)[0], "1|saw|local1|SAW");
        assert_eq!(f.cut(), None);
        f.check();
    }
}

/// The triggers name an application's own columns only where a unique index of its own needs them, and as long as it is there.
#[test]
fn own_columns_can_be_dropped() {
    let mut f = super::tracking::fixture();
    f.sql(
        "ALTER TABLE item ADD COLUMN extra; ALTER TABLE item ADD COLUMN \"my memo\"; ALTER TABLE item ADD COLUMN memo",
    );
    f.sql("CREATE UNIQUE INDEX own ON item (lower(\"my memo\")); CREATE UNIQUE INDEX one ON item (memo, (0))");
    f.reopen();
    f.sql("UPDATE item SET \"my memo\" = 'm' || id, memo = id; ALTER TABLE item DROP COLUMN extra");
    f.sql("REPLACE INTO item (id, name, \"my memo\") VALUES (10, 'j', 'M1')");
    let replaced = ["item: 1,a,x -> -", "item: - -> 10,j,NULL"];
    assert_eq!(f.cut_changes(), replaced, "rows that are replaced through the index are tracked");
    f.receipt(Vec::new());
    f.sql("DROP INDEX own; DROP INDEX one");
    f.reopen();
    f.sql("ALTER TABLE item DROP COLUMN \"my memo\"; ALTER TABLE item DROP COLUMN memo");
    f.sql("REPLACE INTO item VALUES (11, 'b', 'y')");
    assert_eq!(f.cut_changes(), ["item: 2,b,x -> -", "item: - -> 11,b,y"]);
    f.check();
}

/// What an earlier build has left: triggers that name all columns, and one for an index that is gone.
#[test]
fn triggers_of_an_earlier_build_raise_no_doubt() {
    let mut f = super::tracking::fixture();
    f.sql("ALTER TABLE item ADD COLUMN extra; CREATE UNIQUE INDEX own ON item (lower(note), id)");
    let columns = ["id", "name", "note", "extra"].map(str::to_owned);
    let earlier = Unique {
        terms: vec![Term::Expression("lower(note)".to_owned(), columns.to_vec()), Term::Column("id".to_owned(), None)],
        filter: None,
    };
    let item = &f.remote.plan.tables[0];
    let mut uniques = Unique::of_model(&item.table);
    uniques.push(earlier);
    for trigger in triggers(0, &item.table, &uniques, KeyTraits::default()) {
        f.sql(&format!("DROP TRIGGER IF EXISTS {}; {}", trigger.name, trigger.sql));
    }
    f.sql("DROP VIEW hw_made_item");
    crate::untracked::record(&f.remote.database.connection, item).expect("recorded");
    f.reopen();
    assert!(!crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"));
    f.sql("ALTER TABLE item DROP COLUMN extra; CREATE TRIGGER hw_update_unique_leaf BEFORE UPDATE ON leaf BEGIN SELECT 1; END");
    let leaf = &f.remote.plan.tables[3];
    crate::untracked::put_in_order(&f.remote.database.connection, leaf).expect("marked");
    crate::untracked::record(&f.remote.database.connection, leaf).expect("recorded");
    f.reopen();
    assert_eq!(f.rows("SELECT count(*) FROM sqlite_schema WHERE name = 'hw_update_unique_leaf'"), ["0"]);
    assert!(!crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"));
}

/// The name of a trigger is that of another kind on another table.
#[test]
fn triggers_of_a_table_with_a_similar_name_stay() {
    let columns = [("id", Type::Text), ("name", Type::Text)];
    let f = Fixture::new(&model(vec![table("unique_item", &columns), table("item", &columns)]));
    f.sql("INSERT INTO unique_item VALUES ('a', 'b')");
    f.upload_all();
    f.sql("UPDATE unique_item SET name = 'c'");
    assert_eq!(f.cut_changes(), ["unique_item: a,b -> a,c"]);
}
