//! What administrators do to the tables of a consolidated database: the events that no trigger sees, and those that look like them and are
//! harmless.

mod postgres;
mod sqlite;

use headwater_testkit::Random;
use headwater_tests::{Central, Kind};

use crate::events::{self, Event};
use crate::schema::{Schema, Side};
use crate::shape::{Shape, quote};

/// Something that is done at the consolidated database.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) event: Event,
    /// The statements.
    pub(crate) sql: String,
    /// Whether they may run within a transaction.
    pub(crate) is_transactional: bool,
}

/// The kinds that are deeds.
pub(crate) const DDL: [Event; 16] = [
    Event::Truncate,
    Event::Retype,
    Event::Recompute,
    Event::Widen,
    Event::DropAdd,
    Event::Exchange,
    Event::Swap,
    Event::Twins,
    Event::Labels,
    Event::Rewrite,
    Event::Harmless,
    Event::Parts,
    Event::TriggersOff,
    Event::Remake,
    Event::MembersRewritten,
    Event::SideTables,
];

/// Draws a deed. A neutral one leaves the rows of the judged table as they are, so that it may run while an upload is at work.
pub(crate) struct Draw<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) central: &'a Central,
    pub(crate) random: &'a mut Random,
    pub(crate) is_neutral: bool,
    /// Makes names unique.
    pub(crate) number: u64,
}

impl Draw<'_> {
    /// A deed of this kind; `None`: there is no such at this database.
    pub(crate) fn deed(&mut self, event: Event) -> anyhow::Result<Option<Deed>> {
        let sql = match self.schema.kind {
            Kind::Postgres => self.postgres(event)?,
            Kind::Sqlite => self.sqlite(event)?,
        };
        let is_transactional = !(event == Event::Rewrite || event == Event::SideTables || sql.starts_with("PRAGMA"));
        Ok((!sql.is_empty()).then_some(Deed { event, sql, is_transactional }))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// A table by chance.
    fn any(&mut self) -> Shape {
        let shapes = self.schema.shapes();
        let place = self.below(shapes.len());
        shapes[place].clone()
    }

    /// One to which nothing refers, other than the partitioned one.
    fn single(&mut self) -> Shape {
        loop {
            let shape = self.any();
            if shape.below.is_empty() && shape.name != "lot" {
                return shape;
            }
        }
    }

    /// Whether the rows of this table have to stay as they are.
    fn stays(&self, shape: &Shape) -> bool {
        self.is_neutral && shape.name == self.schema.judged
    }

    /// A statement that writes to this table, or nothing that changes anything.
    fn write_to(&mut self, shape: &Shape) -> String {
        // What is counted is told of each write.
        if self.stays(shape) || shape.name == "stock" {
            return "SELECT 1".to_owned();
        }
        let name = shape.quoted();
        for _ in 0..200 {
            let sql = self.schema.write(self.random, Side::Head);
            let is_its = ["INTO", "UPDATE", "FROM"].iter().any(|word| {
                sql.starts_with(&format!("INSERT {word} {name} "))
                    || sql.starts_with(&format!("{word} {name} "))
                    || sql.starts_with(&format!("DELETE {word} {name} "))
            });
            if is_its && !sql.contains(';') {
                return sql;
            }
        }
        "SELECT 1".to_owned()
    }

    /// A change of values that keeps all constraints, for a copy of a table.
    fn change_of(&mut self, shape: &Shape, name: &str) -> String {
        if self.stays(shape) {
            return "SELECT 1".to_owned();
        }
        let kept = shape.columns[shape.key..]
            .iter()
            .filter(|column| ["body", "label"].contains(&column.name.as_str()))
            .map(|column| column.name.clone())
            .next();
        let id = quote(&shape.columns[0].name);
        let some = format!("{id} IN (SELECT {id} FROM {name} ORDER BY 1 LIMIT 2)");
        match kept {
            Some(column) if self.random.chance(60) => {
                format!("UPDATE {name} SET {} = 'changed {}' WHERE {some}", quote(&column), self.number)
            }
            _ if ["bank", "stock"].contains(&shape.name.as_str()) => "SELECT 1".to_owned(),
            _ => format!("DELETE FROM {name} WHERE {some}"),
        }
    }
}

/// For a story.
pub(crate) fn told(deed: &Deed) -> String {
    format!("{}: {}", events::name(deed.event), deed.sql.split_whitespace().collect::<Vec<_>>().join(" "))
}
