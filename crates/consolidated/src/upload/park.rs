//! The first of two steps for rows that stand in one another's way: the row as it is to be, with values that can't collide in its
//! unique columns and no values in the columns by which it refers to others.
//!
//! Rows that swap unique values, move them along a chain, or refer to one another in a circle can be written so, and in no other
//! order. A column that may not be NULL and by which the row refers to others stays as it is stored until the second step. A row to be
//! deleted gives up what others wait for in the same way.
//!
//! *Caveats.* Only constraints that the model names are seen. The database's own triggers see both steps. A value can't be made up for
//! a column of type bool, or where a check allows none of the values tried ([`Style`]); then the row is refused.

use std::hash::{BuildHasher, RandomState};

use headwater_protocol::{Decimal, Row, Type, Value};

use crate::TablePlan;

/// In how many steps a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Steps {
    /// At once.
    One,
    /// First without what it refers to.
    Two,
    /// First without that, and without the unique values that others have or wait for.
    TwoFree,
}

/// How values are made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// NULL where that is allowed, else what no application is likely to use.
    Free,
    /// What looks like the row's own value: of its length, its digits digits, its letters letters. For columns with a limit or a check.
    Alike,
}

impl Style {
    /// What is tried where the first does not do; what is short may collide by chance.
    pub(super) const AFTER_FREE: [Style; 3] = [Style::Alike, Style::Alike, Style::Alike];
}

/// The row of the first step. `stored`: the row that is there.
pub(super) fn park(table: &TablePlan, row: &Row, stored: Option<&Row>, (steps, style): (Steps, Style)) -> Row {
    let mut parked = row.clone();
    let partition: Vec<usize> = table.table.partition.iter().flat_map(|partition| partition.columns.clone()).collect();
    // What decides where the row belongs stays, or it would leave its partition for a moment.
    let is_fixed =
        |place: usize| table.table.key.contains(&place) || partition.contains(&place) || table.through.contains(&place);
    let refers = |place: usize| table.table.references.iter().any(|reference| reference.columns.contains(&place));
    for (place, column) in table.table.columns.iter().enumerate().filter(|(place, _)| !is_fixed(*place)) {
        let is_unique = steps == Steps::TwoFree && table.table.unique.iter().any(|unique| unique.contains(&place));
        if refers(place) {
            parked[place] = match stored.and_then(|stored| stored.get(place)) {
                _ if column.nullable => Value::Null,
                Some(stored) => stored.clone(),
                None => continue,
            };
        } else if is_unique {
            let is_null = column.nullable && (style == Style::Free || row[place].is_null());
            let free = is_null.then_some(Value::Null);
            if let Some(free) = free.or_else(|| made_up(column.kind.base, &row[place], style)) {
                parked[place] = free;
            }
        }
    }
    parked
}

fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A value that no other row has, as far as chance goes.
fn made_up(kind: Type, like: &Value, style: Style) -> Option<Value> {
    const MICROS_A_DAY: i64 = 86_400_000_000;
    let random = random();
    // Far in the future, and a date that every database takes.
    let day = 1_500_000 + i64::from(random as u32 % 1_000_000);
    Some(match (kind, style) {
        // Fits into 32 bits; negative, since most numbers in use are not.
        (Type::Int, Style::Free) => Value::Int(-i64::from(random as u32 >> 1) - 1),
        (Type::Int, Style::Alike) => Value::Int(number_like(like, random)),
        (Type::Text, Style::Free) => Value::text(format!("~{random:016x}")),
        (Type::Text, Style::Alike) => Value::text(text_like(like)),
        (Type::Decimal, Style::Free) => Value::Decimal(Decimal::parse(&format!("-{}", random >> 20))?),
        (Type::Decimal, Style::Alike) => Value::Decimal(Decimal::parse(&digits_like(like))?),
        (Type::Real, _) => Value::Real(-((random >> 11) as f64)),
        (Type::Bytes, _) => Value::Bytes(random.to_le_bytes().to_vec()),
        (Type::Uuid, _) => Value::Uuid(*uuid::Uuid::new_v4().as_bytes()),
        (Type::Date, _) => Value::Date(day),
        (Type::Time, _) => Value::Time((random >> 1) as i64 % MICROS_A_DAY),
        (Type::Timestamp, _) => Value::Timestamp(day * MICROS_A_DAY + (random >> 40) as i64),
        (Type::Timestamptz, _) => Value::Timestamptz(day * MICROS_A_DAY + (random >> 40) as i64),
        (Type::Json, _) => Value::Json(format!("\"{random:016x}\"").into_bytes()),
        (Type::Bool, _) => return None,
    })
}

/// A positive number, of 16 bits if the other is.
fn number_like(like: &Value, random: u64) -> i64 {
    match like {
        Value::Int(number) if i16::try_from(*number).is_err() => i64::from(random as u32 >> 1),
        _ => i64::from(random as u16 >> 1).max(1),
    }
}

/// Letters for letters, digits for digits, all else as it is.
fn text_like(like: &Value) -> String {
    let Value::Text(bytes) = like else { return format!("~{:016x}", random()) };
    let of = |first: char, count: u64| char::from(first as u8 + (random() % count) as u8);
    let other = |character: char| match character {
        '0'..='9' => of('0', 10),
        'a'..='z' => of('a', 26),
        'A'..='Z' => of('A', 26),
        other => other,
    };
    String::from_utf8_lossy(bytes).chars().map(other).collect()
}

/// The number with other digits behind its first.
fn digits_like(like: &Value) -> String {
    let Value::Decimal(decimal) = like else { return random().to_string() };
    let mut has_begun = false;
    let other = |character: char| match character {
        '0'..='9' if std::mem::replace(&mut has_begun, true) => char::from(b'0' + (random() % 10) as u8),
        other => other,
    };
    decimal.to_string().chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_values_keep_the_shape_that_was_asked_for() {
        let Some(Value::Text(text)) = made_up(Type::Text, &Value::text("AB-12 x"), Style::Alike) else { panic!() };
        let shape: String = String::from_utf8_lossy(&text)
            .chars()
            .map(|c| {
                if c.is_ascii_digit() {
                    '0'
                } else if c.is_ascii_lowercase() {
                    'a'
                } else {
                    c
                }
            })
            .collect();
        assert_eq!((shape.len(), &shape[2..3], &shape[3..]), (7, "-", "00 a"));
        for number in [1, 40_000, -5] {
            let Some(Value::Int(made)) = made_up(Type::Int, &Value::Int(number), Style::Alike) else { panic!() };
            assert!((0..=i64::from(i32::MAX)).contains(&made));
            assert!(number == 40_000 || made <= 32_767);
        }
        let like = Value::Decimal(Decimal::parse("12.50").expect("a number"));
        let Some(Value::Decimal(made)) = made_up(Type::Decimal, &like, Style::Alike) else { panic!() };
        assert_eq!(made.to_string().len(), 5);
        assert!(made_up(Type::Bool, &Value::Bool(true), Style::Free).is_none());
    }

    #[test]
    fn a_made_up_value_is_of_its_type() {
        for kind in Type::ALL.into_iter().filter(|kind| *kind != Type::Bool) {
            for style in [Style::Free, Style::Alike] {
                let made = made_up(kind, &Value::Null, style).expect("a value");
                assert_eq!(made.as_ref().kind(), Some(kind), "{style:?}");
            }
        }
    }
}
