//! Images of a table's rows, from one version's columns to another's.

use headwater_model::ColumnType;
use headwater_model::remote_sql::declared_type;
use headwater_model::sql::quote;
use headwater_protocol::Type;

use crate::error::Error;
use crate::local::{Local, readable};
use crate::plan::TablePlan;
use crate::rows::Rows;

/// The columns of a table that a remote has no values for of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// Places of columns that are new.
    pub(crate) added: Vec<usize>,
    /// Places of columns of another type than before.
    pub(crate) retyped: Vec<usize>,
    /// Changes of the table that only the list has now.
    pub(crate) listed: u64,
    /// Changes of columns that went: only the list has what they made of those.
    pub(crate) left_out: u64,
    /// Whether the table is made anew, and comes whole.
    pub(crate) is_made_anew: bool,
}

/// What a change has made of columns that are no more: it goes nowhere any more, and only the list of changes set aside has it.
#[derive(Debug)]
pub(crate) struct Gone {
    /// The change as it was made, old image and new one.
    pub(crate) made: [Option<String>; 2],
    columns: Vec<String>,
}

impl Gone {
    /// For whoever reads the list.
    pub(crate) fn message(&self) -> String {
        format!("the model has no column {} any more: only the list has its value", self.columns.join(", "))
    }
}

/// Rewrites images of one table.
pub(crate) struct Converter<'a> {
    rows: &'a Rows<'a>,
    table: &'a TablePlan,
    /// The columns as they were.
    before: Vec<String>,
    /// By new place: the old one.
    from: Vec<Option<usize>>,
    pub(crate) fresh: Fresh,
}

impl<'a> Converter<'a> {
    /// From these columns to those of a table.
    pub(crate) fn new<'c>(
        rows: &'a Rows<'a>,
        before: impl Iterator<Item = (&'c str, ColumnType)>,
        table: &'a TablePlan,
    ) -> Result<Converter<'a>, Error> {
        let old: Vec<_> = before.collect();
        let named = |name: &str| old.iter().position(|(before, _)| before.eq_ignore_ascii_case(name));
        let from: Vec<Option<usize>> = table.names().map(named).collect();
        let mut fresh = Fresh::default();
        for (place, (column, before)) in table.table.columns.iter().zip(&from).enumerate() {
            match before {
                None => fresh.added.push(place),
                Some(before) if old[*before].1 != column.kind => fresh.retyped.push(place),
                Some(_) => {}
            }
        }
        let before = old.iter().map(|(name, _)| (*name).to_owned()).collect();
        let converter = Converter { rows, table, before, from, fresh };
        if !converter.fresh.retyped.is_empty() {
            converter.create()?;
        }
        Ok(converter)
    }

    /// A table of the new columns' types and nothing else: what it makes of a value is what the column will hold.
    fn create(&self) -> Result<(), Error> {
        let columns = self.table.table.columns.iter();
        let columns: Vec<String> =
            columns.map(|column| format!("{} {}", quote(&column.name), declared_type(column.kind))).collect();
        let sql = format!("CREATE TEMP TABLE {} ({})", self.name(), columns.join(", "));
        self.rows.execute(&sql, &[]).map(drop)
    }

    pub(crate) fn finish(self) -> Result<Fresh, Error> {
        if !self.fresh.retyped.is_empty() {
            self.rows.execute(&format!("DROP TABLE temp.{}", self.name()), &[])?;
        }
        Ok(self.fresh)
    }

    fn name(&self) -> String {
        quote(&format!("hw_typed_{}", self.table.number))
    }

    /// An image with the new columns. Of a value that the column's type can't hold as it is, the type makes what it can; what it can't
    /// stays, and the consolidated database refuses it by name. A new column is NULL, or where it may not be, a value that says as little.
    pub(crate) fn image(&self, old: &[Local]) -> Result<Vec<Local>, Error> {
        let value = |(place, before): (usize, &Option<usize>)| match before.and_then(|before| old.get(before)) {
            Some(value) => value.clone(),
            None => self.unknown(place),
        };
        let image: Vec<Local> = self.from.iter().enumerate().map(value).collect();
        if self.fresh.retyped.is_empty() { Ok(image) } else { self.typed(&image) }
    }

    /// What a change, in images as they were, has made of columns that are no more.
    pub(crate) fn what_goes(&self, old: Option<&[Local]>, new: Option<&[Local]>) -> Option<Gone> {
        let new = new?;
        let goes = |(place, name): (usize, &String)| {
            let before = old.and_then(|old| old.get(place)).unwrap_or(&Local::Null);
            (!self.from.contains(&Some(place)) && *before != new[place]).then(|| format!("{name:?}"))
        };
        let columns: Vec<String> = self.before.iter().enumerate().filter_map(goes).collect();
        let made = [old, Some(new)].map(|row| row.map(|row| self.readable(row)));
        (!columns.is_empty()).then_some(Gone { made, columns })
    }

    /// An image as it was.
    pub(crate) fn readable(&self, row: &[Local]) -> String {
        readable(self.before.iter().map(String::as_str), row)
    }

    fn typed(&self, image: &[Local]) -> Result<Vec<Local>, Error> {
        let places = vec!["?"; image.len()].join(", ");
        self.rows.execute(&format!("INSERT INTO temp.{} VALUES ({places})", self.name()), image)?;
        let read = |row: &rusqlite::Row<'_>| (0..image.len()).map(|index| Local::read(row, index)).collect();
        let typed = self.rows.prepare(&format!("SELECT * FROM temp.{}", self.name()))?.query_row([], read);
        self.rows.execute(&format!("DELETE FROM temp.{}", self.name()), &[])?;
        crate::error::While::while_doing(typed, "converting a row")
    }

    fn unknown(&self, place: usize) -> Local {
        let column = &self.table.table.columns[place];
        if column.nullable {
            return Local::Null;
        }
        let text = |text: &str| Local::Text(text.as_bytes().to_vec());
        match column.kind.base {
            Type::Bool | Type::Int => Local::Integer(0),
            Type::Real => Local::Real(0.0),
            Type::Decimal => text("0"),
            Type::Text => text(""),
            Type::Bytes => Local::Blob(Vec::new()),
            Type::Date => text("1970-01-01"),
            Type::Time => text("00:00:00"),
            Type::Timestamp => text("1970-01-01 00:00:00"),
            Type::Timestamptz => text("1970-01-01 00:00:00Z"),
            Type::Uuid => text("00000000-0000-0000-0000-000000000000"),
            Type::Json => text("null"),
        }
    }
}
