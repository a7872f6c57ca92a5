//! The table Purchase of MLBench: large values, notes of exactly 64 letters unless others are asked for, no row shared between clients. What a row holds follows
//! from its key, so that whoever receives it can tell whether it is right.

use headwater_consolidated::Plan;
use headwater_protocol::message::{Change, ChangeOp, TableHeader};
use headwater_protocol::text::write_timestamp;
use headwater_protocol::{Decimal, Row, Value, ValueRef};

/// The most rows of one employee: a purchase's number stays within 32 bits, as the table has it.
pub const ROWS_MAX: i64 = 1_000_000;

/// The letters of notes, where nobody says otherwise.
pub const NOTES_BYTES: usize = 64;
/// The most.
pub const NOTES_BYTES_MAX: i64 = 1_000_000;
/// Letters that are made at a time.
const BLOCK: usize = 64;
/// About how much one statement puts into the stock.
const STATEMENT_BYTES: usize = 1 << 20;
/// How many rows at most.
const STATEMENT_ROWS: usize = 1_000;

/// What a purchase costs at first, to the six places that the column keeps: a row that the database changes is sent back.
const COST: &str = "123456789.120000";
/// And once it was updated: one more.
const COST_UPDATED: &str = "123456790.120000";
/// When the first was ordered, in microseconds: 2005-01-01.
const ORDERED: i64 = 1_104_537_600_000_000;

/// The model: every user has the purchases of some employees.
const MODEL: &str = r#"
name = "lab_purchase"
version = 1
[partitions.employee]
columns = { emp_id = "int" }
members = "SELECT emp_id FROM lab_member WHERE user_name = :s.user"
[tables.lab_purchase]
direction = "both"
conflict = "CONFLICT"
key = ["emp_id", "purch_id"]
partition = "employee"
[tables.lab_purchase.columns]
emp_id = "int not null"
purch_id = "int not null"
cust_id = "int not null"
cost = "decimal(30,6) not null"
order_date = "timestamp not null"
notes = "text not null"
"#;

/// The rule for conflicts, by whether they are looked for.
const RULES: [&str; 2] = ["off", "consolidated_wins"];

/// The model's text.
pub(super) fn model(detects_conflicts: bool) -> String {
    MODEL.replace("CONFLICT", RULES[usize::from(detects_conflicts)])
}

/// The model, ready.
pub fn plan(detects_conflicts: bool) -> Plan {
    let model = headwater_model::parse::parse("lab_purchase.toml", &model(detects_conflicts));
    Plan::new(model.expect("the built-in model is valid"))
}

/// Rows of Purchase, as clients make and check them.
#[derive(Clone, Debug)]
pub struct Purchases {
    /// The table's header on the wire.
    pub header: TableHeader,
    cost: Decimal,
    cost_updated: Decimal,
    notes_bytes: usize,
}

impl Purchases {
    /// Those of this model, with so many letters of notes.
    pub fn new(plan: &Plan, notes_bytes: usize) -> Purchases {
        let decimal = |text| Decimal::parse(text).expect("a decimal");
        let header = plan.tables[0].header.clone();
        Purchases { header, cost: decimal(COST), cost_updated: decimal(COST_UPDATED), notes_bytes }
    }

    /// The purchase of this number.
    pub fn row(&self, employee: i64, number: i64, is_updated: bool) -> Row {
        let cost = if is_updated { &self.cost_updated } else { &self.cost };
        vec![
            Value::Int(employee),
            Value::Int(number),
            Value::Int(customer(number)),
            Value::Decimal(cost.clone()),
            Value::Timestamp(ordered(number)),
            Value::Text(notes(employee, number, self.notes_bytes)),
        ]
    }

    /// A change of this purchase. An update is to the cost, or back.
    pub fn change(&self, op: ChangeOp, employee: i64, number: i64, is_updated: bool) -> Change {
        let row = |is_updated| Some(self.row(employee, number, is_updated));
        match op {
            ChangeOp::Insert => Change { old: None, new: row(false) },
            ChangeOp::Update => Change { old: row(!is_updated), new: row(is_updated) },
            ChangeOp::Delete => Change { old: row(false), new: None },
        }
    }

    /// Whose purchase this is and its number, if it is right in every column.
    pub fn check(&self, row: &[ValueRef<'_>], is_updated: bool) -> Option<(i64, i64)> {
        let &[
            ValueRef::Int(employee),
            ValueRef::Int(number),
            ValueRef::Int(customer_id),
            ValueRef::Decimal(cost),
            ValueRef::Timestamp(order_date),
            ValueRef::Text(text),
        ] = row
        else {
            return None;
        };
        let expected = if is_updated { &self.cost_updated } else { &self.cost };
        let is_right = customer_id == customer(number)
            && cost.same(&expected.as_ref())
            && order_date == ordered(number)
            && are_notes(text, employee, number, self.notes_bytes);
        is_right.then_some((employee, number))
    }
}

/// A purchase as a remote's file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextRow {
    pub(super) employee: i64,
    pub(super) number: i64,
    pub(super) customer: i64,
    pub(super) cost: String,
    pub(super) ordered: String,
    pub(super) notes: String,
}

impl TextRow {
    /// The purchase of this number.
    pub(super) fn of(employee: i64, number: i64, is_updated: bool, notes_bytes: usize) -> TextRow {
        let mut date = String::new();
        write_timestamp(&mut date, ordered(number));
        TextRow {
            employee,
            number,
            customer: customer(number),
            cost: if is_updated { COST_UPDATED } else { COST }.to_owned(),
            ordered: date,
            notes: String::from_utf8_lossy(&notes(employee, number, notes_bytes)).into_owned(),
        }
    }
}

/// The statements that make the tables: those of the purchases and of who may see them, and the stock that purchases are taken from.
pub fn tables_sql(is_postgresql: bool) -> String {
    let (date, cost, notes) =
        if is_postgresql { ("timestamp", "numeric(30,6)", "text") } else { ("TEXT", "TEXT", "TEXT") };
    let columns = format!(
        "emp_id integer NOT NULL, purch_id integer NOT NULL, cust_id integer NOT NULL, cost {cost} NOT NULL, \
         order_date {date} NOT NULL, notes {notes} NOT NULL, PRIMARY KEY (emp_id, purch_id)"
    );
    format!(
        "CREATE TABLE lab_purchase ({columns});\nCREATE TABLE lab_stock ({columns});\n\
         CREATE TABLE lab_member (user_name varchar(64) NOT NULL, emp_id integer NOT NULL, PRIMARY KEY (user_name, emp_id));\n"
    )
}

/// The tables, in the order in which they are made.
pub const TABLES: [&str; 3] = ["lab_purchase", "lab_stock", "lab_member"];

/// How many purchases one statement puts into the stock.
pub fn rows_a_statement(notes_bytes: usize) -> i64 {
    (STATEMENT_BYTES / notes_bytes.max(1)).clamp(1, STATEMENT_ROWS) as i64
}

/// The statement that puts these purchases of an employee into the stock.
pub fn stock_sql(employee: i64, numbers: std::ops::Range<i64>, notes_bytes: usize) -> String {
    let row = |number: i64| {
        let TextRow { customer, cost, ordered, notes, .. } = TextRow::of(employee, number, false, notes_bytes);
        format!("({employee}, {number}, {customer}, '{cost}', '{ordered}', '{notes}')")
    };
    format!("INSERT INTO lab_stock VALUES {}", numbers.map(row).collect::<Vec<_>>().join(",\n"))
}

/// The columns of a stocked purchase, at this cost.
fn columns(is_updated: bool) -> String {
    let cost = if is_updated { COST_UPDATED } else { COST };
    format!("emp_id, purch_id, cust_id, '{cost}', order_date, notes")
}

/// Whose purchases a statement is about: employees are numbered from 1, those who sync first; what all have in common is number 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of so many who sync, and what they have in common.
    Clients(usize),
    /// Of all others.
    Others(usize),
}

impl Whose {
    fn condition(self, column: &str) -> String {
        match self {
            Whose::Clients(clients) => format!("{column} <= {clients}"),
            Whose::Others(clients) => format!("{column} > {clients}"),
        }
    }
}

/// What changes all their purchases at once.
pub fn all_sql(whose: Whose, op: ChangeOp, is_updated: bool) -> String {
    let cost = if is_updated { COST_UPDATED } else { COST };
    let theirs = whose.condition("emp_id");
    match op {
        ChangeOp::Insert => format!("INSERT INTO lab_purchase SELECT * FROM lab_stock WHERE {theirs}"),
        ChangeOp::Update => format!("UPDATE lab_purchase SET cost = '{cost}' WHERE {theirs}"),
        ChangeOp::Delete => format!("DELETE FROM lab_purchase WHERE {theirs}"),
    }
}

/// Queries that give a row for each difference of their purchases from the stock at this cost, or from nothing where none is to be there.
pub fn differences_sql(whose: Whose, are_there: bool, is_updated: bool) -> Vec<String> {
    let theirs = whose.condition("emp_id");
    if !are_there {
        return vec![format!("SELECT emp_id, purch_id, 'too many' AS fault FROM lab_purchase WHERE {theirs} LIMIT 3")];
    }
    // All at once by `EXCEPT`, which no planner takes row by row.
    let without = |fault: &str, name: &str, these: &str, those: &str| {
        format!(
            "SELECT emp_id, purch_id, '{fault}' AS fault FROM ({these} WHERE {theirs} EXCEPT {those} WHERE {theirs}) AS {name} LIMIT 3"
        )
    };
    let stock = format!("SELECT {} FROM lab_stock", columns(is_updated));
    let there = "SELECT emp_id, purch_id, cust_id, cost, order_date, notes FROM lab_purchase";
    let keys = |table: &str| format!("SELECT emp_id, purch_id FROM {table}");
    vec![
        without("missing or wrong", "wrong", &stock, there),
        without("too many", "more", &keys("lab_purchase"), &keys("lab_stock")),
    ]
}

/// What stands for one key in a checksum: no key comes twice, or for another, without being seen.
pub fn mark(employee: i64, number: i64) -> u64 {
    mixed((employee as u64) << 32 ^ number as u64)
}

fn customer(number: i64) -> i64 {
    number % 1000
}

fn ordered(number: i64) -> i64 {
    ORDERED + number * 1_000_001
}

/// Letters and digits, another text for each key; they don't compress to nothing.
fn notes(employee: i64, number: i64, bytes: usize) -> Vec<u8> {
    let mut state = mark(employee, number);
    let mut notes = Vec::with_capacity(bytes.next_multiple_of(BLOCK));
    while notes.len() < bytes {
        notes.extend_from_slice(&block(&mut state));
    }
    notes.truncate(bytes);
    notes
}

/// Whether these are the key's notes; nothing is allocated.
fn are_notes(text: &[u8], employee: i64, number: i64, bytes: usize) -> bool {
    let mut state = mark(employee, number);
    text.len() == bytes && text.chunks(BLOCK).all(|part| *part == block(&mut state)[..part.len()])
}

/// The next letters of notes.
fn block(state: &mut u64) -> [u8; BLOCK] {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    let mut letters = [0; BLOCK];
    for part in letters.chunks_mut(10) {
        *state = mixed(*state);
        let mut bits = *state;
        for letter in part {
            *letter = LETTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
    letters
}

/// SplitMix64's last step: every bit of the result depends on every bit of the number.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_right_in_every_column_or_not_at_all() {
        let purchases = Purchases::new(&plan(true), NOTES_BYTES);
        let row = purchases.row(3, 7, false);
        let values = |row: &Row| -> Option<(i64, i64)> {
            purchases.check(&row.iter().map(Value::as_ref).collect::<Vec<_>>(), false)
        };
        assert_eq!(values(&row), Some((3, 7)));
        for (column, wrong) in [
            (0, Value::Int(4)),
            (1, Value::Int(8)),
            (2, Value::Int(8)),
            (3, Value::Decimal(Decimal::parse(COST_UPDATED).expect("a decimal"))),
            (4, Value::Timestamp(ORDERED)),
            (5, Value::text("another")),
            (5, Value::Null),
        ] {
            let mut other = row.clone();
            other[column] = wrong;
            assert_eq!(values(&other), None, "column {column}");
        }
        assert_eq!(values(&row[..5].to_vec()), None);
        let Value::Text(notes) = &row[5] else { panic!("{row:?}") };
        assert!(notes.len() == 64 && notes.iter().all(u8::is_ascii_graphic), "{notes:?}");
    }

    #[test]
    fn notes_of_any_length_are_known_to_the_last_letter() {
        for bytes in [1, 9, 63, 64, 65, 1_000, 100_001] {
            let purchases = Purchases::new(&plan(true), bytes);
            let mut row = purchases.row(3, 7, true);
            let is_right = |row: &Row| purchases.check(&row.iter().map(Value::as_ref).collect::<Vec<_>>(), true);
            assert_eq!(is_right(&row), Some((3, 7)), "{bytes}");
            let Value::Text(notes) = &mut row[5] else { panic!("{row:?}") };
            assert_eq!(notes.len(), bytes);
            *notes.last_mut().expect("a letter") ^= 1;
            assert_eq!(is_right(&row), None, "{bytes}: the last letter is another");
            let Value::Text(notes) = &mut row[5] else { panic!("{row:?}") };
            *notes.last_mut().expect("a letter") ^= 1;
            notes.push(b'a');
            assert_eq!(is_right(&row), None, "{bytes}: one more");
            assert!((1..=1_000).contains(&rows_a_statement(bytes)));
        }
        assert_eq!((rows_a_statement(64), rows_a_statement(1 << 20), rows_a_statement(1 << 30)), (1_000, 1, 1));
    }
}
