//! What the application at a remote has made of its own: things that its triggers keep beside a table of the model, and migrations that make
//! tables anew.
//!
//! ```text
//! app_search   a full-text table of the judged table's rows
//! app_total    how many rows there are, counted up and down
//! app_child    rows of its own that refer to them, with a cascade
//! app_touched  a column of its own, which a trigger writes
//! ```
//!
//! None of it is synchronized. After each sync that nothing disturbs it agrees with the table that it was made of: triggers have seen each
//! change that came down, once.

use anyhow::{Context as _, Result, ensure};
use headwater_remote::Remote;
use rusqlite::Connection;

use crate::events::Event;
use crate::history::History;
use crate::schema::Schema;
use crate::shape::{literal, quote};
use crate::window::Window;

impl Schema {
    /// The columns of the judged table's key.
    fn judged_key_columns(&self) -> Vec<String> {
        self.judged_columns[..self.judged_key].iter().map(|(name, _)| quote(name)).collect()
    }

    /// What an application makes of its own at a remote.
    fn own_objects(&self) -> String {
        let (table, key) = (quote(&self.judged), self.judged_key_columns());
        let of = |image: &str| key.iter().map(|name| format!("{image}.{name}")).collect::<Vec<_>>().join(", ");
        let same =
            |image: &str| key.iter().map(|name| format!("{name} = {image}.{name}")).collect::<Vec<_>>().join(" AND ");
        let keys = key.join(", ");
        let unindexed: Vec<String> = key.iter().map(|name| format!("{name} UNINDEXED")).collect();
        let found = format!("INSERT INTO app_search ({keys}, body) VALUES ({}, NEW.body)", of("NEW"));
        let lost = format!("DELETE FROM app_search WHERE {}", same("OLD"));
        format!(
            "CREATE VIRTUAL TABLE app_search USING fts5({}, body); \
             CREATE TABLE app_total (n INTEGER NOT NULL); INSERT INTO app_total VALUES (0); \
             CREATE TABLE app_child ({keys}, FOREIGN KEY ({keys}) REFERENCES {table} ON DELETE CASCADE ON UPDATE CASCADE); \
             CREATE INDEX app_child_key ON app_child ({keys}); CREATE INDEX app_body ON {table} (lower(body)) WHERE body IS NOT NULL; \
             ALTER TABLE {table} ADD COLUMN app_touched INTEGER; \
             CREATE TRIGGER app_insert AFTER INSERT ON {table} BEGIN {found}; UPDATE app_total SET n = n + 1; \
             INSERT INTO app_child VALUES ({}); END; \
             CREATE TRIGGER app_update AFTER UPDATE ON {table} BEGIN {lost}; {found}; END; \
             CREATE TRIGGER app_delete AFTER DELETE ON {table} BEGIN {lost}; UPDATE app_total SET n = n - 1; END; \
             CREATE TRIGGER app_stamp AFTER UPDATE OF body ON {table} BEGIN \
             UPDATE {table} SET app_touched = coalesce(app_touched, 0) + 1 WHERE {}; END",
            unindexed.join(", "),
            of("NEW"),
            same("NEW"),
        )
    }

    /// Queries that give what does not agree. Only where nothing is set aside or held, the application's own rows refer to rows that are there.
    fn own_differences(&self, is_settled: bool) -> Vec<String> {
        let (table, keys) = (quote(&self.judged), self.judged_key_columns().join(", "));
        let without = |columns: &str, one: &str, other: &str| {
            format!("SELECT '{one} alone', {columns} FROM {one} EXCEPT SELECT '{one} alone', {columns} FROM {other}")
                .replace("'judged alone'", "'the table alone'")
                .replace("FROM judged", &format!("FROM {table}"))
        };
        let both = format!("{keys}, body");
        let mut queries = vec![
            without(&both, "judged", "app_search"),
            without(&both, "app_search", "judged"),
            without(&keys, "judged", "app_child"),
            format!("SELECT 'the total', n FROM app_total WHERE n <> (SELECT count(*) FROM {table})"),
        ];
        queries.extend(is_settled.then(|| without(&keys, "app_child", "judged")));
        queries
    }
}

impl History {
    /// Some remotes are an application's file.
    pub(crate) fn begin_applications(&mut self) -> Result<()> {
        if !self.events.has(Event::Application) {
            return Ok(());
        }
        let sql = self.schema.own_objects();
        for place in 0..self.sites.len() {
            if self.random.chance(40) {
                let name = self.sites[place].name.clone();
                self.world.edit(&name, &sql).with_context(|| format!("what {name} makes of its own"))?;
                self.sites[place].has_application = true;
                self.count("applications", 1);
                self.tell(format!("{name} is an application's"));
            }
        }
        Ok(())
    }

    /// What the application keeps agrees with the table that it keeps it of.
    pub(crate) fn agrees(&self, place: usize, is_settled: bool) -> Result<()> {
        let site = &self.sites[place];
        if !site.has_application {
            return Ok(());
        }
        for query in self.schema.own_differences(is_settled) {
            let found = self.world.rows(&site.name, &query)?;
            ensure!(found.is_empty(), "what the application of {} keeps differs: {found:?}", site.name);
        }
        self.world
            .edit(&site.name, "INSERT INTO app_search (app_search, rank) VALUES ('integrity-check', 0)")
            .context("the full-text table")
    }

    /// The application makes a table of the model anew, by SQLite's twelve steps. Just after a sync nothing is set aside for it.
    pub(crate) fn migrate(&mut self, place: usize) -> Result<()> {
        let is_after_a_sync = self.random.chance(50);
        if is_after_a_sync {
            self.sync(place, false, Window::Nothing)?;
        }
        let puts_ours_back = self.random.chance(50);
        let shapes = self.schema.shapes();
        let table = self.random.pick(&shapes).map(|shape| shape.name.clone()).context("a table")?;
        let site = &self.sites[place];
        let (name, is_sure) = (site.name.clone(), is_after_a_sync && !site.is_unsure);
        let before = untracked(&site.remote)?;
        make_anew(&mut Connection::open(self.world.path(&name))?, &table, puts_ours_back)
            .with_context(|| format!("{name} makes {table} anew"))?;
        self.count("migrations", 1);
        // Of what waited, the changes of rows that the new table lacks are set aside.
        self.sites[place].is_unsure |= table == self.schema.judged && !is_after_a_sync;
        let how = if puts_ours_back { "with" } else { "without" };
        self.tell(format!("{name} makes {table} anew, {how} Headwater's triggers"));
        self.sync(place, false, Window::Nothing)?;
        let after = untracked(&self.sites[place].remote)?;
        ensure!(!is_sure || after == before, "set aside for a table made anew: {after:?}, before: {before:?}");
        Ok(())
    }
}

/// The changes set aside as untracked.
fn untracked(remote: &Remote) -> Result<Vec<(String, String)>> {
    let list = remote.set_aside(10_000)?.into_iter().filter(|change| change.reason == "untracked");
    Ok(list.map(|change| (change.table, change.key)).collect())
}

fn make_anew(connection: &mut Connection, table: &str, puts_ours_back: bool) -> Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(30))?;
    connection.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON")?;
    let transaction = connection.transaction()?;
    let of = |condition: &str| -> Result<Vec<String>> {
        let sql = format!(
            "SELECT sql FROM sqlite_schema WHERE tbl_name = {} AND sql NOT NULL AND {condition}",
            literal(table)
        );
        let mut select = transaction.prepare(&sql)?;
        Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    };
    let made = of("type = 'table'")?.pop().context("it is there")?;
    let columns = made.find('(').context("its columns")?;
    let whose = if puts_ours_back { "1" } else { "name NOT LIKE 'hw\\_%' ESCAPE '\\'" };
    let objects = of(&format!("type IN ('index', 'trigger') AND {whose}"))?;
    let quoted = quote(table);
    transaction.execute_batch(&format!(
        "CREATE TABLE app_new {}; INSERT INTO app_new SELECT * FROM {quoted}; DROP TABLE {quoted}; ALTER TABLE app_new RENAME TO {quoted}; {}",
        &made[columns..],
        objects.join(";\n")
    ))?;
    transaction.commit()?;
    Ok(())
}
