//! Counters: what comes down beside a pending change is counted on from, and nothing is added twice.

use headwater_model::{ColumnType, ConflictRule, Side};
use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};
use headwater_protocol::{Row, Type};

use super::support::{Fixture, model, row, table};
use crate::{Choice, PendingChoice};

/// `stock (id, note, qty, price)`, with counters in the last two: 10 and 5.00 came down.
fn stock() -> Fixture {
    let columns = [("id", Type::Int), ("note", Type::Text), ("qty", Type::Int), ("price", Type::Decimal)];
    let mut stock = table("stock", &columns);
    stock.columns[3].kind = ColumnType::decimal(6, 2);
    (stock.conflict, stock.sum) = (ConflictRule::Merge(Side::Consolidated), vec![2, 3]);
    let f = Fixture::new(&model(vec![stock]));
    f.download(f.down().whole("stock", &[]).rows("stock", &[row("1,a,10,$5.00")]));
    f
}

fn came(f: &Fixture, rows: &[&str]) {
    let rows: Vec<Row> = rows.iter().map(|text| row(text)).collect();
    f.download(f.down().rows("stock", &rows));
}

fn here(f: &Fixture) -> Vec<String> {
    f.rows("SELECT * FROM stock")
}

fn refused(code: RefusalCode) -> Outcome {
    Outcome::Refused(Refusal { code, message: "no".to_owned() })
}

#[test]
fn what_comes_is_counted_on_from() {
    let f = stock();
    f.sql("UPDATE stock SET qty = qty - 1, price = '4.90'");
    came(&f, &["1,a,9,$4.90"]);
    assert_eq!(here(&f), ["1|a|8|4.80"], "another took the same, and it is no less for that");
    came(&f, &["1,a,9,$4.90"]);
    assert_eq!(here(&f), ["1|a|8|4.80"], "the same row once more changes nothing");
    f.sql("UPDATE stock SET qty = qty - 2");
    came(&f, &["1,b,3,$9.95"]);
    assert_eq!(here(&f), ["1|b|0|9.85"]);
    assert_eq!(f.held(), 0);
    assert_eq!(f.cut_changes(), ["stock: 1,b,3,9.95 -> 1,b,0,9.85"]);
    f.check();
}

#[test]
fn a_change_since_the_cut_adds_its_own() {
    for outcome in [None, Some(Outcome::Conflict(ConflictEnd::Merged)), Some(refused(RefusalCode::Check))] {
        let f = stock();
        f.sql("UPDATE stock SET qty = qty - 1");
        f.cut();
        f.sql("UPDATE stock SET qty = qty - 1");
        f.receipt(outcome.clone().map(|outcome| (0, outcome)).into_iter().collect());
        // Others have taken 3.
        let is_refused = matches!(outcome, Some(Outcome::Refused(_)));
        came(&f, &[if is_refused { "1,a,7,$5.00" } else { "1,a,6,$5.00" }]);
        assert_eq!(here(&f), ["1|a|5|5.00"], "{outcome:?}");
        let expected = if is_refused { "1,a,7,5.00" } else { "1,a,6,5.00" };
        assert_eq!(f.cut_changes(), [format!("stock: {expected} -> 1,a,5,5.00")], "{outcome:?}");
    }
}

#[test]
fn what_is_set_aside_counts_too() {
    let mut f = stock();
    f.sql("UPDATE stock SET qty = qty - 4");
    f.cut();
    f.receipt(vec![(0, refused(RefusalCode::Check))]);
    came(&f, &["1,a,6,$5.00"]);
    assert_eq!(here(&f), ["1|a|2|5.00"], "though the row that came is as the change made it");
    came(&f, &["1,a,5,$5.00"]);
    assert_eq!(f.set_aside(), [r#"stock {"id":1} check in place"#]);
    f.remote.retry(&Choice::All).expect("retried");
    assert_eq!(f.cut_changes(), ["stock: 1,a,5,5.00 -> 1,a,1,5.00"]);
    f.receipt(vec![(0, refused(RefusalCode::Check))]);
    f.remote.drop_set_aside(&Choice::All).expect("dropped");
    assert_eq!(here(&f), ["1|a|5|5.00"], "what came last");
    f.sql("UPDATE stock SET qty = qty - 1");
    came(&f, &["1,a,4,$5.00"]);
    f.remote.drop_pending(&PendingChoice::All).expect("dropped");
    assert_eq!(here(&f), ["1|a|4|5.00"]);
    f.check();
}

/// Made again from the list, a change adds what it added to what stands there by then. Two that led to the same number are two.
#[test]
fn what_only_the_list_has_is_added_to_what_is_there() {
    let mut f = stock();
    for (from, to) in [("10", "9"), ("12", "9")] {
        f.sql(&format!("UPDATE stock SET qty = {to}"));
        f.cut();
        f.remote
            .database
            .write("unanswered", |connection| {
                crate::unanswered::take_for_applied(connection, &f.remote.plan, super::support::NOW)
            })
            .expect("taken for applied");
        assert_eq!(f.rows("SELECT qty FROM stock"), [to], "from {from}");
        came(&f, &["1,a,12,$5.00"]);
    }
    assert_eq!(f.set_aside(), [r#"stock {"id":1} unanswered out"#; 2]);
    assert_eq!(here(&f), ["1|a|12|5.00"]);
    came(&f, &["1,a,20,$5.00"]);
    let first = f.remote.set_aside(9).expect("a list").last().map(|note| note.number).expect("a note");
    f.remote.retry(&Choice::Numbers(vec![first])).expect("retried");
    let change = f.cut_changes();
    assert!(
        change == ["stock: 1,a,20,5.00 -> 1,a,19,5.00"] || change == ["stock: 1,a,20,5.00 -> 1,a,17,5.00"],
        "{change:?}"
    );
    f.check();
}

/// Its upload was applied, and nobody can tell what became of the change: a later change adds its own difference alone.
#[test]
fn what_was_not_answered_is_not_added_again() {
    let unanswered = |f: &Fixture| {
        f.sql("UPDATE stock SET qty = qty - 1");
        f.cut();
        let take =
            |connection: &_| crate::unanswered::take_for_applied(connection, &f.remote.plan, super::support::NOW);
        f.remote.database.write("unanswered", take).expect("taken for applied");
    };
    // It comes as it was made.
    let f = stock();
    unanswered(&f);
    came(&f, &["1,a,9,$5.00"]);
    assert_eq!((here(&f), f.set_aside(), f.cut()), (vec!["1|a|9|5.00".to_owned()], vec![], None));
    // The application goes on before anything comes.
    let f = stock();
    unanswered(&f);
    f.sql("UPDATE stock SET qty = qty - 1");
    assert_eq!(f.cut_changes(), ["stock: 1,a,9,5.00 -> 1,a,8,5.00"]);
    f.receipt(Vec::new());
    came(&f, &["1,a,5,$5.00"]);
    assert_eq!(here(&f), ["1|a|5|5.00"]);
    // It does so between the two, and then another row comes.
    let f = stock();
    unanswered(&f);
    f.sql("UPDATE stock SET qty = qty - 1");
    came(&f, &["1,a,7,$5.00"]);
    assert_eq!(here(&f), ["1|a|6|5.00"]);
    assert_eq!(f.cut_changes(), ["stock: 1,a,7,5.00 -> 1,a,6,5.00"]);
    // Asked for, it is added again; given up, it is not.
    let mut f = stock();
    unanswered(&f);
    f.remote.retry(&Choice::All).expect("retried");
    assert_eq!(f.cut_changes(), ["stock: 1,a,10,5.00 -> 1,a,9,5.00"]);
    let mut f = stock();
    unanswered(&f);
    f.remote.drop_set_aside(&Choice::All).expect("dropped");
    assert_eq!(here(&f), ["1|a|10|5.00"], "as it came last");
    f.check();
}

/// The consolidated database was put back: what it lost is not added by itself, also where a later change waits.
#[test]
fn what_was_lost_is_not_added_by_itself() {
    let mut f = stock();
    f.sql("UPDATE stock SET qty = qty - 1");
    f.upload_all();
    f.sql("UPDATE stock SET qty = qty - 2");
    assert_eq!(f.rewind(0), 1);
    f.download(f.down().whole("stock", &[]).rows("stock", &[row("1,a,10,$5.00")]));
    assert_eq!(here(&f), ["1|a|8|5.00"]);
    assert_eq!(f.set_aside(), [r#"stock {"id":1} lost out"#]);
    assert_eq!(f.cut_changes(), ["stock: 1,a,10,5.00 -> 1,a,8,5.00"]);
    f.receipt(Vec::new());
    f.download(f.down());
    f.remote.retry(&Choice::All).expect("retried");
    assert_eq!(f.cut_changes(), ["stock: 1,a,8,5.00 -> 1,a,7,5.00"]);
    f.check();
}

#[test]
fn what_is_no_number_goes_by_the_rule() {
    let f = stock();
    f.sql("UPDATE stock SET qty = NULL, price = 'much'");
    came(&f, &["1,a,9,$4.00"]);
    assert_eq!(here(&f), ["1|a|NULL|much"]);
    assert_eq!(f.held(), 1);
    assert_eq!(f.cut_changes(), ["stock: 1,a,10,5.00 -> 1,a,NULL,much"]);
}

#[test]
fn a_total_that_does_not_fit_is_held() {
    let f = stock();
    f.sql("UPDATE stock SET price = '9999.00'");
    came(&f, &["1,a,10,$6.00"]);
    assert_eq!((here(&f), f.held()), (vec!["1|a|10|9999.00".to_owned()], 1), "10000.00 is too long for the column");
    came(&f, &["1,a,10,$4.00"]);
    assert_eq!((here(&f), f.held()), (vec!["1|a|10|9998.00".to_owned()], 0));
}

/// Two lost changes of a row, between which others changed it: they are one, which adds what both have added.
#[test]
fn lost_changes_are_one_without_what_others_did_in_between() {
    for to in [vec![0], vec![1, 0]] {
        let f = stock();
        f.sql("UPDATE stock SET qty = qty - 3");
        f.upload_all();
        came(&f, &["1,b,3,$9.00"]);
        f.sql("UPDATE stock SET qty = qty - 1, price = '9.50'");
        f.upload_all();
        for to in &to {
            assert_eq!(f.rewind(*to), 1, "{to}");
        }
        f.download(f.down().whole("stock", &[]).rows("stock", &[row("1,a,10,$5.00")]));
        let mut remote = crate::Remote::open(f.remote.path()).expect("the remote opens");
        remote.retry(&Choice::All).expect("sent again");
        assert_eq!(here(&f), ["1|a|6|5.50"], "{to:?}");
        assert_eq!(f.cut_changes(), ["stock: 1,a,10,5.00 -> 1,a,6,5.50"], "{to:?}");
    }
}
