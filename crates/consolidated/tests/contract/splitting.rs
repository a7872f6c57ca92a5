//! What it costs to find the rows at fault, in statements: a number that no machine's speed has a part in.

use headwater_consolidated::{Dialect, Plan};

use super::counting::Counting;
use super::database::Database;
use super::replica::Replica;
use super::values::{customer, int};

/// Uploads; gives how many changes were refused, and how many statements it took.
fn uploaded(database: &Database, plan: &Plan, remote: &mut Replica) -> (usize, usize) {
    let mut counting = Counting::new(database.connect());
    remote.greet(&mut counting, plan).expect("greeted");
    let uploaded = remote.upload(&mut counting, plan).expect("uploaded");
    assert!(counting.taken_back <= counting.statements);
    (uploaded.receipt.outcomes.len(), counting.statements)
}

fn log2(number: usize) -> usize {
    number.ilog2() as usize + 1
}

/// Some of many, at fault for a NULL, a unique constraint or a foreign key.
pub(crate) fn a_few_bad_rows_cost_a_few_statements(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (100000, 'taken', 'x', 1)");
    let n = 4_000;
    for (k, start) in [(1, 0), (10, 10_000)] {
        let mut remote = Replica::synced(database, &plan, "anna");
        for id in 0..n {
            let is_bad = id % (n / k) == n / k / 2;
            let mut row = customer((start + id) as i64, &format!("c{}", start + id), "x", 1);
            if is_bad && id % 2 == 0 {
                row[1] = super::values::NULL;
            } else if is_bad {
                row[1] = super::values::text("taken");
            }
            remote.insert(&plan, "customer", row);
            remote.insert(
                &plan,
                "node",
                vec![int((start + id) as i64), if is_bad { int(-5) } else { super::values::NULL }],
            );
        }
        let (refused, statements) = uploaded(database, &plan, &mut remote);
        assert_eq!(refused, 2 * k);
        // Each is looked for twice at the most, and with SQLite, which checks foreign keys at the end, all of it begins once more.
        let most = 8 * (2 * n / 2_000) + 4 * 2 * (2 * k) * log2(2_000);
        assert!(statements <= most, "{k} bad rows of {n}: {statements} statements, at most {most}");
    }
}

pub(crate) fn a_valid_upload_costs_a_few_statements_whatever_its_order(database: &Database) {
    let plan = database.standard();
    let n = 6_000;
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..n {
        remote.insert(&plan, "customer", customer(id, &format!("c{id}"), "x", 1));
    }
    uploaded(database, &plan, &mut remote);
    // Every row takes the value of the next, the last the first's: and a chain of rows, each before the one it refers to.
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..n {
        remote.update(&plan, "customer", customer(id, &format!("c{}", (id + 1) % n), "moved", 1));
        remote.insert(&plan, "node", vec![int(id), int((id + 1) % n)]);
    }
    let (refused, statements) = uploaded(database, &plan, &mut remote);
    assert_eq!(refused, 0);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'moved'"), n);
    // Some are found one by one before the rest waits.
    let most = 40 * log2(2_000) * 4;
    assert!(statements <= most, "{statements} statements, at most {most}");
}

pub(crate) fn an_upload_that_is_all_bad_costs_statements_in_proportion(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1000000, 'taken', 'x', 1)");
    let many = if database.dialect() == Dialect::Sqlite { 100_000 } else { 4_000 };
    for (code, n, per_row) in [(super::values::NULL, 4_000, 2), (super::values::text("taken"), many, 3)] {
        let mut remote = Replica::synced(database, &plan, "anna");
        for id in 0..n {
            let mut row = customer(id, "", "x", 1);
            row[1] = code.clone();
            remote.insert(&plan, "customer", row);
        }
        let (refused, statements) = uploaded(database, &plan, &mut remote);
        assert_eq!(refused, n as usize);
        let most = per_row * n as usize + 1_000;
        assert!(statements <= most, "{n} bad rows: {statements} statements, at most {most}");
    }
    assert_eq!(database.number("SELECT count(*) FROM customer"), 1);
}
