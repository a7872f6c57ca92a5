//! The beginning of a sync: who is there, and what the database knows of it.

use headwater_protocol::message::{Hello, Welcome};
use headwater_protocol::{Row, Value};
use sha2::{Digest, Sha256};

use super::identity::{Identity, identity};
use super::sql::{bytes, dialect_sql, integer, text};
use crate::{Connection, Dialect, Error, Mode, Plan};

/// What a remote is answered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It is known now, and this is what the database knows of it.
    Welcome(Welcome),
    /// The remote ID belongs to another secret.
    WrongSecret,
}

/// What the table of remotes says of one.
struct Known {
    secret_hash: Vec<u8>,
    user: String,
    model: String,
    model_version: i64,
    upload_sequence: u64,
}

/// Greets a remote: registers an unknown remote ID under its secret's hash, refuses one whose secret is another, and says whether
/// the remote's watermarks belong to this incarnation.
///
/// What it says of itself is noted. [`Error::RemoteBusy`]: a sync of this remote is applying its upload.
pub fn greet(connection: &mut dyn Connection, plan: &Plan, user: &str, hello: &Hello) -> Result<Greeting, Error> {
    greet_and(connection, plan, user, hello, Note::Now)
}

/// [`greet`] for a remote whose upload is applied next: [`crate::upload::apply`] notes what it says of itself, and finds out whether
/// another sync is at it, so that a known remote costs no transaction that waits for the disk.
pub fn greet_before_upload(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
) -> Result<Greeting, Error> {
    greet_and(connection, plan, user, hello, Note::WithUpload)
}

/// When what a known remote says of itself is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    Now,
    WithUpload,
}

fn greet_and(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    note: Note,
) -> Result<Greeting, Error> {
    connection.begin(Mode::Upload)?;
    let greeted = greet_inside(connection, plan, user, hello, note);
    crate::finish(connection, greeted)
}

fn greet_inside(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    note: Note,
) -> Result<Greeting, Error> {
    let identity = identity(connection)?;
    let secret_hash = Sha256::digest(hello.secret).to_vec();
    let upload_sequence = match known(connection, &hello.remote_id, note)? {
        Some(known) if known.secret_hash != secret_hash => return Ok(Greeting::WrongSecret),
        Some(known) => {
            if note == Note::Now {
                note_sync(connection, plan, user, hello)?;
            }
            if known.user != user
                || known.model != plan.model.name
                || known.model_version != i64::from(plan.model.version)
            {
                tracing::info!(remote = %hex::encode(hello.remote_id), was = known.user, user, "a remote has another user or model");
            }
            known.upload_sequence
        }
        None => register(connection, plan, user, hello, secret_hash)?,
    };
    let restart = !knows(connection, &identity, hello)?;
    let Identity { incarnation, note, .. } = identity;
    Ok(Greeting::Welcome(Welcome { incarnation, note, restart, upload_sequence }))
}

/// Whether the remote's watermarks come from this incarnation, and from a state of it that this database has been in.
fn knows(connection: &mut dyn Connection, identity: &Identity, hello: &Hello) -> Result<bool, Error> {
    if hello.incarnation == [0; 16] {
        return Ok(true);
    }
    if hello.incarnation != identity.incarnation {
        return Ok(false);
    }
    if hello.note == [0; 16] || hello.note == identity.note {
        return Ok(true);
    }
    let sql = dialect_sql(connection.dialect(), "SELECT count(*) FROM {hw}note WHERE note = ?1");
    let rows = connection.query(&sql, &[Value::Bytes(hello.note.to_vec())])?;
    Ok(integer(rows.first().and_then(|row| row.first()), "count")? > 0)
}

/// Locked where it is noted now.
fn known(connection: &mut dyn Connection, remote_id: &[u8; 16], note: Note) -> Result<Option<Known>, Error> {
    let columns = "secret_hash, user_name, model, model_version, upload_sequence";
    let rows = match note {
        Note::Now => lock_remote(connection, columns, remote_id)?,
        Note::WithUpload => read_remote(connection, columns, remote_id, "")?,
    };
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Known {
        secret_hash: bytes(row.first(), "secret_hash")?,
        user: text(row.get(1), "user_name")?,
        model: text(row.get(2), "model")?,
        model_version: integer(row.get(3), "model_version")?,
        upload_sequence: integer(row.get(4), "upload_sequence")? as u64,
    }))
}

/// Reads columns of a remote's row and holds it until the transaction ends, without waiting for another that holds it.
pub(crate) fn lock_remote(
    connection: &mut dyn Connection,
    columns: &str,
    remote_id: &[u8; 16],
) -> Result<Vec<Row>, Error> {
    let lock = match connection.dialect() {
        Dialect::Sqlite => "",
        Dialect::Postgres => " FOR UPDATE NOWAIT",
    };
    read_remote(connection, columns, remote_id, lock)
}

fn read_remote(
    connection: &mut dyn Connection,
    columns: &str,
    remote_id: &[u8; 16],
    lock: &str,
) -> Result<Vec<Row>, Error> {
    let sql =
        dialect_sql(connection.dialect(), &format!("SELECT {columns} FROM {{hw}}remote WHERE remote_id = ?1{lock}"));
    connection.query(&sql, &[Value::Bytes(remote_id.to_vec())])
}

fn note_sync(connection: &mut dyn Connection, plan: &Plan, user: &str, hello: &Hello) -> Result<(), Error> {
    let sql = "UPDATE {hw}remote SET user_name = ?2, model = ?3, model_version = ?4, download_applied = ?5, last_sync_at = {now} \
               WHERE remote_id = ?1";
    let values = [
        Value::Bytes(hello.remote_id.to_vec()),
        Value::text(user),
        Value::text(&plan.model.name),
        Value::Int(i64::from(plan.model.version)),
        Value::Bytes(hello.download_applied.to_vec()),
    ];
    connection.execute(&dialect_sql(connection.dialect(), sql), &values).map(|_| ())
}

fn register(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    secret_hash: Vec<u8>,
) -> Result<u64, Error> {
    let sql = "INSERT INTO {hw}remote (remote_id, secret_hash, user_name, model, model_version, download_applied) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (remote_id) DO NOTHING";
    let values = [
        Value::Bytes(hello.remote_id.to_vec()),
        Value::Bytes(secret_hash),
        Value::text(user),
        Value::text(&plan.model.name),
        Value::Int(i64::from(plan.model.version)),
        Value::Bytes(hello.download_applied.to_vec()),
    ];
    match connection.execute(&dialect_sql(connection.dialect(), sql), &values)? {
        0 => Err(Error::RemoteBusy),
        _ => Ok(0),
    }
}
