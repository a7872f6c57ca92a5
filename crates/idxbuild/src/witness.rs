//! What SQLite itself reads of a few rows. The sums of keys are of rows as they are read here, so they would not show that these are read
//! otherwise than SQLite does; this does, of what differs from row to row: how many of the table's columns it has stored.

use std::collections::BTreeMap;

use rusqlite::{Connection, ErrorCode};

use crate::catalog::{as_stored, own_value, quoted};
use crate::doubles;
use crate::error::{Halt, code, corrupt, sqlite, words};
use crate::job::{IndexJob, TableJob};
use crate::key::Source;
use crate::record::{Fields, Value};
use crate::sum::KeyHash;

/// The first row of each number of stored columns.
#[derive(Debug, Default)]
pub(crate) struct Witnesses(BTreeMap<usize, Witness>);

/// A row as it was read here.
#[derive(Debug)]
struct Witness {
    rowid: i64,
    /// Of each column of each index.
    values: Vec<KeyHash>,
}

impl Witnesses {
    /// Takes a row whose keys have been made, if it is the first of its kind.
    #[inline]
    pub(crate) fn see(&mut self, indexes: &[IndexJob], fields: &Fields, record: &[u8], rowid: i64) {
        self.0.entry(fields.count()).or_insert_with(|| Witness::of(indexes, fields, record, rowid));
    }

    /// Takes those of another part of the table.
    pub(crate) fn join(&mut self, others: Witnesses) {
        for (count, other) in others.0 {
            self.0.entry(count).or_insert(other);
        }
    }

    /// Has SQLite read the same rows. An index of whose columns it has other values is left to it.
    pub(crate) fn check(&self, connection: &Connection, table: &TableJob) -> Result<(), Halt> {
        let Some(by_rowid) = doubles::rowid(connection, &table.name)? else { return Ok(()) };
        let mut place = 0;
        for index in &table.indexes {
            let theirs = self.theirs(connection, table, index, by_rowid)?;
            for (witness, theirs) in self.0.values().zip(theirs) {
                let ours = witness.values.get(place..).unwrap_or_default();
                let differs =
                    index.columns.iter().zip(ours.iter().zip(&theirs)).find(|(_, (ours, theirs))| ours != theirs);
                if let Some((column, _)) = differs {
                    let why =
                        format!("SQLite reads {} of row {} otherwise: please report this", column.name, witness.rowid);
                    return Err(Halt::Doubt { index: index.name.clone(), why });
                }
            }
            place += index.columns.len();
        }
        Ok(())
    }

    /// What SQLite has of the columns of an index, row by row.
    fn theirs(
        &self,
        connection: &Connection,
        table: &TableJob,
        index: &IndexJob,
        by_rowid: &str,
    ) -> Result<Vec<Vec<KeyHash>>, Halt> {
        let doubt = |why: String| Halt::Doubt { index: index.name.clone(), why };
        let failed = |error: rusqlite::Error| match code(&error) {
            Some(ErrorCode::Unknown) => doubt(format!("its columns can't be read alone: {}", words(&error))),
            _ => sqlite("reading a row")(error).into(),
        };
        let columns: Vec<String> = index
            .columns
            .iter()
            .map(|column| match column.source {
                Source::Rowid => as_stored(by_rowid),
                Source::Stored { .. } => as_stored(&quoted(&column.name)),
            })
            .collect();
        let (columns, name) = (columns.join(", "), quoted(&table.name));
        let select = format!("SELECT {columns} FROM main.{name} NOT INDEXED WHERE {by_rowid} = ?1");
        let mut select = connection.prepare(&select).map_err(failed)?;
        let mut theirs = Vec::new();
        for witness in self.0.values() {
            let mut rows = select.query([witness.rowid]).map_err(failed)?;
            let Some(row) = rows.next().map_err(failed)? else {
                return Err(corrupt(table.root, format!("row {} is not where it belongs", witness.rowid)).into());
            };
            let mut values = Vec::new();
            for (place, column) in index.columns.iter().enumerate() {
                let value = own_value(row, place * 3).map_err(failed)?;
                values.push(hash(column.settled(value.lend(), index.encoding).map_err(|why| doubt(why.to_owned()))?));
            }
            theirs.push(values);
        }
        Ok(theirs)
    }
}

impl Witness {
    fn of(indexes: &[IndexJob], fields: &Fields, record: &[u8], rowid: i64) -> Witness {
        let mut values = Vec::new();
        for index in indexes {
            for column in &index.columns {
                // What only SQLite can judge has stopped the scan.
                let value = column.value(fields, record, rowid, index.encoding).unwrap_or(Value::Null);
                values.push(hash(value));
            }
        }
        Witness { rowid, values }
    }
}

fn hash(value: Value<'_>) -> KeyHash {
    let mut hash = KeyHash::new();
    hash.value(value);
    hash
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::Witnesses;
    use crate::catalog;
    use crate::collation::Collation;
    use crate::error::Halt;
    use crate::header::Encoding;
    use crate::job::IndexJob;
    use crate::key::{Affinity, KeyColumn, OwnValue, Source};
    use crate::record::{Fields, Writer};

    /// An old row of `t`, read with this in the place of the column that it lacks.
    fn checked(missing: OwnValue) -> Result<(), Halt> {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (7); ALTER TABLE t ADD COLUMN b TEXT DEFAULT 1.10")
            .expect("an old row");
        let column = |name: &str, place, missing, affinity| KeyColumn {
            name: name.to_owned(),
            source: Source::Stored { place, missing },
            affinity,
            collation: Collation::Binary,
            descending: false,
        };
        let columns = vec![column("a", 0, None, Affinity::Blob), column("b", 1, Some(missing), Affinity::Text)];
        let job = IndexJob { name: "i".to_owned(), root: 0, is_unique: false, columns, encoding: Encoding::Utf8 };
        let (mut writer, mut record, mut fields) = (Writer::default(), Vec::new(), Fields::default());
        writer.integer(7);
        writer.finish(&mut record);
        fields.read(&record, 2).expect("a record");
        let mut table = catalog::table(&connection, "t").expect("a table");
        table.indexes.push(job);
        let mut witnesses = Witnesses::default();
        witnesses.see(&table.indexes, &fields, &record, 1);
        witnesses.check(&connection, &table)
    }

    #[test]
    fn an_old_row_that_sqlite_reads_otherwise_is_a_doubt() {
        assert!(checked(OwnValue::Text(b"1.10".to_vec())).is_ok());
        for wrong in [OwnValue::Text(b"1.1".to_vec()), OwnValue::Text(Vec::new()), OwnValue::Null] {
            match checked(wrong) {
                Err(Halt::Doubt { index, why }) => {
                    assert_eq!(index, "i");
                    assert!(why.contains("SQLite reads b of row 1 otherwise"), "{why}");
                }
                other => panic!("no doubt: {other:?}"),
            }
        }
    }
}
