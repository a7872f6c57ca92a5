//! Which tables change tracking is on: what no trigger sees.
//!
//! SQLite fires no trigger when a table is dropped, rebuilt under its name (the twelve steps of ALTER), or when a column is dropped and
//! added again. Afterwards the schema may read word for word as before. So `headwater_schema_seen` keeps the schema as it was last judged:
//! its version, and each object's row number, root page, digest and columns. A download compares; where something differs, [`look`] judges
//! it in a transaction of its own:
//!
//! | what differs | verdict |
//! |---|---|
//! | a trigger or the side table of a tracked table was made anew (another row number) or is gone | the table comes whole |
//! | the table was made anew, has another root page, or its columns are no longer the first ones | the table comes whole |
//! | the schema version rose by two statements more than the differences need | each table comes whole that may have lost a column and got it again; after a `VACUUM`, all |
//! | the schema version rose by less than the differences need, or fell: the file is a backup or another one | all come whole |
//! | objects came or went, columns were added, a `VACUUM` | nothing |
//!
//! Each statement of DDL raises the schema version by one. A column that was dropped and added again leaves no trace but that: two
//! statements are left over when the visible differences are accounted for. `VACUUM` leaves one, and puts row numbers and root pages in
//! order. The view `headwater_newest` is the last object of a schema that was judged: an object made later has a row behind it, and never
//! the row of one that was dropped.
//!
//! *Caveats.* These leave no trace at all: triggers switched off by a connection (`SQLITE_DBCONFIG_ENABLE_TRIGGER`), pages written directly,
//! `writable_schema` followed by `VACUUM`. Two `VACUUM`s between two looks send every table again, as may two statements that leave nothing
//! behind (a view made and dropped).

use std::collections::{BTreeMap, BTreeSet};

use headwater_model::sql::quote;
use headwater_protocol::Value;
use sha2::{Digest as _, Sha256};

use super::connection::SqliteConnection;
use crate::catalogue::{integer, text};
use crate::{Connection, Error};

/// Headwater's tables for this, made by `track` and by the first look at a database that an older build tracked.
pub(crate) const TABLES: [&str; 2] = [
    // One row: the schema as it was last judged.
    "CREATE TABLE IF NOT EXISTS headwater_schema_seen (single INTEGER PRIMARY KEY CHECK (single = 1), version INTEGER NOT NULL, \
     state TEXT NOT NULL, objects TEXT NOT NULL)",
    // By tracked table, the version at which it changed without a note: it comes whole to whoever has not seen that.
    "CREATE TABLE IF NOT EXISTS headwater_refresh (table_name TEXT PRIMARY KEY, version INTEGER NOT NULL, incarnation BLOB NOT NULL, \
     cause TEXT NOT NULL) WITHOUT ROWID",
];

/// The view that is made last.
const NEWEST: &str = "headwater_newest";

/// An object of `sqlite_schema`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    row: i64,
    kind: String,
    name: String,
    table: String,
    root: i64,
    /// A digest of its SQL; empty where it has none.
    digest: String,
    /// Of a table: each column's name and declared type.
    columns: Vec<String>,
    sql: String,
}

/// An object as it is kept.
type Kept = (i64, String, String, String, i64, String, Vec<String>);

impl Object {
    /// SQLite's own come and go with others.
    fn is_automatic(&self) -> bool {
        self.digest.is_empty() || self.name.starts_with("sqlite_")
    }

    /// Whether it is the same but for its place.
    fn is_like(&self, other: &Object) -> bool {
        (&self.kind, &self.name, &self.table, &self.digest) == (&other.kind, &other.name, &other.table, &other.digest)
    }

    /// How many columns were added to a table since; `None`: something else was done to it.
    fn columns_added_since(&self, before: &Object) -> Option<u64> {
        let is_same = (&self.kind, &self.name) == (&before.kind, &before.name);
        let is_longer = self.columns.len() > before.columns.len() && self.columns.starts_with(&before.columns);
        (is_same && is_longer).then(|| (self.columns.len() - before.columns.len()) as u64)
    }

    /// The fewest statements that make these columns of as many: one renames one column, and two (drop one, add one) change all behind it.
    fn columns_renamed_since(&self, before: &Object) -> u64 {
        let differ = self.columns.iter().zip(&before.columns).filter(|(now, before)| now != before).count();
        if self.columns.len() == before.columns.len() { differ.min(2) as u64 } else { 0 }
    }

    fn kept(&self) -> Kept {
        let Object { row, kind, name, table, root, digest, columns, .. } = self.clone();
        (row, kind, name, table, root, digest, columns)
    }

    fn read((row, kind, name, table, root, digest, columns): Kept) -> Object {
        Object { row, kind, name, table, root, digest, columns, sql: String::new() }
    }
}

/// The schema at one time.
#[derive(Debug)]
struct Schema {
    version: i64,
    objects: Vec<Object>,
}

/// Whether the schema is not the one that was judged last; in a download.
pub(super) fn has_changed(connection: &mut SqliteConnection) -> Result<bool, Error> {
    let seen = "SELECT state FROM headwater_schema_seen";
    let Some(seen) = connection.known_row(seen).map(|row| text(&row, 0)) else {
        // Nothing is tracked, or an older build did it.
        return Ok(connection.known_row("SELECT version FROM headwater_version").is_some());
    };
    Ok(seen != state(connection)?)
}

/// Judges what has changed since the last look, in a transaction that writes.
pub(crate) fn look(connection: &mut dyn Connection) -> Result<(), Error> {
    TABLES.iter().try_for_each(|statement| connection.batch(statement))?;
    if let Some(seen) = seen(connection)? {
        let now = Schema::read(connection)?;
        if seen.version == now.version && seen.objects.iter().map(Object::kept).eq(now.objects.iter().map(Object::kept))
        {
            return Ok(());
        }
        for (table, cause) in altered(connection, &seen, &now)? {
            tracing::warn!(table, cause, "a tracked table was altered: it will be sent again");
            refresh(connection, &table, &cause)?;
        }
        if seen.version == now.version {
            // Written past SQLite: other connections go by what they have read before.
            connection.batch(&format!("PRAGMA schema_version = {}", now.version.wrapping_add(1)))?;
        }
    }
    record(connection)
}

/// Keeps the schema as it is now.
pub(crate) fn record(connection: &mut dyn Connection) -> Result<(), Error> {
    let mut now = Schema::read(connection)?;
    if now.objects.last().is_none_or(|object| object.name != NEWEST) {
        let sql =
            format!("DROP VIEW IF EXISTS {NEWEST}; CREATE VIEW {NEWEST} AS SELECT 'the end of the schema' AS what");
        connection.batch(&sql)?;
        now = Schema::read(connection)?;
    }
    let objects = serde_json::to_string(&now.objects.iter().map(Object::kept).collect::<Vec<_>>());
    let objects = objects.map_err(|error| unreadable(&error.to_string()))?;
    let sql = "INSERT INTO headwater_schema_seen (single, version, state, objects) VALUES (1, ?1, ?2, ?3) \
               ON CONFLICT (single) DO UPDATE SET version = excluded.version, state = excluded.state, objects = excluded.objects";
    let state = state(connection)?;
    connection.execute(sql, &[Value::Int(now.version), Value::text(state), Value::text(objects)]).map(drop)
}

/// The names of tables that changed without a note since a version.
pub(super) fn refreshed_since(connection: &mut SqliteConnection, version: i64) -> Result<Vec<String>, Error> {
    let sql = "SELECT r.table_name FROM headwater_refresh r JOIN headwater_identity i ON i.incarnation = r.incarnation \
               WHERE r.version > ?1";
    if connection.known_row("SELECT count(*) FROM headwater_refresh").is_none() {
        return Ok(Vec::new());
    }
    Ok(connection.query(sql, &[Value::Int(version)])?.iter().map(|row| text(row, 0)).collect())
}

/// Forgets what every remote that is new enough has seen.
pub(crate) fn purge(connection: &mut dyn Connection, below: u64) -> Result<(), Error> {
    TABLES.iter().try_for_each(|statement| connection.batch(statement))?;
    let sql = "DELETE FROM headwater_refresh WHERE version < ?1";
    connection.execute(sql, &[Value::Int(i64::try_from(below).unwrap_or(i64::MAX))]).map(drop)
}

fn refresh(connection: &mut dyn Connection, tracked_name: &str, cause: &str) -> Result<(), Error> {
    connection.batch("UPDATE headwater_version SET version = version + 1")?;
    let sql = "INSERT INTO headwater_refresh (table_name, version, incarnation, cause) \
               SELECT ?1, v.version, i.incarnation, ?2 FROM headwater_version v, headwater_identity i WHERE true \
               ON CONFLICT (table_name) DO UPDATE SET version = excluded.version, incarnation = excluded.incarnation, \
               cause = excluded.cause";
    connection.execute(sql, &[Value::text(tracked_name), Value::text(cause)]).map(drop)
}

/// What is another value whenever the schema was changed, whether or not its version was.
fn state(connection: &mut dyn Connection) -> Result<String, Error> {
    // Triggers have most of the text, and are judged when the version rises.
    let sql = "SELECT rowid, type, name, tbl_name, rootpage, CASE type WHEN 'table' THEN sql END FROM sqlite_schema ORDER BY rowid";
    let mut hash = Sha256::new();
    connection.each_row(sql, &[], &mut |row| {
        for value in &row {
            match value {
                Value::Int(number) => hash.update(number.to_le_bytes()),
                Value::Text(bytes) => {
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(bytes);
                }
                _ => hash.update([0]),
            }
        }
        Ok(())
    })?;
    Ok(format!("{}/{}", version(connection)?, hex::encode(&hash.finalize()[..16])))
}

fn version(connection: &mut dyn Connection) -> Result<i64, Error> {
    Ok(connection.query("PRAGMA schema_version", &[])?.first().map_or(0, |row| integer(row, 0)))
}

fn seen(connection: &mut dyn Connection) -> Result<Option<Schema>, Error> {
    let rows = connection.query("SELECT version, objects FROM headwater_schema_seen", &[])?;
    let Some(row) = rows.first() else { return Ok(None) };
    let kept: Vec<Kept> = serde_json::from_str(&text(row, 1)).map_err(|error| unreadable(&error.to_string()))?;
    Ok(Some(Schema { version: integer(row, 0), objects: kept.into_iter().map(Object::read).collect() }))
}

fn unreadable(detail: &str) -> Error {
    Error::Database { context: "reading the schema that was seen last".to_owned(), detail: detail.to_owned() }
}

impl Schema {
    fn read(connection: &mut dyn Connection) -> Result<Schema, Error> {
        let sql = "SELECT s.rowid, x.name || ' ' || x.type FROM sqlite_schema s, pragma_table_xinfo(s.name) x \
                   WHERE s.type = 'table' AND s.rootpage > 0 ORDER BY s.rowid, x.cid";
        let mut columns: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for row in connection.query(sql, &[])? {
            columns.entry(integer(&row, 0)).or_default().push(text(&row, 1));
        }
        let sql = "SELECT rowid, type, name, tbl_name, rootpage, sql FROM sqlite_schema ORDER BY rowid";
        let mut objects = Vec::new();
        for row in connection.query(sql, &[])? {
            let sql = text(&row, 5);
            let digest = if sql.is_empty() { String::new() } else { hex::encode(&Sha256::digest(&sql)[..16]) };
            let (number, kind, name, table) = (integer(&row, 0), text(&row, 1), text(&row, 2), text(&row, 3));
            let columns = columns.remove(&number).unwrap_or_default();
            objects.push(Object { row: number, kind, name, table, root: integer(&row, 4), digest, columns, sql });
        }
        Ok(Schema { version: version(connection)?, objects })
    }

    fn at(&self, row: i64) -> Option<&Object> {
        self.objects.binary_search_by_key(&row, |object| object.row).ok().map(|place| &self.objects[place])
    }

    fn named(&self, kind: &str, name: &str) -> Option<&Object> {
        self.objects.iter().find(|object| object.kind == kind && object.name == name)
    }

    /// Whether the rows are numbered without a gap, and the root pages in their order, as `VACUUM` leaves them.
    fn is_in_order(&self) -> bool {
        let rows = self.objects.iter().zip(1..).all(|(object, place)| object.row == place);
        let roots: Vec<i64> = self.objects.iter().map(|object| object.root).filter(|root| *root > 0).collect();
        rows && roots.is_sorted()
    }

    /// Whether rows have other numbers than before, as after a `VACUUM`.
    fn is_renumbered_since(&self, before: &Schema) -> bool {
        let has_moved = |object: &Object| {
            let there = self.named(&object.kind, &object.name);
            there.is_some_and(|there| there.is_like(object) && there.row != object.row)
        };
        self.is_in_order() && before.objects.iter().any(has_moved)
    }

    /// The objects that are not in another schema and need a statement of their own to go; with what they belong to, others go too.
    fn not_in(&self, is_there: impl Fn(&Object) -> bool) -> u64 {
        let gone: Vec<&Object> = self.objects.iter().filter(|object| !is_there(object)).collect();
        let owners: Vec<&Object> =
            gone.iter().filter(|object| matches!(&*object.kind, "table" | "view")).copied().collect();
        let belongs = |object: &Object| {
            let goes_with = |owner: &&Object| match &*object.kind {
                "index" | "trigger" => owner.name == object.table,
                // The tables in which a virtual one keeps its rows.
                _ => owner.root == 0 && object.name.strip_prefix(&owner.name).is_some_and(|rest| rest.starts_with('_')),
            };
            owners.iter().any(goes_with)
        };
        gone.iter().filter(|object| !object.is_automatic() && !belongs(object)).count() as u64
    }

    /// The fewest statements that make this schema of that one.
    fn statements_since(&self, before: &Schema, renumbered: bool) -> u64 {
        let made = |is_there: &dyn Fn(&Object) -> bool| {
            self.objects.iter().filter(|object| !object.is_automatic() && !is_there(object)).count() as u64
        };
        if renumbered {
            // A table that was renamed counts as come and gone: one statement.
            let came = made(&|object| before.named(&object.kind, &object.name).is_some());
            let gone = before.not_in(|object| self.named(&object.kind, &object.name).is_some());
            let grown = self.objects.iter().filter_map(|object| {
                before.named(&object.kind, &object.name).and_then(|before| object.columns_added_since(before))
            });
            return came.max(gone) + grown.sum::<u64>();
        }
        let came = made(&|object| before.at(object.row).is_some());
        let gone = before.not_in(|object| self.at(object.row).is_some());
        let (mut grown, mut changed, mut renamed) = (0, 0, 0);
        for object in &self.objects {
            match before.at(object.row) {
                Some(before) if !object.is_like(before) => match object.columns_added_since(before) {
                    Some(columns) => grown += columns,
                    None => (changed, renamed) = (1, renamed + object.columns_renamed_since(before)),
                },
                _ => {}
            }
        }
        came + gone + grown + changed.max(renamed)
    }
}

/// The tracked tables, by their tracked names, of which changes may have gone by unnoted, each with the reason.
fn altered(connection: &mut dyn Connection, seen: &Schema, now: &Schema) -> Result<BTreeMap<String, String>, Error> {
    let tracked = connection
        .query("SELECT table_name FROM headwater_tracked WHERE installed_hash IS NOT NULL ORDER BY table_name", &[])?;
    let tracked: Vec<String> = tracked.iter().map(|row| text(row, 0)).collect();
    let renumbered = now.is_renumbered_since(seen);
    let risen = now.version.wrapping_sub(seen.version);
    let needed = i64::try_from(now.statements_since(seen, renumbered)).unwrap_or(i64::MAX);
    let unseen = risen.wrapping_sub(needed);
    // One statement that leaves nothing to be seen may be a VACUUM, and can't be harmful: what is dropped is missing.
    let is_vacuum = unseen == 1 && now.is_in_order();
    let has_lost_trace = risen != 0 && !(0..=1).contains(&unseen);
    if has_lost_trace && (renumbered || unseen < 0) {
        let cause = if unseen < 0 {
            // Each statement raises the version; in a copy that SQLite's backup API made it is 1.
            format!(
                "the file is a backup or another one: its schema has version {}, and the one that was seen last {}",
                now.version, seen.version
            )
        } else {
            format!("the schema was changed by {risen} statements, of which {needed} are seen")
        };
        return Ok(tracked.into_iter().map(|name| (name, cause.clone())).collect());
    }
    let compared = Compared { seen, now, by_place: !renumbered, roots: !is_vacuum };
    let mut found = BTreeMap::new();
    let mut bases = BTreeSet::new();
    for name in &tracked {
        let cause = match compared.table(name) {
            None if has_lost_trace && may_have_lost_a_column(connection, now, name)? => {
                Some("a column may have been dropped and added again".to_owned())
            }
            cause => cause,
        };
        if let Some(cause) = cause {
            bases.extend(base_of(seen, name).or_else(|| base_of(now, name)));
            found.insert(name.clone(), cause);
        }
    }
    // With a table go those that take their partition from it: their triggers read it.
    for name in &tracked {
        let reads = |base: &String| {
            let is_its = |object: &&Object| object.kind == "trigger" && is_trigger_of(object, name);
            now.objects.iter().filter(is_its).any(|object| object.sql.contains(&quote(base)))
        };
        if let Some(base) = bases.iter().find(|base| reads(base)).filter(|_| !found.contains_key(name)) {
            found.insert(name.clone(), format!("table {base}, which it refers to, was altered"));
        }
    }
    Ok(found)
}

/// Whether the text of a table can be what it was after its last column was dropped and added again: SQLite writes the column behind a comma
/// and one space, and adds none that is of the key, or not null without a default.
fn may_have_lost_a_column(connection: &mut dyn Connection, now: &Schema, tracked_name: &str) -> Result<bool, Error> {
    let sql = "SELECT name, pk = 0 AND (\"notnull\" = 0 OR dflt_value IS NOT NULL) FROM pragma_table_xinfo(?1) ORDER BY cid DESC LIMIT 1";
    let Some(table) = base_of(now, tracked_name) else { return Ok(true) };
    let columns = connection.query(sql, &[Value::text(table.as_str())])?;
    let Some((column, table)) = columns.first().zip(now.named("table", &table)) else { return Ok(true) };
    let text = table.sql.to_lowercase();
    let name = crate::catalogue::text(column, 0).to_lowercase();
    let is_behind_one_space = ["", "\"", "`", "[", "'"].iter().any(|mark| text.contains(&format!(", {mark}{name}")));
    Ok(integer(column, 1) != 0 && is_behind_one_space)
}

const EVENTS: [&str; 7] =
    ["before_insert", "after_insert", "before_update", "after_update", "after_delete", "before_move", "before_delete"];

fn is_trigger_of(object: &Object, tracked_name: &str) -> bool {
    let rest = object.name.strip_prefix("headwater_").and_then(|rest| rest.strip_suffix(tracked_name));
    rest.and_then(|rest| rest.strip_suffix('_')).is_some_and(|event| EVENTS.contains(&event))
}

/// The table on which a tracked table's triggers are.
fn base_of(schema: &Schema, tracked_name: &str) -> Option<String> {
    let mut triggers = schema.objects.iter().filter(|object| object.kind == "trigger");
    triggers.find(|object| is_trigger_of(object, tracked_name)).map(|object| object.table.clone())
}

/// Two schemas, and what of their objects is compared.
struct Compared<'a> {
    seen: &'a Schema,
    now: &'a Schema,
    by_place: bool,
    roots: bool,
}

impl Compared<'_> {
    /// Why changes of a table may have gone by unnoted; `None`: they have not.
    fn table(&self, name: &str) -> Option<String> {
        let Some(base) = base_of(self.seen, name) else {
            return base_of(self.now, name).map(|_| "its triggers were missing".to_owned());
        };
        for trigger in self.seen.objects.iter().filter(|object| object.kind == "trigger" && is_trigger_of(object, name))
        {
            match self.now.named("trigger", &trigger.name) {
                None => return Some(format!("trigger {} was dropped", trigger.name)),
                Some(now) if !now.is_like(trigger) => return Some(format!("trigger {} was changed", trigger.name)),
                Some(now) if self.by_place && now.row != trigger.row => {
                    return Some(format!("trigger {} was dropped and made again", trigger.name));
                }
                Some(_) => {}
            }
        }
        self.kept(&base).or_else(|| self.kept(&format!("headwater_side_{name}")))
    }

    /// Why a table is not the one that it was.
    fn kept(&self, name: &str) -> Option<String> {
        let before = self.seen.named("table", name)?;
        let Some(now) = self.now.named("table", name) else { return Some(format!("table {name} was dropped")) };
        if self.by_place && now.row != before.row {
            return Some(format!("table {name} was made anew"));
        }
        if self.by_place && self.roots && now.root != before.root {
            return Some(format!("table {name} has other contents"));
        }
        let is_same = now.digest == before.digest || now.columns_added_since(before).is_some();
        (!is_same).then(|| format!("the columns of table {name} were changed"))
    }
}
