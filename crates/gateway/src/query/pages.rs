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

use headwater_consolidated::results::ResultColumn;
use headwater_model::sql::Syntax;
use headwater_protocol::{Type, Value, ValueRef};

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

    /// What follows the keys of the rows of its pages; `None`: it has none.
    pub fn keys(&self) -> Option<Keys> {
        // As most of MariaDB's collations have it.
        let folds = self.syntax == Syntax::MariaDb;
        let page = self.page.clone()?;
        Some(Keys { page, folds, places: Vec::new(), rows: 0, last: Vec::new(), before: Vec::new() })
    }
}

/// Follows the keys of rows that come in the order of pages, and tells what would be in none.
#[derive(Clone, Debug)]
pub struct Keys {
    page: Page,
    /// Whether texts that differ by the case of their letters alone are one.
    folds: bool,
    /// Where the columns of the key are.
    places: Vec<usize>,
    /// Rows of the page until now.
    rows: u64,
    /// The key of its last row, once it is full.
    last: Vec<Value>,
    /// The key of the row before, where [`Keys::repeated`] is asked.
    before: Vec<Value>,
}

impl Keys {
    /// Begins with the columns. The error: what `page_by` names and the query does not give.
    pub fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), String> {
        let place = |(name, _): &(String, Type)| {
            let place = columns.iter().position(|column| column.name == *name);
            place.ok_or_else(|| format!("page_by has {name:?}, which the query does not give"))
        };
        self.places = self.page.by.iter().map(place).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn of(&self, values: &[ValueRef<'_>]) -> Vec<Value> {
        self.places.iter().map(|place| values[*place].to_value()).collect()
    }

    /// The next row of one page: whether it is the first behind the page, which is full then. The error: what is lost between two pages, with its mend.
    pub fn row(&mut self, values: &[ValueRef<'_>]) -> Result<bool, String> {
        let has_null = self.places.iter().any(|place| values[*place] == ValueRef::Null);
        let is_at_end = self.rows + 1 >= self.page.rows;
        let key = if has_null || is_at_end { self.of(values) } else { Vec::new() };
        let is_behind = self.rows == self.page.rows;
        let lost = if is_behind {
            self.page.lost(&self.last, &key, self.folds)
        } else {
            self.page.unfit(&key).filter(|_| has_null)
        };
        if let Some(lost) = lost {
            return Err(lost);
        }
        if !is_behind {
            self.rows += 1;
            self.last = key;
        }
        Ok(is_behind)
    }

    /// What the pages are.
    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// The key of the page's last row.
    pub fn last(&self) -> &[Value] {
        &self.last
    }

    /// The same where the pages come one behind the other, as one result: a row behind a page is the first of the next.
    pub fn row_of_all(&mut self, values: &[ValueRef<'_>]) -> Result<(), String> {
        if self.row(values)? {
            self.rows = 0;
            self.row(values)?;
        }
        Ok(())
    }

    /// What is told of a row that has the key of the row before: it is sound for as long as no page ends between them.
    pub fn repeated(&mut self, values: &[ValueRef<'_>]) -> Option<String> {
        let key = self.of(values);
        let before = std::mem::replace(&mut self.before, key);
        let is_one = self.page.is_one(&before, &self.before, self.folds);
        is_one.then(|| {
            let key = self.page.described(&before);
            format!("two rows have the key {key}: where a page ends between them, it is an error. Add a column to page_by that tells them apart")
        })
    }
}

impl Page {
    /// What loses rows between a page that ends in a row of this key and the next one, which begins with a row of that. The mend is in it.
    /// `folds`: whether texts that differ by the case of their letters alone are one.
    fn lost(&self, last: &[Value], next: &[Value], folds: bool) -> Option<String> {
        self.unfit(last).or_else(|| self.unfit(next)).or_else(|| {
            self.is_one(last, next, folds).then(|| {
                let key = self.described(last);
                format!(
                    "two rows have the key {key}, at the end of a page: add a column to page_by that tells them apart"
                )
            })
        })
    }

    /// Whether two rows have one key.
    fn is_one(&self, one: &[Value], other: &[Value], folds: bool) -> bool {
        let is_one = |(one, other): (&Value, &Value)| is_same(&folded(one, folds), &folded(other, folds));
        one.len() == self.by.len() && one.iter().zip(other).all(is_one)
    }

    /// A key for people.
    fn described(&self, key: &[Value]) -> String {
        let key = self.by.iter().zip(key).map(|((name, _), value)| format!("{name} = {}", shown(value)));
        key.collect::<Vec<_>>().join(", ")
    }

    /// What no page can begin behind, of a row's key.
    fn unfit(&self, key: &[Value]) -> Option<String> {
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
    fn the_rows_of_all_pages_are_followed_from_page_to_page() {
        let query = Query::parse("q.sql", "-- page_by = { k = \"int\" }\n-- page_rows = 2\nSELECT v, k FROM t")
            .expect("a query");
        let column = |name: &str| ResultColumn { name: name.to_owned(), kind: None, declared: String::new() };
        let told = |numbers: &[i64]| {
            let mut keys = query.keys().expect("pages");
            keys.begin(&[column("v"), column("k")]).expect("it is there");
            let (mut lost, mut repeated) = (None, 0);
            for number in numbers {
                let row = [ValueRef::Null, if *number == 0 { ValueRef::Null } else { ValueRef::Int(*number) }];
                lost = lost.or(keys.row_of_all(&row).err());
                repeated += usize::from(keys.repeated(&row).is_some());
            }
            (lost.map(|lost| lost.split(':').next().unwrap_or_default().to_owned()), repeated)
        };
        let twice = |key: i64| Some(format!("two rows have the key k = {key}, at the end of a page"));
        assert_eq!(told(&[1, 2, 3, 4, 5]), (None, 0));
        assert_eq!(told(&[1, 1, 2, 2, 5, 5]), (None, 3), "within pages");
        assert_eq!(told(&[1, 2, 2, 4]), (twice(2), 1));
        assert_eq!(told(&[1, 2, 3, 4, 4]), (twice(4), 1), "at the end of a later page");
        let null = Some("a row has NULL in k, and no page begins behind that".to_owned());
        assert_eq!(told(&[0, 2]), (null.clone(), 0));
        assert_eq!(told(&[1, 2, 3, 0]).0, null);
        let mut keys = query.keys().expect("pages");
        let said = keys.begin(&[column("v")]).expect_err("it is not there");
        assert_eq!(said, "page_by has \"k\", which the query does not give");
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
