//! Foreign keys of the application's own tables to tables of the model. SQLite does not carry them out on the connection that applies a download,
//! because rows come in any order there.
//!
//! | when a downloaded deletion takes away the row that they refer to | |
//! |---|---|
//! | `ON DELETE CASCADE`, `SET NULL`, `SET DEFAULT` | is carried out at the end of the download, where the row is not there by then |
//! | `RESTRICT`, `NO ACTION` | the deletion is held, and tried again at each sync |
//!
//! ```text
//! begin    what own rows refer to, and is not there already    -> temp.hw_orphaned_N: stays as it is,
//!          unless it was held or set aside, and is no more by the end
//! end      what is held, set aside or has left the remote      -> temp.hw_orphaned_N: it is not deleted
//!          other own rows that refer to nothing                   are deleted, or get NULL
//! ```
//!
//! So it is where changes are given up: the rows of some go by that. A row that may not lose what it refers to refuses that.
//!
//! *Caveats.* Nothing is carried out for rows that leave the remote, and nothing holds them: own rows may refer to nothing afterwards. So it is
//! with tables that a new version of the model makes anew, and with an action that a constraint or trigger refuses.

use headwater_model::sql::quote;
use headwater_protocol::Row;
use rusqlite::{Connection, params_from_iter};

use super::Apply;
use crate::error::{Error, While};
use crate::local::{Local, from_wire};
use crate::plan::{Plan, TablePlan, decoded};
use crate::rows::Rows;

/// A foreign key of a table of the application's.
#[derive(Debug)]
struct OwnKey {
    /// Its place, which names its temporary table.
    number: usize,
    child: String,
    parent: String,
    /// The columns of the child, and those of the parent.
    columns: Vec<(String, String)>,
    on_delete: String,
}

/// The foreign keys of the application's own tables that lead to tables of the model.
#[derive(Debug, Default)]
pub(crate) struct OwnChildren(Vec<OwnKey>);

impl OwnChildren {
    /// Finds them, and remembers which own rows refer to nothing already.
    pub(crate) fn find(rows: &Rows<'_>, plan: &Plan) -> Result<OwnChildren, Error> {
        let mut found = Vec::new();
        for key in reached(plan, read(rows.connection).while_doing("reading the catalogue")?) {
            let sql = key.orphans();
            if let Err(error) = rows.connection.prepare(&sql) {
                tracing::warn!(table = key.child, %error, "a foreign key can't be carried out");
                continue;
            }
            rows.keep(&key.kept(), key.columns.len(), &sql)?;
            let columns: Vec<String> = (1..=key.columns.len()).map(|place| format!("c{place}")).collect();
            rows.execute(
                &format!("CREATE INDEX temp.{} ON {} ({})", key.index(), key.kept(), columns.join(", ")),
                &[],
            )?;
            found.push(key);
        }
        let found = OwnChildren(found);
        found.for_absent(rows, plan, &|own| {
            let same: Vec<String> = (1..=own.columns.len()).map(|place| format!("c{place} IS ?")).collect();
            format!("DELETE FROM temp.{} WHERE {}", own.kept(), same.join(" AND "))
        })?;
        Ok(found)
    }

    /// What they say of rows that have gone is carried out. Nothing is written to tables of the model afterwards.
    pub(crate) fn carry_out(&self, rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
        // Rows that are held, or whose change only the list has, are not deleted.
        self.for_absent(rows, plan, &|own| {
            format!("INSERT INTO temp.{} VALUES ({})", own.kept(), vec!["?"; own.columns.len()].join(", "))
        })?;
        // Each may take away what others refer to.
        for _ in &self.0 {
            let mut count = 0;
            for own in &self.0 {
                count += own.carry_out(rows.connection)?;
            }
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The own table with a row that refers to one which has gone, and may not.
    pub(crate) fn refusing(&self, rows: &Rows<'_>) -> Result<Option<&str>, Error> {
        for own in self.0.iter().filter(|own| own.is_restricting()) {
            if rows.any(&format!("SELECT 1 FROM main.{} WHERE {}", quote(&own.child), own.is_new_orphan()))? {
                return Ok(Some(&own.child));
            }
        }
        Ok(None)
    }

    /// Runs a statement for each foreign key and row that only the list of held rows, or of changes set aside, has. Parameters: what refers to it
    /// has in the foreign key.
    fn for_absent(&self, rows: &Rows<'_>, plan: &Plan, sql: &dyn Fn(&OwnKey) -> String) -> Result<(), Error> {
        for table in plan.tables.iter().filter(|table| self.of(table).next().is_some()) {
            let images = absent(rows, table)?;
            for own in self.of(table) {
                let Some(places) = own.places(table) else { continue };
                let sql = sql(own);
                for row in images.iter().map(|image| from_wire(image)) {
                    let values: Vec<Local> = places.iter().map(|place| row[*place].clone()).collect();
                    rows.execute(&sql, &values)?;
                }
            }
        }
        Ok(())
    }

    /// Whether own rows may keep a row of a table from being deleted.
    pub(super) fn restrict(&self, table: &TablePlan) -> bool {
        self.of(table).any(OwnKey::is_restricting)
    }

    fn of<'a>(&'a self, table: &'a TablePlan) -> impl Iterator<Item = &'a OwnKey> {
        self.0.iter().filter(|key| key.parent.eq_ignore_ascii_case(&table.table.name))
    }
}

impl OwnKey {
    fn is_restricting(&self) -> bool {
        matches!(self.on_delete.as_str(), "RESTRICT" | "NO ACTION")
    }

    fn kept(&self) -> String {
        format!("\"hw_orphaned_{}\"", self.number)
    }

    fn index(&self) -> String {
        format!("\"hw_orphaned_key_{}\"", self.number)
    }

    /// A condition on rows of the child: they refer to a row that is not there.
    fn is_orphan(&self) -> String {
        let own = |name: &String| format!("{}.{}", quote(&self.child), quote(name));
        let refers: Vec<String> = self.columns.iter().map(|(from, _)| format!("{} IS NOT NULL", own(from))).collect();
        let same = self.columns.iter().map(|(from, to)| format!("hw_p.{} = {}", quote(to), own(from)));
        format!(
            "{} AND NOT EXISTS (SELECT 1 FROM main.{} AS hw_p WHERE {})",
            refers.join(" AND "),
            quote(&self.parent),
            same.collect::<Vec<_>>().join(" AND ")
        )
    }

    /// What such rows refer to.
    fn orphans(&self) -> String {
        let from: Vec<String> = self.columns.iter().map(|(from, _)| quote(from)).collect();
        format!("SELECT DISTINCT {} FROM main.{} WHERE {}", from.join(", "), quote(&self.child), self.is_orphan())
    }

    /// What carries the foreign key out; `None`: it only restricts.
    fn action(&self, connection: &Connection) -> rusqlite::Result<Option<String>> {
        let child = quote(&self.child);
        let mut set = Vec::new();
        for (from, _) in &self.columns {
            let value = match self.on_delete.as_str() {
                "SET DEFAULT" => {
                    let sql = "SELECT coalesce(dflt_value, 'NULL') FROM pragma_table_info(?) WHERE name = ?";
                    connection.query_row(sql, [&self.child, from], |row| row.get(0))?
                }
                _ => "NULL".to_owned(),
            };
            set.push(format!("{} = {value}", quote(from)));
        }
        let condition = self.is_new_orphan();
        Ok(match self.on_delete.as_str() {
            "CASCADE" => Some(format!("DELETE FROM main.{child} WHERE {condition}")),
            "SET NULL" | "SET DEFAULT" => Some(format!("UPDATE main.{child} SET {} WHERE {condition}", set.join(", "))),
            _ => None,
        })
    }

    /// The same, and it was there before, or is not on a list.
    fn is_new_orphan(&self) -> String {
        let child = quote(&self.child);
        let same =
            self.columns.iter().zip(1..).map(|((from, _), place)| format!("hw_o.c{place} = {child}.{}", quote(from)));
        format!(
            "{} AND NOT EXISTS (SELECT 1 FROM temp.{} AS hw_o WHERE {})",
            self.is_orphan(),
            self.kept(),
            same.collect::<Vec<_>>().join(" AND ")
        )
    }

    fn carry_out(&self, connection: &Connection) -> Result<usize, Error> {
        let Some(sql) = self.action(connection).while_doing("reading the catalogue")? else { return Ok(0) };
        let result = connection.prepare(&sql).and_then(|mut action| action.execute([]));
        if connection.is_autocommit() {
            return Err(Error::RolledBack { table: self.child.clone() });
        }
        result.or_else(|error| {
            tracing::warn!(table = self.child, %error, "a foreign key can't be carried out: rows refer to nothing");
            Ok(0)
        })
    }

    /// The columns of the parent, by their places in the model.
    fn places(&self, table: &TablePlan) -> Option<Vec<usize>> {
        let place = |name: &str| table.table.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
        self.columns.iter().map(|(_, to)| place(to)).collect()
    }
}

impl Apply<'_> {
    /// Whether own tables of the application's refer to a table.
    pub(super) fn has_own_children(&self, table: &TablePlan) -> bool {
        self.own_children.of(table).next().is_some()
    }

    /// The own table with a row that keeps this one from being deleted.
    pub(super) fn kept_by(&self, table: &TablePlan, key: &[Local]) -> Result<Option<String>, Error> {
        for own in self.own_children.of(table).filter(|own| own.is_restricting()) {
            let same = own.columns.iter().map(|(from, to)| format!("hw_p.{} = hw_c.{}", quote(to), quote(from)));
            let by_key = table.keys("").into_iter().map(|key| format!("hw_p.{key} = ?"));
            let sql = format!(
                "SELECT 1 FROM main.{} AS hw_p JOIN main.{} AS hw_c ON {} WHERE {}",
                table.name(),
                quote(&own.child),
                same.collect::<Vec<_>>().join(" AND "),
                by_key.collect::<Vec<_>>().join(" AND ")
            );
            if self
                .rows
                .prepare(&sql)?
                .exists(params_from_iter(key))
                .while_doing("looking for rows that refer to one")?
            {
                return Ok(Some(own.child.clone()));
            }
        }
        Ok(None)
    }

    /// Rows of a table leave the remote: that is no deletion.
    pub(super) fn keep_children_of(&self, table: &TablePlan, condition: &str, values: &[Local]) -> Result<(), Error> {
        for own in self.own_children.of(table) {
            let to: Vec<String> = own.columns.iter().map(|(_, to)| quote(to)).collect();
            let sql = format!(
                "INSERT INTO temp.{} SELECT {} FROM {} WHERE {condition}",
                own.kept(),
                to.join(", "),
                table.name()
            );
            self.rows.execute(&sql, values)?;
        }
        Ok(())
    }

    /// Everything has come: what the application's foreign keys say of rows that have gone is carried out.
    pub(super) fn carry_out_own_keys(&self) -> Result<(), Error> {
        if self.own_children.0.is_empty() {
            return Ok(());
        }
        super::set_triggers(self.rows.connection, true)?;
        self.own_children.carry_out(&self.rows, self.plan)
    }
}

/// Rows that are held, or whose change only the list has.
fn absent(rows: &Rows<'_>, table: &TablePlan) -> Result<Vec<Row>, Error> {
    let sql = "SELECT \"image\" FROM \"hw_held\" WHERE \"table\" = ?1 AND \"image\" IS NOT NULL UNION ALL \
               SELECT \"new\" FROM \"hw_set_aside\" WHERE \"table\" = ?1 AND \"in_place\" = 0 AND \"new\" IS NOT NULL";
    let mut select = rows.prepare(sql)?;
    let images = select.query_map([table.number], |row| row.get::<_, Vec<u8>>(0));
    let images: Vec<_> = images.and_then(Iterator::collect).while_doing("reading held rows")?;
    images.iter().map(|image| Ok(decoded(&table.types, image)?)).collect()
}

/// How many rows of the application's own tables refer to nothing, by foreign key: the table, the one that it refers to, and the number.
pub(crate) fn orphans(connection: &Connection, plan: &Plan) -> Result<Vec<(String, String, u64)>, Error> {
    let mut orphans = Vec::new();
    for key in reached(plan, read(connection).while_doing("reading the catalogue")?) {
        let sql = format!("SELECT count(*) FROM main.{} WHERE {}", quote(&key.child), key.is_orphan());
        // One that can't be looked at is left out here as it is in downloads.
        let Ok(mut select) = connection.prepare(&sql) else { continue };
        let count: i64 =
            select.query_row([], |row| row.get(0)).while_doing("looking for rows that refer to nothing")?;
        if count > 0 {
            orphans.push((key.child, key.parent, count.unsigned_abs()));
        }
    }
    Ok(orphans)
}

/// Those that lead to a table of the model, at once or through others that are carried out.
fn reached(plan: &Plan, keys: Vec<OwnKey>) -> Vec<OwnKey> {
    let is_of_model = |name: &str| plan.tables.iter().any(|table| table.table.name.eq_ignore_ascii_case(name));
    let (mut rest, mut reached): (Vec<OwnKey>, Vec<OwnKey>) =
        (keys.into_iter().filter(|key| !is_of_model(&key.child)).collect(), Vec::new());
    loop {
        let is_reached = |key: &OwnKey| {
            let goes = |above: &OwnKey| above.on_delete == "CASCADE" && above.child.eq_ignore_ascii_case(&key.parent);
            is_of_model(&key.parent) || reached.iter().any(goes)
        };
        let (more, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_reached);
        rest = others;
        if more.is_empty() {
            return reached;
        }
        reached.extend(more);
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Vec<OwnKey>> {
    let sql = "SELECT m.name, f.id, f.seq, f.\"table\", f.\"from\", coalesce(f.\"to\", (SELECT name FROM pragma_table_info(f.\"table\") \
               WHERE pk = f.seq + 1)), f.on_delete FROM sqlite_schema AS m, pragma_foreign_key_list(m.name) AS f \
               WHERE m.type = 'table' AND m.name NOT LIKE 'hw\\_%' ESCAPE '\\' ORDER BY m.name, f.id, f.seq";
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    let mut keys: Vec<OwnKey> = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(to) = row.get::<_, Option<String>>(5)? else { continue };
        let columns = (row.get(4)?, to);
        match keys.last_mut() {
            Some(last) if row.get::<_, i64>(2)? > 0 => last.columns.push(columns),
            _ => keys.push(OwnKey {
                number: keys.len(),
                child: row.get(0)?,
                parent: row.get(3)?,
                columns: vec![columns],
                on_delete: row.get(6)?,
            }),
        }
    }
    Ok(keys)
}
