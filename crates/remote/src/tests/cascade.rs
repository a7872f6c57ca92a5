//! What SQLite does to rows that refer to a table while the application drops it, with `PRAGMA foreign_keys = ON`.

use headwater_model::{OnDelete, Reference};
use headwater_protocol::Type;

use super::support::{Fixture, model, row, table};
use crate::{Choice, PendingChoice};

/// Invoices and calls of customers, and lines of invoices: what goes with a customer, and what only loses it.
fn customers() -> Fixture {
    let refers = |table, on_delete| vec![Reference { columns: vec![1], table, target: vec![0], on_delete }];
    let columns = |parent| [("id", Type::Int), (parent, Type::Int), ("text", Type::Text)];
    let customer = table("customer", &[("id", Type::Int), ("name", Type::Text)]);
    let [mut invoice, mut line, mut call] = [("invoice", "customer"), ("line", "invoice"), ("call", "customer")]
        .map(|(name, to)| table(name, &columns(to)));
    invoice.references = refers(0, OnDelete::Cascade);
    line.references = refers(1, OnDelete::Cascade);
    call.references = refers(0, OnDelete::SetNull);
    let f = Fixture::new(&model(vec![customer, invoice, line, call]));
    f.download(
        f.down()
            .whole("customer", &[])
            .rows("customer", &[row("1,ann"), row("2,bob")])
            .whole("invoice", &[])
            .rows("invoice", &[row("10,1,a"), row("11,2,b"), row("12,-,c")])
            .whole("line", &[])
            .rows("line", &[row("100,10,x"), row("101,-,y")])
            .whole("call", &[])
            .rows("call", &[row("7,1,hello"), row("8,-,none")]),
    );
    f
}

/// The twelve steps with foreign keys left on, as a migration does them.
const REBUILD: &str = "BEGIN; CREATE TABLE customer_new (id INTEGER NOT NULL PRIMARY KEY, name TEXT, note TEXT); \
     INSERT INTO customer_new (id, name) SELECT id, name FROM customer; DROP TABLE customer; \
     ALTER TABLE customer_new RENAME TO customer; COMMIT";

const GONE: [&str; 4] = [
    r#"line {"id":100} gone in place"#,
    r#"call {"id":7} gone in place"#,
    r#"invoice {"id":11} gone in place"#,
    r#"invoice {"id":10} gone in place"#,
];

fn came_again(f: &Fixture) {
    f.download(f.down().whole("customer", &[]).rows("customer", &[row("1,ann"), row("2,bob")]));
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn what_went_with_a_table_that_is_dropped_or_rebuilt_is_not_sent() {
    for (change, is_meanwhile) in [("DROP TABLE customer", false), (REBUILD, false), (REBUILD, true)] {
        let mut f = customers();
        f.sql("UPDATE invoice SET text = 'edited' WHERE id = 12; DELETE FROM line WHERE id = 101");
        f.sql(change);
        assert_eq!(
            f.rows("SELECT (SELECT count(*) FROM invoice), (SELECT count(*) FROM call WHERE customer = 1)"),
            ["1|0"]
        );
        if !is_meanwhile {
            f.reopen();
        }
        let own = ["invoice: 12,NULL,c -> 12,NULL,edited", "line: 101,NULL,y -> -"];
        assert_eq!(f.cut_changes(), own, "{change}: what the application asked for is sent");
        assert_eq!(sorted(f.set_aside()), sorted(GONE.map(str::to_owned).to_vec()));
        f.receipt(Vec::new());
        came_again(&f);
        assert_eq!(f.cut(), None, "{change}");
        assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("brought back"), 4);
        assert_eq!(f.rows("SELECT * FROM invoice"), ["10|1|a", "11|2|b", "12|NULL|edited"]);
        assert_eq!(f.rows("SELECT * FROM line"), ["100|10|x"]);
        assert_eq!(f.rows("SELECT * FROM call"), ["7|1|hello", "8|NULL|none"]);
        assert_eq!(f.cut(), None, "{change}");
        f.check();
    }
}

#[test]
fn what_went_with_a_table_is_sent_if_somebody_says_so() {
    let mut f = customers();
    f.sql(REBUILD);
    f.reopen();
    came_again(&f);
    assert_eq!(f.remote.retry(&Choice::All).expect("sent").changes, 4);
    let sent =
        ["invoice: 10,1,a -> -", "invoice: 11,2,b -> -", "line: 100,10,x -> -", "call: 7,1,hello -> 7,NULL,hello"];
    assert_eq!(f.cut_changes(), sent);
    f.check();
}

/// Rows of three tables are gone with their tables, and those of a fourth are gone with the second.
#[test]
fn tables_that_go_together_send_nothing() {
    let mut f = customers();
    f.sql("DROP TABLE customer; DROP TABLE invoice; DROP TABLE call");
    f.reopen();
    assert_eq!(f.cut(), None);
    let down = f.down().whole("customer", &[]).rows("customer", &[row("1,ann"), row("2,bob")]);
    f.download(down.whole("invoice", &[]).rows("invoice", &[row("10,1,a")]).whole("call", &[]));
    assert_eq!(f.cut(), None);
    f.remote.drop_set_aside(&Choice::Table("line".to_owned())).expect("brought back");
    assert_eq!(f.rows("SELECT * FROM line"), ["100|10|x", "101|NULL|y"]);
    assert_eq!(f.remote.drop_pending(&PendingChoice::All).expect("nothing"), 0);
    f.check();
}

/// A foreign key that only the file has.
#[test]
fn a_foreign_key_of_the_applications_own_counts() {
    let tables = [
        table("kind", &[("id", Type::Int), ("name", Type::Text)]),
        table("part", &[("id", Type::Int), ("kind", Type::Int)]),
    ];
    let mut f = Fixture::new(&model(tables.to_vec()));
    f.sql(
        "DROP TABLE part; CREATE TABLE part (id INTEGER PRIMARY KEY, kind INTEGER REFERENCES kind ON DELETE CASCADE)",
    );
    f.reopen();
    f.download(f.down().whole("kind", &[]).rows("kind", &[row("1,a")]).whole("part", &[]).rows("part", &[row("5,1")]));
    f.sql("DROP TABLE kind");
    f.reopen();
    assert_eq!((f.cut(), f.set_aside()), (None, vec![r#"part {"id":5} gone in place"#.to_owned()]));
    f.check();
}

/// A migration that renames the table first: SQLite changes the references to it, and they go with the old name.
#[test]
fn a_table_that_is_renamed_before_it_is_rebuilt_sends_nothing() {
    let mut f = customers();
    f.sql(
        "ALTER TABLE customer RENAME TO customer_old; CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT); \
         INSERT INTO customer SELECT * FROM customer_old; DROP TABLE customer_old",
    );
    f.reopen();
    assert_eq!((f.cut(), sorted(f.set_aside())), (None, sorted(GONE.map(str::to_owned).to_vec())));
}
