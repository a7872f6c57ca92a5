//! Counters: columns whose changes are added up.

use headwater_model::{Column, ColumnType, Direction};

use super::*;

/// `stock (id, note, qty int, price decimal(5,2))`, with counters in the last two.
fn table() -> Table {
    let column = |name: &str, kind| Column { name: name.to_owned(), kind, nullable: true };
    let columns = vec![
        column("id", ColumnType::plain(Type::Int)),
        column("note", ColumnType::plain(Type::Text)),
        column("qty", ColumnType::plain(Type::Int)),
        column("price", ColumnType::decimal(5, 2)),
    ];
    Table {
        schema: None,
        name: "stock".to_owned(),
        columns,
        key: vec![0],
        partition: None,
        direction: Direction::Both,
        conflict: ConflictRule::Merge(Side::Consolidated),
        sum: vec![2, 3],
        references: Vec::new(),
        unique: Vec::new(),
        key_range: None,
        shared: false,
        scripts: Vec::new(),
    }
}

fn row(note: &str, qty: impl Into<Option<i64>>, price: &str) -> Row {
    let price = headwater_protocol::Decimal::parse(price).map_or(Value::Null, Value::Decimal);
    vec![Value::Int(1), Value::text(note), qty.into().map_or(Value::Null, Value::Int), price]
}

fn judged(side: Side, old: impl Into<Option<Row>>, new: Row, stored: impl Into<Option<Row>>) -> Judgement {
    let (table, change) = (table(), Change { old: old.into(), new: Some(new) });
    judge_counting(ConflictRule::Merge(side), &table, &table.types(), &change, stored.into().as_ref())
}

const OURS: Side = Side::Remote;
const THEIRS: Side = Side::Consolidated;

#[test]
fn what_both_sides_took_is_taken_twice() {
    for side in [OURS, THEIRS] {
        let judged = |old, new, stored| judged(side, old, new, stored);
        let minus_one = (row("a", 10, "1.00"), row("a", 9, "1.00"));
        assert_eq!(
            judged(minus_one.0.clone(), minus_one.1.clone(), row("a", 9, "1.00")),
            settled(Action::Update(row("a", 8, "1.00"))),
            "stored is as the new image, and one more goes"
        );
        assert_eq!(
            judged(minus_one.0.clone(), minus_one.1.clone(), row("a", 10, "1.00")),
            settled(Action::Update(row("a", 9, "1.00")))
        );
        let both = judged(row("a", 10, "1.00"), row("a", 6, "0.75"), row("a", 7, "3.5"));
        assert_eq!(both, settled(Action::Update(row("a", 3, "3.25"))));
        // A column that did not change adds nothing, and the other side's change is none in conflict.
        let note_alone = judged(row("a", 10, "1.00"), row("b", 10, "1.00"), row("a", 7, "1.00"));
        assert_eq!(note_alone, settled(Action::Update(row("b", 7, "1.00"))));
        let note_there = judged(minus_one.0, minus_one.1, row("c", 7, "1.00"));
        assert_eq!(note_there, settled(Action::Update(row("c", 6, "1.00"))), "counters alone are no conflict");
    }
}

#[test]
fn another_column_in_conflict_is_one_and_the_counter_counts_all_the_same() {
    let (old, new, stored) = (row("a", 10, "1.00"), row("b", 9, "1.00"), row("c", 7, "1.00"));
    let ours = judged(OURS, old.clone(), new.clone(), stored.clone());
    assert_eq!(ours, ended(ConflictEnd::Remote, Action::Update(row("b", 6, "1.00"))));
    let theirs = judged(THEIRS, old, new, stored);
    assert_eq!(theirs, ended(ConflictEnd::Merged, Action::Update(row("c", 6, "1.00"))));
}

#[test]
fn null_goes_by_the_named_side() {
    for (old, new, stored) in [(None, Some(5), Some(7)), (Some(5), None, Some(7)), (Some(5), Some(6), None)] {
        let images = (row("a", old, "1.00"), row("a", new, "1.00"), row("a", stored, "1.00"));
        let ours = judged(OURS, images.0.clone(), images.1.clone(), images.2.clone());
        assert_eq!(ours, ended(ConflictEnd::Remote, Action::Update(images.1.clone())));
        assert_eq!(judged(THEIRS, images.0, images.1, images.2), ended(ConflictEnd::Consolidated, Action::Keep));
    }
    let first = judged(THEIRS, row("a", None, "1.00"), row("a", 5, "1.00"), row("a", None, "1.00"));
    assert_eq!(first, settled(Action::Update(row("a", 5, "1.00"))), "nobody else changed it");
}

#[test]
fn inserts_meet_by_the_named_side_and_a_deleted_row_comes_back() {
    let (new, stored) = (row("a", 5, "1.00"), row("a", 7, "1.00"));
    assert_eq!(judged(THEIRS, None, new.clone(), stored.clone()), ended(ConflictEnd::Consolidated, Action::Keep));
    assert_eq!(judged(OURS, None, new.clone(), stored), ended(ConflictEnd::Remote, Action::Update(new.clone())));
    for side in [OURS, THEIRS] {
        let survived = judged(side, row("a", 10, "1.00"), new.clone(), None);
        assert_eq!(survived, ended(ConflictEnd::Remote, Action::Insert(new.clone())));
    }
}

#[test]
fn a_counter_that_did_not_change_stays_whatever_fits() {
    let huge = "100000000000000000000";
    let change = judged(OURS, row("a", 1, huge), row("b", 1, huge), row("a", 1, huge));
    assert_eq!(change, settled(Action::Update(row("b", 1, huge))));
    let both = judged(OURS, row("a", 1, huge), row("b", 2, huge), row("a", 5, "1.005"));
    assert_eq!(both, settled(Action::Update(row("b", 6, "1.005"))));
}

#[test]
fn a_total_that_does_not_fit_is_refused() {
    let old = row("a", 0, "0.00");
    let integer = judged(OURS, old.clone(), row("a", 1, "0.00"), row("a", i64::MAX, "0.00"));
    assert_eq!(integer, settled(Action::Refuse(2)));
    let decimal = judged(OURS, old, row("a", 0, "0.01"), row("a", 0, "999.99"));
    assert_eq!(decimal, settled(Action::Refuse(3)));
}
