//! Tables that take their partition from the row that a foreign key refers to.

use headwater_model::Table;
use headwater_model::sql::{quote, quote_list};
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::base_table;

use super::{Severity, TableCheck};
use crate::Dialect;
use crate::catalogue::CatalogueTable;

impl TableCheck<'_> {
    pub(super) fn kin(&mut self) {
        let kin = Kin::new(self.model, self.table);
        if let Some(what) = obstacle(&kin, self.found) {
            let mend = "give the tables that refer to it partition columns of their own".to_owned();
            self.add(Severity::Error, "partition_not_followed", None, what, mend);
        }
        let Some(reference) = self.table.through() else { return };
        let Some(parent) = self.model.tables.get(reference.table) else { return };
        let link: Vec<&str> = kin.lineage.link(0).iter().map(|(column, _)| column.name.as_str()).collect();
        let leads = |index: &Vec<String>| link.iter().all(|name| index.iter().take(link.len()).any(|own| own == name));
        if !self.found.indexes.iter().any(leads) {
            self.add(
                Severity::Warning,
                "partition_not_indexed",
                None,
                format!(
                    "no index begins with ({}): whenever a row of {} moves, the whole table is read",
                    link.join(", "),
                    parent.name
                ),
                self.create_index(&link),
            );
        }
        if !self.is_enforced(parent, &link) {
            self.add(
                Severity::Warning,
                "partition_not_enforced",
                None,
                format!(
                    "the database has no foreign key ({}) to {}: rows may be left without the row that says whose they are, and go to \
                     whoever makes one of its key",
                    link.join(", "),
                    parent.name
                ),
                format!("add the foreign key to table {}", self.table.name),
            );
        }
    }

    fn create_index(&self, columns: &[&str]) -> String {
        let columns = quote_list(columns.iter().copied());
        match self.dialect {
            // Only PostgreSQL makes up a name.
            Dialect::Sqlite => {
                let (name, table) = (quote(&format!("{}_parent", self.table.name)), quote(&self.table.name));
                format!("CREATE INDEX {name} ON {table} ({columns})")
            }
            Dialect::Postgres => format!("CREATE INDEX ON {} ({columns})", base_table(self.table)),
        }
    }

    fn is_enforced(&self, parent: &Table, link: &[&str]) -> bool {
        self.found.references.iter().any(|found| {
            found.table == parent.name
                && found.columns.len() == link.len()
                && link.iter().all(|name| found.columns.iter().any(|own| own == name))
        })
    }
}

/// Why the rows of a table from which others take their partition can't be followed, if they can't.
pub(crate) fn obstacle(kin: &Kin<'_>, found: &CatalogueTable) -> Option<String> {
    let below = kin.below.first()?.table();
    if found.has_heirs {
        return Some(format!("table {} takes its partition from it, but tables inherit from it", below.name));
    }
    let is_generated = |name: &String| found.columns.iter().any(|column| column.name == *name && column.generated);
    let mut columns = kin.table().key_columns().chain(kin.lineage.deciding(0)).map(|column| &column.name);
    let generated = columns.find(|name| is_generated(name))?;
    Some(format!(
        "table {} takes its partition from it, but the database makes its column {generated:?} itself",
        below.name
    ))
}
