//! Which database this is.

use headwater_protocol::Value;

use super::life::life_sql;
use super::schema::FORMAT_VERSION;
use super::sql::{array, dialect_sql, integer, text};
use crate::{Connection, Dialect, Error, Mode};

/// Which database this is, and since when it has been that one.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// One unbroken life of the database.
    pub incarnation: [u8; 16],
    /// The newest note.
    pub note: [u8; 16],
    /// What the database calls itself (system identifier, database and table in PostgreSQL; a random number in SQLite).
    pub database_id: String,
    /// The key that signs tokens.
    pub token_key: [u8; 32],
    /// The version of Headwater's own tables.
    pub format_version: u32,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("incarnation", &hex::encode(self.incarnation))
            .field("note", &hex::encode(self.note))
            .field("database_id", &self.database_id)
            .field("format_version", &self.format_version)
            .finish_non_exhaustive()
    }
}

/// What [`read`] reads of the identity `i`.
const IDENTITY_SQL: &str = "SELECT i.incarnation, i.database_id, i.token_key, i.format_version, \
                            (SELECT n.note FROM {hw}note n ORDER BY n.number DESC LIMIT 1)";

/// What this database is, where the identity `i` is read.
pub(super) const POSTGRES_ID_SQL: &str = "(SELECT system_identifier::text FROM pg_control_system()) || '/' || \
                               (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '/' || i.tableoid::text";

/// The transaction that writes, as `xmin` has it.
const WRITER_SQL: &str = "(pg_current_xact_id()::text::numeric % 4294967296)::bigint";

/// What `written_by` is set to: in PostgreSQL the transaction, so that a row that was loaded from a dump is known by its `xmin`.
fn writer_sql(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "NULL",
        Dialect::Postgres => WRITER_SQL,
    }
}

/// Notes who writes the identity where nobody has noted it, an earlier version say; inside a transaction.
pub(super) fn note_writer(connection: &mut dyn Connection) -> Result<(), Error> {
    if connection.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let sql = format!("UPDATE headwater.identity SET written_by = {WRITER_SQL} WHERE written_by IS NULL");
    connection.execute(&sql, &[]).map(drop)
}

/// Reads the identity. Works inside a transaction and without one.
pub fn identity(connection: &mut dyn Connection) -> Result<Identity, Error> {
    let sql = format!("{IDENTITY_SQL} FROM {{hw}}identity i");
    let rows = connection.query(&dialect_sql(connection.dialect(), &sql), &[])?;
    read(rows.first().ok_or_else(not_installed)?)
}

fn read(row: &[Value]) -> Result<Identity, Error> {
    Ok(Identity {
        incarnation: array(row.first(), "incarnation")?,
        database_id: text(row.get(1), "database_id")?,
        token_key: array(row.get(2), "token_key")?,
        format_version: integer(row.get(3), "format_version")? as u32,
        note: array(row.get(4), "note")?,
    })
}

/// Notes the time and what is committed now, under a random ID. The server does so every few minutes.
pub fn take_note(connection: &mut dyn Connection) -> Result<[u8; 16], Error> {
    connection.begin(Mode::Download)?;
    let snapshot = connection.watermark();
    let snapshot = crate::finish(connection, snapshot)?;
    connection.begin(Mode::Upload)?;
    let mut noted = put_note(connection, snapshot);
    if connection.dialect() == Dialect::Postgres {
        noted = noted.and_then(|note| crate::postgres::refresh::fold(connection).map(|()| note));
    }
    crate::finish(connection, noted)
}

fn put_note(connection: &mut dyn Connection, snapshot: Vec<u8>) -> Result<[u8; 16], Error> {
    let note = random::<16>()?;
    let sql = dialect_sql(connection.dialect(), "INSERT INTO {hw}note (note, snapshot) VALUES (?1, ?2)");
    connection.execute(&sql, &[Value::Bytes(note.to_vec()), Value::Bytes(snapshot)])?;
    Ok(note)
}

/// Begins a new incarnation, inside a transaction: whatever remotes have seen says nothing any more, and they start afresh.
pub(crate) fn renew_incarnation(connection: &mut dyn Connection) -> Result<(), Error> {
    let identity = identity(connection)?;
    renew(connection, &identity, &identity.database_id, "change tracking was replaced").map(|_| ())
}

/// Begins a new incarnation after `was`, unless another connection has begun one since; gives the identity as it is then. Inside a
/// transaction, which holds the identity until it ends.
pub(super) fn renew(
    connection: &mut dyn Connection,
    was: &Identity,
    database_id: &str,
    why: &str,
) -> Result<Identity, Error> {
    let writer = writer_sql(connection.dialect());
    let sql = format!(
        "UPDATE {{hw}}identity SET incarnation = ?1, database_id = ?2, written_by = {writer} WHERE incarnation = ?3"
    );
    let values =
        [Value::Bytes(random::<16>()?.to_vec()), Value::text(database_id), Value::Bytes(was.incarnation.to_vec())];
    if connection.execute(&dialect_sql(connection.dialect(), &sql), &values)? == 1 {
        tracing::warn!(why, "a new incarnation begins: remotes will download everything again");
        let note = put_note(connection, Vec::new())?;
        let sql = dialect_sql(connection.dialect(), "UPDATE {hw}identity SET created_note = ?1");
        connection.execute(&sql, &[Value::Bytes(note.to_vec())])?;
    }
    identity(connection)
}

/// How many columns [`own_sql`] begins with.
pub(super) const OWN_COLUMNS: usize = 8;
/// Where among them the life is.
pub(super) const LIFE_PLACE: usize = 6;
/// Whether the row was written here, and not loaded.
const WRITTEN_HERE_SQL: &str = "coalesce(i.xmin::text::bigint = i.written_by, true)";

/// A query of the identity `i` and of what this database is, without its FROM.
pub(super) fn own_sql(dialect: Dialect) -> String {
    match dialect {
        // A copy of a file is this very file, as far as anybody can tell; what it lost the counts of syncs tell.
        Dialect::Sqlite => format!("{IDENTITY_SQL}, i.database_id, {}, true", life_sql(dialect)),
        Dialect::Postgres => format!("{IDENTITY_SQL}, {POSTGRES_ID_SQL}, {}, {WRITTEN_HERE_SQL}", life_sql(dialect)),
    }
}

/// The identity in the columns of [`own_sql`], if it is this database's own.
pub(super) fn read_own(row: &[Value]) -> Result<Option<Identity>, Error> {
    let (found, own_id) = (read(row)?, text(row.get(5), "database_id")?);
    Ok((found.database_id == own_id && is_written_here(row)?).then_some(found))
}

fn is_written_here(row: &[Value]) -> Result<bool, Error> {
    Ok(integer(row.get(7), "written_by")? == 1)
}

/// Reads the identity inside a transaction that may write. Where it is not this database's own, because a dump of another was loaded
/// here, or an older one into the tables that are there, a new incarnation begins; whether one did.
pub(super) fn own_identity(connection: &mut dyn Connection) -> Result<(Identity, bool), Error> {
    if connection.dialect() == Dialect::Sqlite {
        return Ok((identity(connection)?, false));
    }
    let sql = format!("{} FROM {{hw}}identity i", own_sql(Dialect::Postgres));
    let rows = connection.query(&dialect_sql(Dialect::Postgres, &sql), &[])?;
    let row = rows.first().ok_or_else(not_installed)?;
    let (found, own_id) = (read(row)?, text(row.get(5), "database_id")?);
    let why = match (found.database_id == own_id, is_written_here(row)?) {
        (true, true) => return Ok((found, false)),
        (true, false) => "Headwater's own tables were loaded from a dump",
        (false, _) => "the identity is that of another database",
    };
    let renewed = renew(connection, &found, &own_id, why)?;
    forget_future(connection)?;
    Ok((renewed, true))
}

/// Takes changes out of the side tables that were noted by transactions which this database has not seen yet: another database's, with
/// which a dump came. All remotes start afresh, so nobody needs them, and they would be sent again and again.
fn forget_future(connection: &mut dyn Connection) -> Result<(), Error> {
    let sql = "SELECT side_table FROM headwater.tracked WHERE to_regclass(side_table) IS NOT NULL";
    for row in connection.query(sql, &[])? {
        let side_table = text(row.first(), "side_table")?;
        let sql = format!("DELETE FROM {side_table} WHERE version >= pg_snapshot_xmax(pg_current_snapshot())");
        connection.execute(&sql, &[])?;
    }
    let sql = "DELETE FROM headwater.table_change WHERE transaction >= pg_snapshot_xmax(pg_current_snapshot())";
    connection.execute(sql, &[]).map(|_| ())
}

/// Makes the identity if there is none; inside a transaction.
pub(super) fn first_identity(connection: &mut dyn Connection) -> Result<Identity, Error> {
    let dialect = connection.dialect();
    let rows = connection.query(&dialect_sql(dialect, "SELECT count(*) FROM {hw}identity"), &[])?;
    if integer(rows.first().and_then(|row| row.first()), "count")? == 0 {
        // No snapshot is known in a transaction that writes; the note only marks the beginning.
        let note = put_note(connection, Vec::new())?;
        let sql = format!(
            "INSERT INTO {{hw}}identity (single, incarnation, created_note, database_id, token_key, format_version, written_by) \
             VALUES (1, ?1, ?2, ?3, ?4, ?5, {})",
            writer_sql(dialect)
        );
        let database_id = database_id(connection)?;
        let values = [
            Value::Bytes(random::<16>()?.to_vec()),
            Value::Bytes(note.to_vec()),
            Value::text(database_id),
            Value::Bytes(random::<32>()?.to_vec()),
            Value::Int(FORMAT_VERSION),
        ];
        connection.execute(&dialect_sql(dialect, &sql), &values)?;
    }
    identity(connection)
}

fn database_id(connection: &mut dyn Connection) -> Result<String, Error> {
    match connection.dialect() {
        Dialect::Sqlite => Ok(hex::encode(random::<16>()?)),
        Dialect::Postgres => {
            let sql = "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || \
                       (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '/' || \
                       'headwater.identity'::regclass::oid::text";
            let rows = connection.query(sql, &[])?;
            text(rows.first().and_then(|row| row.first()), "database_id")
        }
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Database {
        context: "asking the system for randomness".into(),
        detail: error.to_string(),
    })?;
    Ok(bytes)
}

fn not_installed() -> Error {
    Error::Setup {
        what: "Headwater's own tables are not in this database".into(),
        mend: "run `headwater track`".into(),
    }
}
