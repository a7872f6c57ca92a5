//! The beginning of a sync: who is there, and what the database knows of it.

use std::collections::HashMap;

use headwater_model::OnError;
use headwater_protocol::message::{Hello, Watermarks, Welcome};
use headwater_protocol::upload::last_in_common;
use headwater_protocol::{Row, Value};
use sha2::{Digest, Sha256};

use super::history::History;
use super::identity::{Identity, own_identity, renew};
use super::seal::{self, Opened};
use super::sql::{bytes, dialect_sql, integer, text};
use crate::{Connection, Dialect, Error, Mode, Plan};

/// What a remote is answered first.
#[derive(Clone, Debug, PartialEq)]
pub enum Greeting {
    /// It is known now, and this is what the database knows of it.
    Welcome(Greeted),
    /// The remote ID belongs to another secret.
    WrongSecret,
}

/// A remote that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Greeted {
    /// What the database knows of it.
    pub welcome: Welcome,
    /// Its watermarks, taken out of their seals: for [`crate::download::write`].
    pub watermarks: Watermarks,
    /// Another file has used this one's numbers: the database was put back from a backup, and a copy of the file was there first. The
    /// welcome names the last upload that is this file's, and says `restart`; nothing else is to be done for it under this remote ID.
    pub is_copy: bool,
}

/// What the table of remotes says of one.
#[derive(Default)]
struct Known {
    secret_hash: Vec<u8>,
    user: String,
    model: String,
    model_version: i64,
    upload_sequence: u64,
    history: History,
    syncs: u64,
}

/// Greets a remote: registers an unknown remote ID under its secret's hash, refuses one whose secret is another, and says whether
/// the remote's watermarks belong to this incarnation.
///
/// A new incarnation begins here where this database turns out not to be the one that handed them out: its own identity is another
/// database's, or it has counted fewer downloads than a sealed watermark names. What a remote merely says begins none: an upload
/// number ahead of the database's makes that remote alone start afresh.
///
/// What the remote says of itself is noted by [`super::seal_watermarks`]. [`Error::RemoteBusy`]: a sync of this remote is applying its
/// upload.
pub fn greet(connection: &mut dyn Connection, plan: &Plan, user: &str, hello: &Hello) -> Result<Greeting, Error> {
    greet_and(connection, plan, user, hello, Busy::Ask)
}

/// [`greet`] for a remote whose upload is applied next: [`crate::upload::apply`] finds out whether another sync is at it.
pub fn greet_before_upload(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
) -> Result<Greeting, Error> {
    greet_and(connection, plan, user, hello, Busy::Later)
}

/// When it is found out whether another sync is at a remote.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    Ask,
    Later,
}

fn greet_and(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    busy: Busy,
) -> Result<Greeting, Error> {
    connection.begin(Mode::Upload)?;
    let mut has_written = false;
    let greeted = greet_inside(connection, plan, user, hello, busy, &mut has_written);
    if greeted.is_ok() && !has_written {
        // Even a lock would make a commit wait for the disk.
        connection.rollback()?;
        return greeted;
    }
    crate::finish(connection, greeted)
}

fn greet_inside(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    busy: Busy,
    has_written: &mut bool,
) -> Result<Greeting, Error> {
    let (mut identity, is_new) = own_identity(connection)?;
    *has_written = is_new;
    let secret_hash = Sha256::digest(hello.secret).to_vec();
    let known = match known(connection, &hello.remote_id, busy)? {
        Some(known) if known.secret_hash != secret_hash => return Ok(Greeting::WrongSecret),
        Some(known) => known,
        None => {
            *has_written = true;
            register(connection, plan, user, hello, secret_hash)?;
            Known::default()
        }
    };
    tell_of_change(&known, plan, user, hello);
    let Opened { watermarks, counts } = seal::open(&identity, &hello.watermarks);
    if hello.incarnation == identity.incarnation && has_lost_syncs(connection, hello, &known, &counts)? {
        let why = "a remote has watermarks that this database does not know to have handed out";
        let database_id = identity.database_id.clone();
        identity = renew(connection, &identity, &database_id, why)?;
        *has_written = true;
    }
    let common = last_in_common(&hello.uploads, &known.history.uploads(known.upload_sequence)?);
    let restart =
        !knows(connection, &identity, hello)? || hello.upload_sequence > known.upload_sequence || common.is_some();
    let Identity { incarnation, note, .. } = identity;
    let whole = plan.model.on_error == OnError::Reject;
    let upload_sequence = common.unwrap_or(known.upload_sequence);
    let welcome = Welcome { incarnation, note, restart, whole, upload_sequence };
    Ok(Greeting::Welcome(Greeted { welcome, watermarks, is_copy: common.is_some() }))
}

fn tell_of_change(known: &Known, plan: &Plan, user: &str, hello: &Hello) {
    let is_same =
        known.user == user && known.model == plan.model.name && known.model_version == i64::from(plan.model.version);
    if !is_same && !known.user.is_empty() {
        tracing::info!(remote = %hex::encode(hello.remote_id), was = known.user, user, "a remote has another user or model");
    }
}

/// Whether a remote presents proof of downloads that this database has not counted.
fn has_lost_syncs(
    connection: &mut dyn Connection,
    hello: &Hello,
    known: &Known,
    counts: &HashMap<[u8; 16], u64>,
) -> Result<bool, Error> {
    for (issued_to, count) in counts {
        let counted = if *issued_to == hello.remote_id {
            known.syncs
        } else {
            // The file took a new remote ID and kept its watermarks.
            let rows = read_remote(connection, "syncs", issued_to, "")?;
            rows.first().map_or(Ok(0), |row| integer(row.first(), "syncs"))? as u64
        };
        if *count > counted {
            return Ok(true);
        }
    }
    Ok(false)
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

fn known(connection: &mut dyn Connection, remote_id: &[u8; 16], busy: Busy) -> Result<Option<Known>, Error> {
    let columns = "secret_hash, user_name, model, model_version, upload_sequence, upload_digest, syncs";
    let rows = match busy {
        Busy::Ask => lock_remote(connection, columns, remote_id)?,
        Busy::Later => read_remote(connection, columns, remote_id, "")?,
    };
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Known {
        secret_hash: bytes(row.first(), "secret_hash")?,
        user: text(row.get(1), "user_name")?,
        model: text(row.get(2), "model")?,
        model_version: integer(row.get(3), "model_version")?,
        upload_sequence: integer(row.get(4), "upload_sequence")? as u64,
        history: History::read(row.get(5))?,
        syncs: integer(row.get(6), "syncs")? as u64,
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

fn register(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    secret_hash: Vec<u8>,
) -> Result<(), Error> {
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
        _ => Ok(()),
    }
}
