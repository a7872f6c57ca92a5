//! The ledger of operations: what remotes did, and what the consolidated database says was applied.
//!
//! The consolidated database writes each change of its table into an `audit` table, by a trigger of the application's own: there an
//! operation that was applied twice stands twice, although the table itself can't show it. Each operation carries a mark of its own.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use crate::{Central, Kind, World, sqlite_rows};

/// The audited table, `entry (id, mark, owner)`, with what it refers to, and its audit.
pub fn schema(kind: Kind) -> String {
    let tables = "CREATE TABLE owner (id text NOT NULL PRIMARY KEY);
        INSERT INTO owner VALUES ('anna');
        CREATE TABLE entry (id text NOT NULL PRIMARY KEY, mark text, owner text NOT NULL REFERENCES owner (id));";
    format!("{tables}\n{}", audit(kind))
}

/// The audit of a table `entry` that has columns `id` and `mark`: what is applied twice stands there twice.
pub fn audit(kind: Kind) -> String {
    let table = "CREATE TABLE audit (op text NOT NULL, id text NOT NULL, mark text);";
    let triggers = match kind {
        Kind::Sqlite => {
            "CREATE TRIGGER audit_insert AFTER INSERT ON entry BEGIN INSERT INTO audit VALUES ('insert', NEW.id, NEW.mark); END;
             CREATE TRIGGER audit_update AFTER UPDATE ON entry BEGIN INSERT INTO audit VALUES ('update', NEW.id, NEW.mark); END;
             CREATE TRIGGER audit_delete AFTER DELETE ON entry BEGIN INSERT INTO audit VALUES ('delete', OLD.id, NULL); END;"
        }
        Kind::Postgres => {
            "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF TG_OP = 'DELETE' THEN INSERT INTO audit VALUES ('delete', OLD.id, NULL);
                 ELSE INSERT INTO audit VALUES (lower(TG_OP), NEW.id, NEW.mark); END IF; RETURN NULL; END $$;
             CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON entry FOR EACH ROW EXECUTE FUNCTION audit();"
        }
    };
    format!("{table}\n{triggers}")
}

/// The model of the audited table and of what it refers to.
pub const MODEL: &str = "
name = \"ledger\"
version = 1
[tables.owner]
direction = \"download\"
key = [\"id\"]
columns = { id = \"text not null\" }
[tables.entry]
key = [\"id\"]
conflict = \"consolidated_wins\"
references = [{ columns = [\"owner\"], table = \"owner\", target = [\"id\"] }]
columns = { id = \"text not null\", mark = \"text\", owner = \"text not null\" }
";

/// One operation: what was done to which row, and the mark that it left. No row is updated or deleted twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// `insert`, `update` or `delete`.
    pub op: &'static str,
    /// The row.
    pub id: String,
    /// The mark; `None` for a deletion.
    pub mark: Option<String>,
}

impl Operation {
    /// The statement that does it.
    pub fn sql(&self) -> String {
        let (id, mark) = (&self.id, self.mark.as_deref().unwrap_or_default());
        match self.op {
            "insert" => format!("INSERT INTO entry VALUES ('{id}', '{mark}', 'anna')"),
            "update" => format!("UPDATE entry SET mark = '{mark}' WHERE id = '{id}'"),
            _ => format!("DELETE FROM entry WHERE id = '{id}'"),
        }
    }
}

/// What was done, and which of it is known to have been received.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    done: Vec<Operation>,
    /// How many of `done`, from the first on, a receipt has acknowledged.
    acknowledged: usize,
}

impl Ledger {
    /// Writes an operation down.
    pub fn note(&mut self, operation: Operation) {
        self.done.push(operation);
    }

    /// Everything noted so far has been acknowledged.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.done.len();
    }

    /// How many operations are noted.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Holds the ledger against the audit: what was acknowledged stands there once, what was not at most once.
    pub fn check(&self, audit: &Audit) -> Result<()> {
        for (place, operation) in self.done.iter().enumerate() {
            let times = audit.times(operation);
            ensure!(times <= 1, "applied {times} times: {operation:?}");
            ensure!(times == 1 || place >= self.acknowledged, "acknowledged, and not applied: {operation:?}");
        }
        Ok(())
    }
}

/// What the consolidated database applied.
#[derive(Clone, Debug, Default)]
pub struct Audit(BTreeMap<Operation, u64>);

impl Audit {
    /// Reads the audit table.
    pub fn read(central: &Central) -> Result<Audit> {
        let mut audit = Audit::default();
        for row in central.rows("SELECT op, id, mark FROM audit")? {
            let mut row = row.into_iter();
            let op = match row.next().flatten().as_deref() {
                Some("insert") => "insert",
                Some("update") => "update",
                _ => "delete",
            };
            let id = row.next().flatten().unwrap_or_default();
            audit.add(Operation { op, id, mark: row.next().flatten() });
        }
        Ok(audit)
    }

    /// One more application of an operation.
    pub fn add(&mut self, operation: Operation) {
        *self.0.entry(operation).or_default() += 1;
    }

    fn times(&self, operation: &Operation) -> u64 {
        self.0.get(operation).copied().unwrap_or(0)
    }

    /// Whether nobody but these ledgers changed anything.
    pub fn has_nothing_beside(&self, ledgers: &[&Ledger]) -> Result<()> {
        let known: BTreeSet<&Operation> = ledgers.iter().flat_map(|ledger| &ledger.done).collect();
        let strange = self.0.keys().find(|operation| !known.contains(operation));
        ensure!(strange.is_none(), "applied, and never done: {strange:?}");
        Ok(())
    }
}

/// Checks that everything has come together at this remote: it equals its part of the consolidated database, nothing is pending, in
/// conflict or set aside, and no SQLite file is damaged.
pub fn converged(world: &World, name: &str) -> Result<()> {
    let diff = world.diff(name)?;
    ensure!(diff.is_equal(false), "{name} differs: {diff:#?}");
    let remote = headwater_remote::Remote::open(world.path(name))?;
    let (set_aside, conflicts) = (remote.set_aside(10)?, remote.conflicts(10)?);
    ensure!(set_aside.is_empty(), "{name} set aside: {set_aside:?}");
    ensure!(conflicts.is_empty(), "{name} met conflicts: {conflicts:?}");
    let mut files = vec![world.path(name)];
    if let Central::Sqlite(path) = &world.central {
        files.push(path.clone());
    }
    for file in files {
        let damage = sqlite_rows(&file, "PRAGMA integrity_check")?;
        ensure!(damage == [[Some("ok".to_owned())]], "{} is damaged: {damage:?}", file.display());
        let orphans = sqlite_rows(&file, "PRAGMA foreign_key_check")?;
        ensure!(orphans.is_empty(), "{} breaks foreign keys: {orphans:?}", file.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(id: &str) -> Operation {
        Operation { op: "insert", id: id.to_owned(), mark: Some(format!("mark of {id}")) }
    }

    fn ledger(ids: &[&str], acknowledged: usize) -> Ledger {
        Ledger { done: ids.iter().map(|id| insert(id)).collect(), acknowledged }
    }

    fn audit(ids: &[&str]) -> Audit {
        let mut audit = Audit::default();
        for id in ids {
            audit.add(insert(id));
        }
        audit
    }

    #[test]
    fn what_is_as_it_should_be_is_found_so() {
        ledger(&["a", "b", "c"], 2).check(&audit(&["a", "b"])).expect("c is unknown, and was not applied");
        ledger(&["a", "b", "c"], 2).check(&audit(&["c", "b", "a"])).expect("c is unknown, and was applied");
        audit(&["a"]).has_nothing_beside(&[&ledger(&["a"], 0)]).expect("a was done");
    }

    #[test]
    fn what_is_lost_applied_twice_or_made_up_is_caught() {
        let lost = ledger(&["a", "b"], 2).check(&audit(&["a"])).expect_err("b was acknowledged");
        assert!(lost.to_string().contains("not applied") && lost.to_string().contains("\"b\""), "{lost}");
        let twice = ledger(&["a", "b"], 1).check(&audit(&["a", "b", "b"])).expect_err("b stands there twice");
        assert!(twice.to_string().contains("applied 2 times"), "{twice}");
        assert!(audit(&["a", "x"]).has_nothing_beside(&[&ledger(&["a"], 1)]).is_err(), "x was never done");
    }

    #[test]
    fn a_row_that_did_not_sync_is_caught() -> Result<()> {
        let world = World::new(Kind::Sqlite, &schema(Kind::Sqlite), MODEL, &["one"])?;
        let mut remote = world.remote("one", "one")?;
        world.sync(&mut remote)?;
        converged(&world, "one")?;

        let differs = |what: &str| {
            let found = converged(&world, "one").expect_err(what).to_string();
            assert!(found.contains("differs"), "{what}: {found}");
        };
        world.edit("one", &insert("up").sql())?;
        differs("a row that did not go up");
        world.sync(&mut remote)?;
        converged(&world, "one")?;
        world.central.execute(&insert("down").sql())?;
        differs("a row that did not come down");
        world.sync(&mut remote)?;
        converged(&world, "one")
    }

    #[test]
    fn a_row_that_refers_to_nothing_is_caught() -> Result<()> {
        let world = World::new(Kind::Sqlite, &schema(Kind::Sqlite), MODEL, &["one"])?;
        world.central.execute(&insert("a").sql())?;
        let mut remote = world.remote("one", "one")?;
        world.sync(&mut remote)?;
        // At both ends alike, so that they don't differ.
        let orphan = "PRAGMA foreign_keys = OFF; UPDATE entry SET owner = 'nobody'";
        world.central.execute(orphan)?;
        world.edit("one", orphan)?;
        let found = converged(&world, "one").expect_err("an orphan").to_string();
        assert!(found.contains("breaks foreign keys"), "{found}");
        Ok(())
    }
}
