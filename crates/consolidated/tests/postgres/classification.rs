//! What each SQLSTATE is taken for: the row's own fault, which sets it aside, or what passes, which rolls the upload back.
//!
//! The server raises each code as it is told to, so what is tested is what a driver's error becomes, not a copy of a table.

use headwater_consolidated::{Error, Mode};
use headwater_protocol::message::RefusalCode;

use crate::support::Database;

#[derive(Debug, PartialEq)]
enum Kind {
    Refused(RefusalCode),
    Retry { broken: bool },
    Defect,
}
use Kind::{Defect, Refused, Retry};

const TABLE: [(&str, Kind); 48] = [
    ("23505", Refused(RefusalCode::Unique)),
    ("23503", Refused(RefusalCode::ForeignKey)),
    ("23502", Refused(RefusalCode::NotNull)),
    ("23514", Refused(RefusalCode::Check)),
    ("23P01", Refused(RefusalCode::Constraint)),
    ("23001", Refused(RefusalCode::Constraint)),
    ("23000", Refused(RefusalCode::Constraint)),
    ("44000", Refused(RefusalCode::Check)),
    ("22001", Refused(RefusalCode::Data)),
    ("22003", Refused(RefusalCode::Data)),
    ("22007", Refused(RefusalCode::Data)),
    ("22021", Refused(RefusalCode::Data)),
    ("22P02", Refused(RefusalCode::Data)),
    ("42804", Refused(RefusalCode::Data)),
    ("54000", Refused(RefusalCode::Data)),
    ("42501", Refused(RefusalCode::Policy)),
    ("P0001", Refused(RefusalCode::Trigger)),
    ("P0004", Refused(RefusalCode::Trigger)),
    ("09000", Refused(RefusalCode::Trigger)),
    ("27000", Refused(RefusalCode::Trigger)),
    ("38000", Refused(RefusalCode::Trigger)),
    ("ZZ999", Refused(RefusalCode::Trigger)),
    ("21000", Refused(RefusalCode::Trigger)),
    ("0A000", Refused(RefusalCode::Trigger)),
    ("42P01", Refused(RefusalCode::Trigger)),
    ("42883", Refused(RefusalCode::Trigger)),
    ("40001", Retry { broken: false }),
    ("40P01", Retry { broken: false }),
    ("40003", Retry { broken: false }),
    ("55P03", Retry { broken: false }),
    ("55006", Retry { broken: false }),
    ("57014", Retry { broken: false }),
    ("53000", Retry { broken: false }),
    ("53100", Retry { broken: false }),
    ("53200", Retry { broken: false }),
    ("53300", Retry { broken: false }),
    ("53400", Retry { broken: false }),
    ("58000", Retry { broken: false }),
    ("58030", Retry { broken: false }),
    ("57P01", Retry { broken: true }),
    ("57P02", Retry { broken: true }),
    ("57P03", Retry { broken: true }),
    ("57P05", Retry { broken: true }),
    ("25006", Retry { broken: true }),
    ("25P03", Retry { broken: true }),
    ("08006", Retry { broken: true }),
    ("XX000", Defect),
    ("XX001", Defect),
];

#[test]
fn each_code_is_a_rows_fault_or_passes_or_is_a_defect() {
    let database = Database::with("");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begun");
    connection.savepoint().expect("a savepoint");
    for (code, expected) in TABLE {
        let raised =
            connection.execute(&format!("DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END$$"), &[]);
        let kind = match raised {
            Err(Error::Refused { refusal, .. }) => Refused(refusal.code),
            Err(Error::Retry { broken, .. }) => Retry { broken },
            Err(Error::Database { .. }) => Defect,
            other => panic!("{code}: {other:?}"),
        };
        assert_eq!(kind, expected, "SQLSTATE {code}");
        connection.rollback_to_savepoint().expect("back at the savepoint");
    }
}
