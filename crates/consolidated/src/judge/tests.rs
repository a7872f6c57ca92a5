//! Every pair of change and stored row by every rule.

use super::*;

/// Of rows whose values are of their types.
fn judge(rule: ConflictRule, change: &Change, stored: Option<&Row>) -> Judgement {
    super::judge(rule, &[], change, stored)
}

#[test]
fn times_are_compared_however_they_are_spelled() {
    const TYPES: [Type; 2] = [Type::Int, Type::Timestamptz];
    let row = |at: &str| vec![Value::Int(1), Value::text(at)];
    let wins = |ours: &str, stored: &str| {
        let change = Change { old: Some(row("2020-01-01")), new: Some(row(ours)) };
        super::judge(ConflictRule::NewerWins(1), &TYPES, &change, Some(&row(stored))).conflict
    };
    for (older, newer) in [
        ("2026-02-01 10:00:00Z", "2026-02-01T11:00:00Z"),
        ("2026-02-02 11:00:00Z", "2026-03-01T10:00:00Z"),
        ("2026-02-01 10:00:00Z", "2026-02-01 10:00:01"),
        ("2026-02-01 10:00:00+02:00", "2026-02-01 09:00:00Z"),
    ] {
        assert_eq!(wins(newer, older), Some(ConflictEnd::Remote), "{newer} {older}");
        assert_eq!(wins(older, newer), Some(ConflictEnd::Consolidated), "{newer} {older}");
    }
}

/// A column of a SQLite file that is declared DATETIME stores numbers, also of texts that look like them.
#[test]
fn times_that_are_numbers_are_compared_as_numbers() {
    const TYPES: [Type; 3] = [Type::Int, Type::Timestamp, Type::Text];
    let row = |at: &Value, note: &str| vec![Value::Int(1), at.clone(), Value::text(note)];
    let wins = |ours: Row, stored: Row| {
        let change = Change { old: None, new: Some(ours) };
        super::judge(ConflictRule::NewerWins(1), &TYPES, &change, Some(&stored)).conflict
    };
    let ascending = [
        Value::Null,
        Value::text("-1"),
        Value::Int(8),
        Value::text("9999"),
        Value::Real(9999.5),
        Value::Int(10_000),
        Value::text(" 10000.5 "),
        Value::text("1e6"),
        Value::Int(i64::MAX - 1),
        Value::Int(i64::MAX),
        Value::Real(9.3e18),
        Value::text("soon"),
        Value::Timestamp(0),
        Value::text("2026-01-31T05:00"),
    ];
    for (older, newer) in ascending.iter().enumerate().flat_map(|(i, a)| ascending[i + 1..].iter().map(move |b| (a, b)))
    {
        assert_eq!(wins(row(newer, "a"), row(older, "b")), Some(ConflictEnd::Remote), "{newer:?} {older:?}");
        assert_eq!(wins(row(older, "b"), row(newer, "a")), Some(ConflictEnd::Consolidated), "{newer:?} {older:?}");
    }
    // The same number: the other columns decide, however it is spelled.
    for same in [Value::text("10000"), Value::Real(10_000.0), Value::Int(10_000)] {
        assert_eq!(wins(row(&same, "b"), row(&Value::Int(10_000), "a")), Some(ConflictEnd::Remote), "{same:?}");
        assert_eq!(wins(row(&same, "a"), row(&Value::Int(10_000), "b")), Some(ConflictEnd::Consolidated), "{same:?}");
    }
}

fn row(name: &str, place: &str, changed: i64) -> Row {
    vec![Value::Int(1), Value::text(name), Value::text(place), Value::Int(changed)]
}

fn insert(new: Row) -> Change {
    Change { old: None, new: Some(new) }
}

fn update(old: Row, new: Row) -> Change {
    Change { old: Some(old), new: Some(new) }
}

fn delete(old: Row) -> Change {
    Change { old: Some(old), new: None }
}

const CONSOLIDATED: ConflictRule = ConflictRule::ConsolidatedWins;
const REMOTE: ConflictRule = ConflictRule::RemoteWins;
const NEWER: ConflictRule = ConflictRule::NewerWins(3);
const MERGE: ConflictRule = ConflictRule::Merge(Side::Consolidated);
const MERGE_REMOTE: ConflictRule = ConflictRule::Merge(Side::Remote);
const ALL: [ConflictRule; 6] = [ConflictRule::Off, CONSOLIDATED, REMOTE, NEWER, MERGE, MERGE_REMOTE];

#[test]
fn without_a_conflict_every_rule_does_the_same() {
    let (old, new) = (row("a", "x", 1), row("b", "x", 2));
    for rule in ALL {
        assert_eq!(judge(rule, &insert(new.clone()), None), settled(Action::Insert(new.clone())));
        assert_eq!(judge(rule, &insert(new.clone()), Some(&new)), settled(Action::Keep), "already there");
        assert_eq!(judge(rule, &update(old.clone(), new.clone()), Some(&old)), settled(Action::Update(new.clone())));
        assert_eq!(judge(rule, &update(old.clone(), new.clone()), Some(&new)), settled(Action::Keep), "already there");
        assert_eq!(judge(rule, &delete(old.clone()), Some(&old)), settled(Action::Delete));
        assert_eq!(judge(rule, &delete(old.clone()), None), settled(Action::Keep), "both deleted it");
    }
}

#[test]
fn update_against_another_update() {
    let (old, new, stored) = (row("a", "x", 1), row("b", "x", 2), row("a", "y", 3));
    let judged = |rule| judge(rule, &update(old.clone(), new.clone()), Some(&stored));
    assert_eq!(judged(ConflictRule::Off), settled(Action::Update(new.clone())));
    assert_eq!(judged(CONSOLIDATED), ended(ConflictEnd::Consolidated, Action::Keep));
    assert_eq!(judged(REMOTE), ended(ConflictEnd::Remote, Action::Update(new.clone())));
    assert_eq!(judged(NEWER), ended(ConflictEnd::Consolidated, Action::Keep));
    // `name` changed at the remote alone, `place` at the consolidated side alone, `changed` on both.
    assert_eq!(judged(MERGE), ended(ConflictEnd::Merged, Action::Update(row("b", "y", 3))));
    assert_eq!(judged(MERGE_REMOTE), ended(ConflictEnd::Merged, Action::Update(row("b", "y", 2))));
}

#[test]
fn insert_of_a_key_that_exists() {
    let (new, stored) = (row("b", "x", 4), row("a", "x", 3));
    let judged = |rule| judge(rule, &insert(new.clone()), Some(&stored));
    assert_eq!(judged(ConflictRule::Off), settled(Action::Update(new.clone())));
    assert_eq!(judged(CONSOLIDATED), ended(ConflictEnd::Consolidated, Action::Keep));
    assert_eq!(judged(REMOTE), ended(ConflictEnd::Remote, Action::Update(new.clone())));
    assert_eq!(judged(NEWER), ended(ConflictEnd::Remote, Action::Update(new.clone())));
    assert_eq!(judged(MERGE), ended(ConflictEnd::Consolidated, Action::Keep));
    assert_eq!(judged(MERGE_REMOTE), ended(ConflictEnd::Remote, Action::Update(new.clone())));
}

#[test]
fn update_against_a_deletion() {
    let (old, new) = (row("a", "x", 1), row("b", "x", 2));
    let judged = |rule| judge(rule, &update(old.clone(), new.clone()), None);
    let survives = ended(ConflictEnd::Remote, Action::Insert(new.clone()));
    assert_eq!(judged(ConflictRule::Off), settled(Action::Insert(new.clone())));
    assert_eq!(judged(CONSOLIDATED), ended(ConflictEnd::Consolidated, Action::Keep));
    for rule in [REMOTE, NEWER, MERGE, MERGE_REMOTE] {
        assert_eq!(judged(rule), survives);
    }
}

#[test]
fn deletion_against_an_update() {
    let (old, stored) = (row("a", "x", 1), row("b", "x", 0));
    let judged = |rule| judge(rule, &delete(old.clone()), Some(&stored));
    assert_eq!(judged(ConflictRule::Off), settled(Action::Delete));
    assert_eq!(judged(REMOTE), ended(ConflictEnd::Remote, Action::Delete));
    for rule in [CONSOLIDATED, NEWER, MERGE, MERGE_REMOTE] {
        assert_eq!(judged(rule), ended(ConflictEnd::Consolidated, Action::Keep));
    }
}

#[test]
fn newer_wins_gives_the_same_in_every_order_of_arrival() {
    let old = row("a", "x", 1);
    let images = [
        row("b", "x", 5),
        row("c", "x", 5),
        row("d", "x", 4),
        vec![Value::Int(1), Value::Null, Value::Null, Value::Null],
    ];
    let arrive = |order: &[usize]| {
        let mut stored = old.clone();
        for &place in order {
            if let Action::Update(row) = judge(NEWER, &update(old.clone(), images[place].clone()), Some(&stored)).action
            {
                stored = row;
            }
        }
        stored
    };
    // The first to arrive meets its own old image, and is made without a conflict: what follows must still undo it.
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1], [1, 3, 2, 0]] {
        assert_eq!(arrive(&order), images[1], "{order:?}");
    }
}
