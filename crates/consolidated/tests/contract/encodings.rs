//! Databases of other encodings than UTF-8 (PostgreSQL).

use super::database::Database;
use super::logged::{logged, only};
use super::replica::Replica;
use super::values::{customer, int, order, text};

/// A database of SQL_ASCII takes texts of any bytes.
pub(crate) fn a_text_that_is_not_utf_8_holds_back_its_row_alone(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO customer VALUES (1, 'a', convert_from('\\xc3a4', 'SQL_ASCII'), 1), (2, 'b', convert_from('\\xe4', 'SQL_ASCII'), 1), \
         (3, 'c', 'plain', 1); INSERT INTO orders VALUES (1, 'north', 'x')",
    );
    let mut anna = Replica::new("anna");
    let (lines, _) = logged(|| anna.sync(database, &plan));
    only(&lines, &["not UTF-8", "table=customer", "key={\"id\":2}"]);
    assert_eq!(anna.table(&plan, "customer"), [customer(1, "a", "\u{e4}", 1), customer(3, "c", "plain", 1)]);
    assert_eq!(anna.table(&plan, "orders").len(), 1);
    // Others come and go meanwhile.
    database.application("UPDATE customer SET changed = 2");
    anna.update(&plan, "orders", order(1, "north", "\u{e4}"));
    let synced = anna.sync(database, &plan);
    assert_eq!((synced.refusals(), synced.upserts.len()), (vec![], 2));
    assert_eq!(database.rows("SELECT note FROM orders"), [[text("\u{e4}")]]);
    // It comes once it is corrected, as changes and as a whole table.
    anna.assert_equals_fresh(database, &plan);
    database.application("UPDATE customer SET name = convert_from('\\xc3a4', 'SQL_ASCII') WHERE id = 2");
    anna.sync(database, &plan);
    assert_eq!(anna.table(&plan, "customer").len(), 3);
    anna.assert_equals_fresh(database, &plan);
}

/// It names no partition that can travel. The log has its bytes, by which it can be found.
pub(crate) fn a_membership_that_is_not_utf_8_is_left_out(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO member VALUES ('anna', convert_from('\\xe4', 'SQL_ASCII')); \
         INSERT INTO orders VALUES (1, 'north', 'x'), (2, convert_from('\\xe4', 'SQL_ASCII'), 'y'), (3, 'south', 'z')",
    );
    let mut anna = Replica::new("anna");
    let (lines, _) = logged(|| anna.sync(database, &plan));
    assert_eq!(anna.table(&plan, "orders"), [order(1, "north", "x"), order(3, "south", "z")]);
    only(&lines, &["a membership is left out", "not UTF-8", "partition=region", "user=anna", "x'e4'"]);
    // A row that goes there leaves, and what goes up is applied.
    database.application("UPDATE orders SET region = convert_from('\\xe4', 'SQL_ASCII') WHERE id = 3");
    anna.update(&plan, "orders", order(1, "north", "mine"));
    let synced = anna.sync(database, &plan);
    assert_eq!((synced.refusals(), synced.deletes.len()), (vec![], 1));
    anna.assert_equals_fresh(database, &plan);
}

/// What the encoding has no character for is the row's fault.
pub(crate) fn a_text_that_the_encoding_lacks_is_set_aside_alone(database: &Database) {
    let plan = database.standard();
    let mut anna = Replica::synced(database, &plan, "anna");
    anna.insert(&plan, "orders", order(1, "north", "\u{e4}"));
    anna.insert(&plan, "orders", order(2, "north", "\u{65e5}"));
    anna.insert(&plan, "orders", order(3, "north", "x"));
    assert_eq!(anna.sync(database, &plan).refusals(), [(1, "data")]);
    anna.rows.retain(|_, row| row[0] != int(2));
    anna.assert_equals_fresh(database, &plan);
    assert_eq!(anna.table(&plan, "orders").len(), 2);
}
