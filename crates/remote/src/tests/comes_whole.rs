//! A table that comes whole again, in a file with triggers and columns of the application's: they see what differs, and nothing else.

use headwater_model::{OnDelete, Reference};
use headwater_protocol::{Row, Type, Value};

use super::support::{Down, Fixture, model, row, shop, table};
use crate::{state::State, untracked};

/// Why a table comes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The database was restored.
    Restart,
    /// The database can't tell its changes any more.
    Afresh,
    /// Change tracking was off here, and the table is compared.
    Compared,
    /// The same, before its changes have come.
    AtOnce,
}

const ALL: [Why; 4] = [Why::Restart, Why::Afresh, Why::Compared, Why::AtOnce];

/// Triggers that put down what they see, delete lines by hand, and keep a stock.
const TRIGGERS: &str = "CREATE TABLE seen (what);
    CREATE TRIGGER app_0 BEFORE INSERT ON doc BEGIN INSERT INTO seen VALUES ('before insert ' || NEW.id); END;
    CREATE TRIGGER app_1 AFTER INSERT ON doc BEGIN INSERT INTO seen VALUES ('insert ' || NEW.id);
        UPDATE stock SET count = count + NEW.edits; END;
    CREATE TRIGGER app_2 AFTER UPDATE ON doc BEGIN INSERT INTO seen VALUES ('update ' || NEW.id);
        UPDATE stock SET count = count + NEW.edits - OLD.edits; END;
    CREATE TRIGGER app_3 BEFORE DELETE ON doc BEGIN INSERT INTO seen VALUES ('delete ' || OLD.id);
        DELETE FROM line WHERE doc = OLD.id; UPDATE stock SET count = count - OLD.edits; END;";

/// Documents 1 to 3 with two lines each, and a stock, which nobody has changed since they came.
fn docs(triggers: &str) -> Fixture {
    let doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("edits", Type::Int)]);
    let mut line = table("line", &[("id", Type::Int), ("doc", Type::Int)]);
    line.references = vec![Reference { columns: vec![1], table: 0, target: vec![0], on_delete: OnDelete::NoAction }];
    let f = Fixture::new(&model(vec![doc, line, table("stock", &[("id", Type::Int), ("count", Type::Int)])]));
    let lines: Vec<Row> = (1..=6).map(|line| row(&format!("{line},{}", (line + 1) / 2))).collect();
    let down = f.down().whole("doc", &[]).rows("doc", &old()).whole("line", &[]).rows("line", &lines);
    f.download(down.whole("stock", &[]).rows("stock", &[row("1,6")]));
    f.sql(triggers);
    f
}

fn old() -> [Row; 3] {
    [row("1,one,1"), row("2,two,2"), row("3,three,3")]
}

/// The table's next download, which brings these rows.
fn again(f: &mut Fixture, why: Why, rows: &[Row]) -> Down {
    let down = |f: &Fixture| f.down().holds("line", &[]).holds("stock", &[]);
    match why {
        Why::Restart => f.remote.database.write("a test", State::forget_seen).expect("forgotten"),
        Why::Afresh => {}
        Why::Compared | Why::AtOnce => {
            for name in f
                .rows("SELECT name FROM sqlite_schema WHERE name GLOB 'hw_*' AND tbl_name = 'doc' AND type = 'trigger'")
            {
                f.sql(&format!("DROP TRIGGER {name}"));
            }
            f.reopen();
        }
    }
    if why == Why::Compared {
        f.download(down(f).holds("doc", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
    }
    match why {
        Why::Restart => {
            let lines: Vec<Row> = (1..=6).map(|line| row(&format!("{line},{}", (line + 1) / 2))).collect();
            let down = f.down().whole("doc", &[]).rows("doc", rows).whole("line", &[]).rows("line", &lines);
            down.whole("stock", &[]).rows("stock", &[row("1,6")])
        }
        _ => down(f).whole("doc", &[]).rows("doc", rows),
    }
}

fn seen(f: &Fixture) -> Vec<String> {
    f.rows("SELECT what FROM seen ORDER BY rowid")
}

#[test]
fn triggers_see_nothing_of_rows_that_come_as_they_are() {
    for why in ALL {
        let mut f = docs(TRIGGERS);
        let down = again(&mut f, why, &old());
        f.download(down);
        assert_eq!(seen(&f), Vec::<String>::new(), "{why:?}");
        assert_eq!(f.rows("SELECT count(*) FROM line"), ["6"], "{why:?}");
        assert_eq!((f.cut(), f.set_aside()), (None, Vec::new()), "{why:?}");
        f.check();
    }
}

#[test]
fn triggers_see_what_differs() {
    for why in [Why::Restart, Why::Afresh] {
        let mut f = docs(TRIGGERS);
        f.sql("DELETE FROM line WHERE doc = 3; DELETE FROM hw_log_line");
        let mut down = again(&mut f, why, &[row("1,one,1"), row("2,zwei,5"), row("4,four,4")]);
        if why == Why::Restart {
            let lines: Vec<Row> = (1..=4).map(|line| row(&format!("{line},{}", (line + 1) / 2))).collect();
            down = f.down().whole("doc", &[]).rows("doc", &[row("1,one,1"), row("2,zwei,5"), row("4,four,4")]);
            down = down.whole("line", &[]).rows("line", &lines).whole("stock", &[]).rows("stock", &[row("1,6")]);
        }
        f.download(down);
        assert_eq!(seen(&f), ["update 2", "before insert 4", "insert 4", "delete 3"], "{why:?}");
        assert_eq!(f.rows("SELECT * FROM doc"), ["1|one|1", "2|zwei|5", "4|four|4"], "{why:?}");
        assert_eq!(f.rows("SELECT count FROM stock"), ["10"], "{why:?}");
        f.check();
    }
}

/// What was made, changed and deleted here without a trace: it stays as it is, and is set aside.
#[test]
fn triggers_see_nothing_of_rows_that_were_made_here_without_a_trace() {
    for why in [Why::Compared, Why::AtOnce] {
        let mut f = docs(TRIGGERS);
        let down = again(&mut f, why, &old()[..2]);
        f.download(down);
        assert_eq!(seen(&f), Vec::<String>::new(), "{why:?}");
        assert_eq!(f.rows("SELECT id FROM doc"), ["1", "2", "3"], "{why:?}");
        assert_eq!(f.set_aside(), [r#"doc {"id":3} untracked in place"#], "{why:?}");
        assert_eq!(f.rows("SELECT count(*) FROM line"), ["6"], "{why:?}");
        f.check();
    }
}

/// A trigger writes to a row that does not come: the change stays, beside the deletion.
#[test]
fn what_a_trigger_writes_to_a_row_that_does_not_come_is_not_lost() {
    let f = docs(
        "CREATE TRIGGER app AFTER UPDATE ON doc WHEN NEW.id = 1 BEGIN UPDATE doc SET edits = 9 WHERE id IN (2, 3); END",
    );
    let down = f.down().whole("doc", &[]).rows("doc", &[row("1,uno,1"), row("2,two,2")]);
    f.download(down.holds("line", &[]).holds("stock", &[]));
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|uno|1", "2|two|9", "3|three|9"]);
    assert_eq!(f.held(), 1, "the deletion of the third");
    assert_eq!(f.cut_changes(), ["doc: 2,two,2 -> 2,two,9", "doc: 3,three,3 -> 3,three,9"]);
    f.check();
}

/// The application's own columns keep what they hold, with a CHECK on them too.
#[test]
fn own_columns_keep_what_they_hold() {
    for own in ["mine TEXT NOT NULL DEFAULT 'new' CHECK (mine <> 'new')", "mine TEXT DEFAULT 'new'"] {
        for why in ALL {
            let mut f = docs("");
            f.sql("ALTER TABLE doc ADD COLUMN mine TEXT; UPDATE doc SET mine = 'own' || id");
            f.sql(&format!(
                "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = replace(sql, 'mine TEXT', '{}') \
                            WHERE name = 'doc'; PRAGMA writable_schema = RESET",
                own.replace('\'', "''")
            ));
            f.reopen();
            let down = again(&mut f, why, &old());
            f.download(down);
            assert_eq!(
                f.rows("SELECT id, title, mine FROM doc"),
                ["1|one|own1", "2|two|own2", "3|three|own3"],
                "{why:?}"
            );
            assert_eq!(f.cut(), None, "{why:?}");
        }
    }
}

/// Unique values have moved between rows, and to a new one from one that is gone.
#[test]
fn unique_values_move_between_rows_that_come_whole() {
    let north = [Value::text("north")];
    let f = Fixture::new(&shop());
    let rows = [row("1,north,axe,$1"), row("2,north,saw,$2"), row("3,north,hoe,$3"), row("4,north,awl,$4")];
    f.download(f.down().whole("item", &north).rows("item", &rows).whole("kind", &[]).whole("part", &[]));
    for trigger in ["", "CREATE TRIGGER app AFTER UPDATE ON item BEGIN SELECT 1; END"] {
        f.sql(trigger);
        let moved = [row("5,north,awl,$5"), row("1,north,saw,$1"), row("2,north,hoe,$2"), row("3,north,axe,$3")];
        for came in [&moved[..], &rows[..]] {
            let applied =
                f.download(f.down().whole("item", &north).rows("item", came).holds("kind", &[]).holds("part", &[]));
            assert_eq!((applied.held, applied.set_aside, applied.not_stored), (0, 0, 0));
            assert_eq!(f.rows("SELECT id || ' ' || name FROM item ORDER BY id"), expected(came));
            assert_eq!(f.cut(), None);
            f.check();
        }
    }
}

/// Numbers and names of items, in order.
fn expected(items: &[Row]) -> Vec<String> {
    let text = |row: &Row| match (&row[0], &row[2]) {
        (Value::Int(id), Value::Text(name)) => format!("{id} {}", String::from_utf8_lossy(name)),
        other => panic!("{other:?} is no item"),
    };
    let mut items: Vec<String> = items.iter().map(text).collect();
    items.sort();
    items
}
