//! Keys of pages: what a column must be to be one, and what a page's last row must be for the next page to begin behind it.
//!
//! ```text
//! page            ... 7, 8     the last key is 8; the next page has the rows with more
//! the row behind      8        has no more: it would be in no page
//! ```
//!
//! *Caveats.* Texts that a collation takes for equal (`e` and `é`) are two keys here and one there; in MariaDB, where that is usual, those alike
//! but for the case of their letters and blanks at their end are one. Of a key of several columns a
//! row with NULL in one is seen only where its page is read from the beginning of its first column's value.

use headwater_model::sql::Syntax;
use headwater_protocol::{Type, Value};

use super::values::{canonical, form_of, is_same, read};
use super::{Page, Query};

impl Query {
    /// What is wrong with a column of the result as one of `page_by`, if it is one: its type. `kind`: what the database says; `None`: nothing.
    pub fn page_fault(&self, column: &str, kind: Option<Type>) -> Option<String> {
        let (_, said) = self.page.iter().flat_map(|page| &page.by).find(|(name, _)| name == column)?;
        let kind = kind.filter(|kind| kind != said)?;
        let mend = match kind {
            Type::Bytes | Type::Json => "which no page begins by: take another column".to_owned(),
            kind => format!("expected {column} = {:?}", kind.name()),
        };
        Some(format!("page_by has {column:?} as {}, and the query gives {}: {mend}", said.name(), kind.name()))
    }

    /// Whether NULL is behind all values in the database's order, as in PostgreSQL's, so that no first page has it.
    pub(super) fn puts_null_last(&self) -> bool {
        self.syntax == Syntax::Postgres
    }

    /// Whether texts that differ by the case of their letters alone are taken for one key of a page, as most of MariaDB's collations do.
    pub(crate) fn folds_keys(&self) -> bool {
        self.syntax == Syntax::MariaDb
    }
}

impl Page {
    /// What loses rows between a page that ends in a row of this key and the next one, which begins with a row of that. The mend is in it.
    /// `folds`: [`Query::folds_keys`].
    pub(crate) fn lost(&self, last: &[Value], next: &[Value], folds: bool) -> Option<String> {
        self.unfit(last).or_else(|| self.unfit(next)).or_else(|| {
            let is_one = last.iter().zip(next).all(|(one, other)| is_same(&folded(one, folds), &folded(other, folds)));
            is_one.then(|| {
                let key = self.by.iter().zip(last).map(|((name, _), value)| format!("{name} = {}", shown(value)));
                let key = key.collect::<Vec<_>>().join(", ");
                format!(
                    "two rows have the key {key}, at the end of a page: add a column to page_by that tells them apart"
                )
            })
        })
    }

    /// What no page can begin behind, of a row's key.
    pub(crate) fn unfit(&self, key: &[Value]) -> Option<String> {
        self.by.iter().zip(key).find_map(|((name, kind), value)| {
            if *value == Value::Null {
                return Some(format!(
                    "a row has NULL in {name}, and no page begins behind that: take a column that is never NULL, or coalesce({name}, ...)"
                ));
            }
            let text = form_of(value);
            let again = read(&text, *kind);
            let is_of_type = again.is_some_and(|again| is_same(&again, &canonical(value.clone())));
            (!is_of_type).then(|| {
                let kind = kind.name();
                format!("a row has {} in {name}, which is no {kind}: say its type in page_by, or cast it in the query", shown(value))
            })
        })
    }
}

/// A value in the form in which it is compared.
fn folded(value: &Value, folds: bool) -> Value {
    match value {
        Value::Text(bytes) if folds => Value::text(String::from_utf8_lossy(bytes).trim_end().to_lowercase()),
        value => canonical(value.clone()),
    }
}

/// The beginning of a value.
fn shown(value: &Value) -> String {
    const CHARACTERS_MAX: usize = 100;
    form_of(value).chars().take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page { by: vec![("day".to_owned(), Type::Date), ("id".to_owned(), Type::Int)], rows: 2 }
    }

    #[test]
    fn what_would_be_in_no_page_is_told_with_its_mend() {
        let key = |id: Value| [Value::Date(3), id];
        let one = key(Value::Int(1));
        assert_eq!(page().lost(&one, &key(Value::Int(2)), false), None);
        for (last, next, words) in [
            (
                one.clone(),
                one.clone(),
                "two rows have the key day = 1970-01-04, id = 1, at the end of a page: add a column",
            ),
            (one.clone(), key(Value::Null), "a row has NULL in id"),
            (key(Value::Null), one.clone(), "a row has NULL in id"),
            (key(Value::text("x")), one.clone(), "a row has x in id, which is no int"),
            (one, key(Value::Real(1.5)), "a row has 1.5 in id, which is no int"),
        ] {
            let said = page().lost(&last, &next, false).expect(words);
            assert!(said.starts_with(words), "{said}");
        }
        let real = Page { by: vec![("x".to_owned(), Type::Real)], rows: 1 };
        assert!(real.lost(&[Value::Real(-0.0)], &[Value::Real(0.0)], false).is_some(), "one number");
        assert!(real.lost(&[Value::Real(0.0)], &[Value::Real(f64::NAN)], false).is_none());
        let text = Page { by: vec![("name".to_owned(), Type::Text)], rows: 1 };
        for (other, is_one) in [("ANNA ", true), ("anne", false)] {
            assert_eq!(text.lost(&[Value::text("Anna")], &[Value::text(other)], true).is_some(), is_one);
            assert!(text.lost(&[Value::text("Anna")], &[Value::text(other)], false).is_none());
        }
    }

    #[test]
    fn a_column_of_another_type_is_no_key() {
        let query = Query::parse("q.sql", "-- page_by = { day = \"date\" }\nSELECT day FROM t").expect("a query");
        assert_eq!(query.page_fault("day", Some(Type::Date)), None);
        assert_eq!(query.page_fault("day", None), None);
        assert_eq!(query.page_fault("other", Some(Type::Int)), None);
        let said = query.page_fault("day", Some(Type::Int)).expect("a fault");
        assert_eq!(said, "page_by has \"day\" as date, and the query gives int: expected day = \"int\"");
        let said = query.page_fault("day", Some(Type::Json)).expect("a fault");
        assert!(said.contains("which no page begins by"), "{said}");
    }
}
