//! What each SQLSTATE is taken for where the application's code raises it: the row's own fault, which sets it aside, also where the same code
//! of the server's own would pass (those are in the contract's `passing`).
//!
//! The server raises each code as it is told to, so what is tested is what a driver's error becomes, not a copy of a table.

use headwater_consolidated::{Error, Mode};
use headwater_protocol::message::RefusalCode;

use crate::support::Database;

const TABLE: [(&str, RefusalCode); 48] = [
    ("23505", RefusalCode::Unique),
    ("23503", RefusalCode::ForeignKey),
    ("23502", RefusalCode::NotNull),
    ("23514", RefusalCode::Check),
    ("23P01", RefusalCode::Constraint),
    ("23001", RefusalCode::Constraint),
    ("23000", RefusalCode::Constraint),
    ("44000", RefusalCode::Check),
    ("22001", RefusalCode::Data),
    ("22003", RefusalCode::Data),
    ("22007", RefusalCode::Data),
    ("22021", RefusalCode::Data),
    ("22P02", RefusalCode::Data),
    ("42804", RefusalCode::Data),
    ("54000", RefusalCode::Data),
    ("42501", RefusalCode::Policy),
    ("P0001", RefusalCode::Trigger),
    ("P0004", RefusalCode::Trigger),
    ("09000", RefusalCode::Trigger),
    ("27000", RefusalCode::Trigger),
    ("38000", RefusalCode::Trigger),
    ("ZZ999", RefusalCode::Trigger),
    ("21000", RefusalCode::Trigger),
    ("0A000", RefusalCode::Trigger),
    ("42P01", RefusalCode::Trigger),
    ("42883", RefusalCode::Trigger),
    ("40001", RefusalCode::Trigger),
    ("40P01", RefusalCode::Trigger),
    ("40003", RefusalCode::Trigger),
    ("55P03", RefusalCode::Trigger),
    ("55006", RefusalCode::Trigger),
    ("57014", RefusalCode::Trigger),
    ("53000", RefusalCode::Trigger),
    ("53100", RefusalCode::Trigger),
    ("53200", RefusalCode::Trigger),
    ("53300", RefusalCode::Trigger),
    ("53400", RefusalCode::Trigger),
    ("58000", RefusalCode::Trigger),
    ("58030", RefusalCode::Trigger),
    ("57P01", RefusalCode::Trigger),
    ("57P02", RefusalCode::Trigger),
    ("57P03", RefusalCode::Trigger),
    ("57P05", RefusalCode::Trigger),
    ("25006", RefusalCode::Trigger),
    ("25P03", RefusalCode::Trigger),
    ("08006", RefusalCode::Trigger),
    ("XX000", RefusalCode::Trigger),
    ("XX001", RefusalCode::Trigger),
];

#[test]
fn whatever_code_is_raised_it_is_the_rows_fault() {
    let database = Database::with("");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begun");
    connection.savepoint().expect("a savepoint");
    for (code, expected) in TABLE {
        let raised =
            connection.execute(&format!("DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END$$"), &[]);
        let refused = match raised {
            Err(Error::Refused { refusal, .. }) => refusal.code,
            other => panic!("{code}: {other:?}"),
        };
        assert_eq!(refused, expected, "SQLSTATE {code}");
        connection.rollback_to_savepoint().expect("back at the savepoint");
    }
}
