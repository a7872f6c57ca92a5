//! The main path.

use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};

use super::support::{Fixture, row, shop};
use headwater_protocol::Value;

fn refused(code: RefusalCode) -> Outcome {
    Outcome::Refused(Refusal { code, message: "because".to_owned() })
}

#[test]
fn changes_go_up_and_rows_come_down() {
    let f = Fixture::new(&shop());
    assert_eq!(f.cut(), None, "nothing has changed");
    f.download(
        f.down()
            .whole("item", &[Value::text("north")])
            .rows("item", &[row("1,north,axe,$9.50"), row("2,north,saw,$12.00")])
            .whole("kind", &[])
            .whole("part", &[]),
    );
    assert_eq!(f.rows("SELECT * FROM item"), ["1|north|axe|9.50", "2|north|saw|12.00"]);
    assert_eq!(f.cut(), None, "what came down is no change");

    f.sql("UPDATE item SET price = '10.00' WHERE id = 1; DELETE FROM item WHERE id = 2; INSERT INTO kind VALUES (5, 'tool')");
    let end = f.cut().expect("an upload");
    assert_eq!((end.sequence, end.changes), (1, 3));
    let upload = ["item: 1,north,axe,9.50 -> 1,north,axe,10.00", "item: 2,north,saw,12.00 -> -", "kind: - -> 5,tool"];
    assert_eq!(f.upload(), upload);

    f.sql("UPDATE item SET price = '11.00' WHERE id = 1");
    assert_eq!(f.cut(), Some(end), "a retry is the same upload");
    f.receipt(vec![(2, refused(RefusalCode::Unique))]);
    assert_eq!(
        f.pending(),
        [
            r#"item Update {"id":1,"region":"north","name":"axe","price":"10.00"} -> {"id":1,"region":"north","name":"axe","price":"11.00"}"#,
            r#"kind Insert - -> {"id":5,"name":"tool"} aside"#,
        ]
    );
    assert_eq!(f.set_aside(), [r#"kind {"id":5} unique in place"#]);
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,10.00 -> 1,north,axe,11.00"], "what is set aside is not sent");

    f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Consolidated))]);
    f.download(f.down().rows("item", &[row("1,north,axe,$99.00")]));
    let conflict = &f.remote.conflicts(10).expect("a list")[0];
    assert_eq!(conflict.result.as_deref(), Some(r#"{"id":1,"region":"north","name":"axe","price":"99.00"}"#));
    assert!(!conflict.is_open && conflict.end == "consolidated");

    f.sql("UPDATE kind SET name = 'gear' WHERE id = 5");
    assert_eq!(f.cut_changes(), ["kind: - -> 5,gear"], "a local change sends it again, as one net change");
    f.receipt(Vec::new());
    assert_eq!(f.set_aside(), Vec::<String>::new());
    assert_eq!(f.cut(), None);
    f.check();
}
