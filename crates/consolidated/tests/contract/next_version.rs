//! A version of the model with a column more: what the head tells remotes of either version about the table.

use headwater_consolidated::upload::{self, Verdict};
use headwater_consolidated::{Plan, track};
use headwater_protocol::Value;

use super::database::{Database, MODEL, plan};
use super::replica::{Apply, Replica, find};
use super::values::{int, text};

const ROWS: &str = "INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 2); \
                    INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'y')";

/// The standard model with a nullable column more in a table without partitions, and in one with them.
fn two() -> Plan {
    let customer = ("name = \"text\", changed = \"int\"", "name = \"text\", changed = \"int\", extra = \"text\"");
    let orders = ("region = \"text\", note = \"text\"", "region = \"text\", note = \"text\", extra = \"text\"");
    let model = MODEL.replace("version = 1", "version = 2");
    plan(&model.replace(customer.0, customer.1).replace(orders.0, orders.1))
}

fn add_columns(database: &Database) {
    for table in ["customer", "orders"] {
        database.application(&format!("ALTER TABLE {table} ADD COLUMN extra text"));
    }
}

/// What a remote has seen of the table stays good, under the old version and under the new one.
pub(crate) fn a_column_more_sends_no_row_again(database: &Database) {
    let one = database.standard();
    database.application(ROWS);
    let [mut old, mut new] = [(); 2].map(|()| Replica::synced(database, &one, "anna"));
    let nothing = |remote: &mut Replica, plan: &Plan, when: &str| {
        let synced = remote.sync(database, plan);
        assert_eq!((synced.count(), synced.marks.len()), (0, 0), "{when}: {synced:?}");
    };
    nothing(&mut old, &one, "before the column");
    add_columns(database);
    nothing(&mut old, &one, "before the new version is tracked");
    let two = two();
    track::track(&mut *database.connect(), &two).expect("the new version is tracked");
    nothing(&mut old, &one, "under the old version");
    nothing(&mut new, &two, "under the new version, with marks of the old one");
    database.application("UPDATE customer SET extra = 'c' WHERE id = 1; UPDATE orders SET extra = 'o' WHERE id = 2");
    let synced = new.sync(database, &two);
    assert!(synced.marks.is_empty(), "only what changed: {synced:?}");
    let customer = vec![int(1), text("a"), text("Ada"), int(1), text("c")];
    let orders = vec![int(2), text("south"), text("y"), text("o")];
    let expected = [(find(&two, "customer").number, customer), (find(&two, "orders").number, orders)];
    assert_eq!(synced.upserts, expected);
    assert_eq!(old.sync(database, &one).count(), 2, "the old version gets its own columns of them");
    old.assert_equals_fresh(database, &one);
}

/// An upload under the old version has no value for the column, and makes none of it.
pub(crate) fn the_version_before_leaves_the_column_alone(database: &Database) {
    let one = database.standard();
    database.application(ROWS);
    add_columns(database);
    track::track(&mut *database.connect(), &two()).expect("the new version is tracked");
    database.application("UPDATE customer SET extra = 'c'; UPDATE orders SET extra = 'o'");
    let ways: [Apply; 2] = [upload::apply, upload::apply_isolating];
    for (round, apply) in ways.into_iter().enumerate() {
        let mut remote = Replica::synced(database, &one, "anna");
        let name = format!("of round {round}");
        remote.update(&one, "customer", vec![int(1), text("a"), text(&name), int(1)]);
        remote.update(&one, "orders", vec![int(2), text("north"), text(&name)]);
        let uploaded = remote.upload_by(apply, &mut *database.connect(), &one).expect("uploaded");
        assert_eq!(uploaded.verdict, Verdict::Applied);
        let customers = database.rows("SELECT name, extra FROM customer ORDER BY id");
        assert_eq!(customers, [[text(&name), text("c")], [text("Bob"), text("c")]]);
        let orders = database.rows("SELECT region, note, extra FROM orders ORDER BY id");
        assert_eq!(orders, [[text("north"), text("x"), text("o")], [text("north"), text(&name), text("o")]]);
    }
    // A row that the old version inserts has no value there.
    let mut remote = Replica::synced(database, &one, "anna");
    remote.insert(&one, "customer", vec![int(3), text("d"), text("Dan"), int(3)]);
    remote.sync(database, &one);
    assert_eq!(database.rows("SELECT extra FROM customer WHERE id = 3"), [[Value::Null]]);
}

/// A remote that has all but some columns gets the rows with a value there, wherever they lie; of other columns it can't have said so.
pub(crate) fn what_has_a_value_in_new_columns_comes(database: &Database) {
    let one = database.standard();
    database.application(ROWS);
    let before = Replica::synced(database, &one, "ben");
    add_columns(database);
    let two = two();
    let places = |table: &str, name: &str| {
        let columns = &find(&two, table).table.columns;
        columns.iter().position(|column| column.name == name).expect("a column") as u32
    };
    let (customer, orders) = (places("customer", "extra"), places("orders", "extra"));
    database.application("UPDATE customer SET extra = 'c' WHERE id = 2; UPDATE orders SET extra = 'o'");
    track::track(&mut *database.connect(), &two).expect("the new version is tracked");
    // It has seen the values' changes, under the version before.
    let seen = Replica { watermarks: Replica::synced(database, &one, "ben").watermarks, ..before.clone() };
    let upgraded = |columns: &[(&str, u32)]| {
        let mut remote = seen.clone();
        let of = |table: &str| columns.iter().filter(|(name, _)| *name == table).map(|(_, place)| *place).collect();
        remote.extended = vec![Vec::new(); remote.watermarks.marks.len()];
        for entry in &mut remote.watermarks.entries {
            let new: Vec<u32> = of(&one.tables[entry.table as usize].table.name);
            remote.watermarks.marks.push(remote.watermarks.marks[entry.mark as usize].clone());
            remote.extended.push(new);
            entry.mark = remote.extended.len() as u32 - 1;
        }
        remote.sync(database, &two)
    };
    let synced = upgraded(&[("customer", customer), ("orders", orders)]);
    let of_customer = vec![int(2), text("b"), text("Bob"), int(2), text("c")];
    let of_orders = vec![int(1), text("north"), text("x"), text("o")];
    let expected = [(find(&two, "customer").number, of_customer), (find(&two, "orders").number, of_orders)];
    assert_eq!((synced.upserts.as_slice(), synced.marks.len()), (&expected[..], 0), "not what lies in the south");
    let other = places("customer", "changed");
    assert_eq!(upgraded(&[("customer", other), ("customer", customer)]).count(), 2, "a value in one of them will do");
    for (name, place) in [("the key", 0), ("one that may not be NULL", 1), ("none", 40)] {
        let synced = upgraded(&[("customer", place)]);
        let marked: Vec<u32> = synced.marks.iter().map(|mark| mark.table).collect();
        assert_eq!(marked, [find(&two, "customer").number], "{name}: the table comes whole");
        assert_eq!(synced.count(), 2, "{name}");
    }
}
