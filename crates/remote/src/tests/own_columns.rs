//! Columns that the application has added to tables of the model.

use headwater_protocol::Value;

use super::support::{Down, Fixture, row, shop};

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

/// With a trigger of the application's that the writing back fires, and what it writes is pending.
#[test]
fn own_columns_and_own_triggers() {
    let f = items();
    f.sql("CREATE TRIGGER app AFTER UPDATE OF \"my own\" ON item WHEN NEW.id = 3 BEGIN UPDATE item SET price = '33' WHERE id = 3; END");
    f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
    f.download(afresh(&f));
    assert_eq!(own(&f), EXPECTED);
    assert_eq!(f.rows("SELECT count(*) FROM hw_log_item"), ["1"]);
    assert_eq!(f.cut_changes(), ["item: 3,north,axe,3 -> 3,north,axe,33"]);
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
