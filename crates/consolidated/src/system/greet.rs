//! The beginning of a sync: who is there, and what the database knows of it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use headwater_model::OnError;
use headwater_protocol::message::{AppliedUpload, FrozenFate, Hello, UploadEnd, Watermarks, Welcome};
use headwater_protocol::upload::last_in_common;
use headwater_protocol::{Row, Value};
use sha2::{Digest, Sha256};

use super::history::{Cuts, History};
use super::identity::{self, Identity, own_identity, renew};
use super::life::Life;
use super::recent::{Presented, Recent};
use super::seal::{self, Opened};
use super::sql::{bytes, dialect_sql, integer, text};
use crate::backend::Query;
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
    /// By watermark: the columns that the remote has nothing of: for [`crate::download::write`] too.
    pub extended: Vec<Vec<u32>>,
    /// Another file has used this one's numbers: the database was put back from a backup, and a copy of the file was there first. The
    /// welcome names the last upload that is this file's, and says `restart`; nothing else is to be done for it under this remote ID.
    pub is_copy: bool,
    /// A download of this remote, under this user and model, was counted within the last minute.
    pub counted_lately: bool,
    /// It is not registered yet.
    pub is_new: bool,
    /// In which life of the database it was greeted: its upload, download and count are to run in the same.
    pub life: Life,
    /// The greatest count that its watermarks of this incarnation name: the database has counted at least as many of its downloads.
    pub presented: u64,
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
    recent: Recent,
    cuts: Cuts,
}

/// Greets a remote: registers an unknown remote ID under its secret's hash, refuses one whose secret is another, and says whether
/// the remote's watermarks belong to this incarnation.
///
/// A new incarnation begins here where this database turns out not to be the one that handed them out: its own identity is another
/// database's, or it has counted fewer downloads than a sealed watermark names. What a remote merely says begins none: an upload
/// number ahead of the database's makes that remote alone start afresh.
///
/// What the remote says of itself is noted by [`super::seal_watermarks`], which also finds out whether a sync of this remote is applying its
/// upload. [`Error::RemoteBusy`]: another sync registers it.
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

/// [`greet`] for a remote that only downloads. One that is not known is not registered yet: [`super::count_downloads`] does that
/// ([`Greeted::is_new`]).
pub fn greet_before_count(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
) -> Result<Greeting, Error> {
    match look(connection, plan, user, hello, IfNew::Later)? {
        Some(greeting) => Ok(greeting),
        None => greet(connection, plan, user, hello),
    }
}

/// When a remote that is not known is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfNew {
    Now,
    Later,
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
    if let Some(greeting) = look(connection, plan, user, hello, IfNew::Now)? {
        return Ok(greeting);
    }
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

/// The greeting of a remote for which nothing is to be written: one statement, which locks nothing, so that it does not wake the disk. Whether
/// another sync is at this remote is found out where something is written for it. `None`: it takes a transaction to tell.
fn look(
    connection: &mut dyn Connection,
    plan: &Plan,
    user: &str,
    hello: &Hello,
    registering: IfNew,
) -> Result<Option<Greeting>, Error> {
    let dialect = connection.dialect();
    let lately = match dialect {
        Dialect::Sqlite => "strftime('%Y-%m-%d %H:%M:%f', 'now', '-60 seconds') || 'Z'",
        Dialect::Postgres => "clock_timestamp() - interval '60 seconds'",
    };
    let columns = KNOWN_COLUMNS.replace(", ", ", r.");
    let sql = format!(
        "{}, EXISTS (SELECT 1 FROM {{hw}}note n WHERE n.note = ?2), r.last_sync_at > {lately}, r.{columns} \
         FROM {{hw}}identity i LEFT JOIN {{hw}}remote r ON r.remote_id = ?1",
        identity::own_sql(dialect)
    );
    let parameters = [Value::Bytes(hello.remote_id.to_vec()), Value::Bytes(hello.note.to_vec())];
    let sql = dialect_sql(dialect, &sql);
    let rows = match dialect {
        Dialect::Postgres => connection.query(&sql, &parameters)?,
        // Where a transaction begins it is seen whether the file is still the one that is open.
        Dialect::Sqlite => {
            connection.begin(Mode::Download)?;
            let rows = connection.query(&sql, &parameters);
            connection.rollback()?;
            rows?
        }
    };
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    let Some((of_identity, [is_noted, lately, of_remote @ ..])) = row.split_at_checked(identity::OWN_COLUMNS) else {
        return Ok(None);
    };
    let identity = identity::read_own(of_identity)?;
    let life = Life::read(connection, of_identity.get(identity::LIFE_PLACE))?;
    let is_unknown = of_remote.first().is_none_or(Value::is_null);
    let Some(identity) = identity.filter(|_| !is_unknown || registering == IfNew::Later) else { return Ok(None) };
    let known = if is_unknown { Known::default() } else { Known::read(of_remote)? };
    if !is_unknown && known.secret_hash != Sha256::digest(hello.secret).to_vec() {
        return Ok(Some(Greeting::WrongSecret));
    }
    let Opened { watermarks, extended, counts } = seal::open(&identity, &hello.watermarks);
    if hello.incarnation == identity.incarnation && has_lost_syncs(connection, hello, &known, &counts)? {
        return Ok(None);
    }
    let is_known = is_of_this(&identity, hello, || Ok(integer(Some(is_noted), "note")? == 1))?;
    let opened = Opened { watermarks, extended, counts };
    let greeted = welcome(plan, hello, &identity, &known, opened, is_known)?;
    if known.is_to_give_up(hello, &greeted.welcome) {
        return Ok(None);
    }
    tell_of_change(&known, plan, user, hello);
    let counted_lately =
        known.is_same(plan, user) && integer(Some(lately), "last_sync_at").is_ok_and(|is_so| is_so == 1);
    Ok(Some(Greeting::Welcome(Greeted { counted_lately, is_new: is_unknown, life, ..greeted })))
}

/// What a remote that is known is told.
fn welcome(
    plan: &Plan,
    hello: &Hello,
    identity: &Identity,
    known: &Known,
    Opened { watermarks, extended, counts }: Opened,
    is_known: bool,
) -> Result<Greeted, Error> {
    let common = last_in_common(&hello.uploads, &known.history.uploads(known.upload_sequence)?);
    let restart = !is_known || hello.upload_sequence > known.upload_sequence || common.is_some();
    let Identity { incarnation, note, .. } = *identity;
    let whole = plan.model.on_error == OnError::Reject;
    let upload_sequence = common.unwrap_or(known.upload_sequence);
    let frozen = if common.is_some() { FrozenFate::Unknown } else { known.fate(hello)? };
    let welcome = Welcome { incarnation, note, restart, whole, upload_sequence, frozen };
    // Where a new incarnation has just begun they are those of another life.
    let own = counts.iter().filter(|(issued_to, _)| *issued_to == hello.remote_id && hello.incarnation == incarnation);
    let presented = own.map(|(_, presented)| presented.count).max().unwrap_or_default();
    let (is_copy, life) = (common.is_some(), Life::default());
    Ok(Greeted { welcome, watermarks, extended, is_copy, counted_lately: false, is_new: false, life, presented })
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
    let gives_up = hello.frozen.is_some_and(|frozen| frozen.is_given_up);
    let busy = if gives_up { Busy::Ask } else { busy };
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
    let Opened { watermarks, extended, counts } = seal::open(&identity, &hello.watermarks);
    if hello.incarnation == identity.incarnation && has_lost_syncs(connection, hello, &known, &counts)? {
        let why = "a remote has watermarks that this database does not know to have handed out";
        let database_id = identity.database_id.clone();
        identity = renew(connection, &identity, &database_id, why)?;
        *has_written = true;
    }
    let is_known = is_of_this(&identity, hello, || {
        let sql = dialect_sql(connection.dialect(), "SELECT count(*) FROM {hw}note WHERE note = ?1");
        let rows = connection.query(&sql, &[Value::Bytes(hello.note.to_vec())])?;
        Ok(integer(rows.first().and_then(|row| row.first()), "count")? > 0)
    })?;
    let mut greeted = welcome(plan, hello, &identity, &known, Opened { watermarks, extended, counts }, is_known)?;
    if known.is_to_give_up(hello, &greeted.welcome) {
        greeted.welcome.upload_sequence = give_up(connection, hello, &known)?;
        greeted.welcome.frozen = FrozenFate::GivenUp;
        *has_written = true;
    }
    Ok(Greeting::Welcome(Greeted { life: Life::of(connection)?, ..greeted }))
}

/// In the place of a digest, where a number was given up.
const GIVEN_UP: [u8; 32] = [0; 32];

/// Uses up the number of the upload that the remote gives up: a request with it that comes late is another file's from now on. Gives the number.
fn give_up(connection: &mut dyn Connection, hello: &Hello, known: &Known) -> Result<u64, Error> {
    let sequence = hello.frozen.map_or(known.upload_sequence, |frozen| frozen.sequence);
    let end = UploadEnd { sequence, changes: 0, digest: GIVEN_UP };
    let sql = "UPDATE {hw}remote SET upload_sequence = ?2, upload_digest = ?3 WHERE remote_id = ?1";
    let values = [
        Value::Bytes(hello.remote_id.to_vec()),
        Value::Int(sequence as i64),
        Value::Bytes(known.history.followed_by(known.upload_sequence, &end)),
    ];
    connection.execute(&dialect_sql(connection.dialect(), sql), &values)?;
    tracing::info!(remote = %hex::encode(hello.remote_id), sequence, "a remote has given an upload up");
    Ok(sequence)
}

fn tell_of_change(known: &Known, plan: &Plan, user: &str, hello: &Hello) {
    if !known.is_same(plan, user) && !known.user.is_empty() {
        tracing::info!(remote = %hex::encode(hello.remote_id), was = known.user, user, "a remote has another user or model");
    }
}

/// Whether a remote presents proof of downloads that this database has not counted.
fn has_lost_syncs(
    connection: &mut dyn Connection,
    hello: &Hello,
    known: &Known,
    counts: &BTreeSet<([u8; 16], Presented)>,
) -> Result<bool, Error> {
    let mut others: HashMap<[u8; 16], Recent> = HashMap::new();
    for (issued_to, presented) in counts {
        let is_counted = if *issued_to == hello.remote_id {
            known.recent.has(*presented)
        } else {
            // The file took a new remote ID and kept its watermarks.
            let recent = match others.entry(*issued_to) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(recent(connection, issued_to)?),
            };
            recent.has(*presented)
        };
        if !is_counted {
            return Ok(true);
        }
    }
    Ok(false)
}

fn recent(connection: &mut dyn Connection, remote_id: &[u8; 16]) -> Result<Recent, Error> {
    let query = read_asked(connection.dialect(), "syncs, recent_counts", remote_id, "");
    let rows = ask(connection, &query)?;
    match rows.first() {
        Some(row) => Recent::read(integer(row.first(), "syncs")?, row.get(1)),
        None => Ok(Recent::default()),
    }
}

/// Whether the remote's watermarks come from this incarnation, and from a state of it that this database has been in.
fn is_of_this(
    identity: &Identity,
    hello: &Hello,
    is_noted: impl FnOnce() -> Result<bool, Error>,
) -> Result<bool, Error> {
    if hello.incarnation == [0; 16] {
        return Ok(true);
    }
    if hello.incarnation != identity.incarnation {
        return Ok(false);
    }
    if hello.note == [0; 16] || hello.note == identity.note {
        return Ok(true);
    }
    is_noted()
}

fn known(connection: &mut dyn Connection, remote_id: &[u8; 16], busy: Busy) -> Result<Option<Known>, Error> {
    let dialect = connection.dialect();
    let rows = match busy {
        Busy::Ask => ask(connection, &lock_asked(dialect, KNOWN_COLUMNS, remote_id))?,
        Busy::Later => ask(connection, &read_asked(dialect, KNOWN_COLUMNS, remote_id, ""))?,
    };
    rows.first().map(|row| Known::read(row)).transpose()
}

/// What [`Known::read`] reads.
const KNOWN_COLUMNS: &str = "secret_hash, user_name, model, model_version, upload_sequence, upload_digest, syncs, \
                             recent_counts, upload_cuts";

impl Known {
    fn read(row: &[Value]) -> Result<Known, Error> {
        Ok(Known {
            secret_hash: bytes(row.first(), "secret_hash")?,
            user: text(row.get(1), "user_name")?,
            model: text(row.get(2), "model")?,
            model_version: integer(row.get(3), "model_version")?,
            upload_sequence: integer(row.get(4), "upload_sequence")? as u64,
            history: History::read(row.get(5))?,
            recent: Recent::read(integer(row.get(6), "syncs")?, row.get(7))?,
            cuts: Cuts::read(row.get(8))?,
        })
    }

    /// What is known of the upload that is frozen at the remote.
    fn fate(&self, hello: &Hello) -> Result<FrozenFate, Error> {
        let Some(frozen) = hello.frozen else { return Ok(FrozenFate::Unknown) };
        if let Some(cut) = self.cuts.of(frozen.sequence) {
            return Ok(if cut == frozen.cut { FrozenFate::Applied } else { FrozenFate::Another });
        }
        let given_up = AppliedUpload::new(frozen.sequence, &GIVEN_UP);
        let is_given_up = self.history.uploads(self.upload_sequence)?.contains(&given_up);
        Ok(if is_given_up { FrozenFate::GivenUp } else { FrozenFate::Unknown })
    }

    /// Whether the remote gives an upload up that is the next one, and not applied.
    fn is_to_give_up(&self, hello: &Hello, welcome: &Welcome) -> bool {
        let is_next = |sequence| self.upload_sequence == hello.upload_sequence && sequence > self.upload_sequence;
        !welcome.restart && hello.frozen.is_some_and(|frozen| frozen.is_given_up && is_next(frozen.sequence))
    }

    fn is_same(&self, plan: &Plan, user: &str) -> bool {
        self.user == user && self.model == plan.model.name && self.model_version == i64::from(plan.model.version)
    }
}

/// The query that reads columns of a remote's row and holds it until the transaction ends, without waiting for another that holds it.
pub(crate) fn lock_asked(dialect: Dialect, columns: &str, remote_id: &[u8; 16]) -> Query {
    let lock = match dialect {
        Dialect::Sqlite => "",
        Dialect::Postgres => " FOR UPDATE NOWAIT",
    };
    read_asked(dialect, columns, remote_id, lock)
}

fn read_asked(dialect: Dialect, columns: &str, remote_id: &[u8; 16], lock: &str) -> Query {
    let sql = dialect_sql(dialect, &format!("SELECT {columns} FROM {{hw}}remote WHERE remote_id = ?1{lock}"));
    Query { sql, parameters: vec![Value::Bytes(remote_id.to_vec())] }
}

fn ask(connection: &mut dyn Connection, query: &Query) -> Result<Vec<Row>, Error> {
    connection.query(&query.sql, &query.parameters)
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
