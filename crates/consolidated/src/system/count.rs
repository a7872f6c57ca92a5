//! Counting downloads: the proof in a sealed watermark that this database handed it out ([`super::seal`]).
//!
//! A download is counted in the life of the database in which its sync was greeted ([`super::life`]), and only where the count is not below the
//! one that the remote presented. A database that was put back during the sync has counted less; one more would make it look as if it had
//! counted all.

use std::collections::HashMap;

use headwater_protocol::Value;
use headwater_protocol::message::{Hello, Watermarks};
use sha2::{Digest, Sha256};

use super::greet::Greeted;
use super::identity::random;
use super::life::{Life, life_sql};
use super::recent::{LIST_BYTES, NAME_BYTES, Recent};
use super::seal::seal;
use super::sql::{bytes, dialect_sql, integer};
use crate::{Connection, Dialect, Error, Mode, Plan, sqlite};

/// Whose watermarks are sealed, and what is noted of the sync that they end.
#[derive(Clone, Copy, Debug)]
pub struct SealRequest<'a> {
    /// The model.
    pub plan: &'a Plan,
    /// Who syncs.
    pub user: &'a str,
    /// The remote, as it said who it is.
    pub hello: &'a Hello,
    /// What it was answered first.
    pub greeted: &'a Greeted,
}

/// A download that is to be counted.
#[derive(Clone, Debug)]
pub struct Tally {
    remote_id: [u8; 16],
    secret_hash: Vec<u8>,
    user: String,
    model: String,
    model_version: u32,
    download_applied: [u8; 16],
    /// The remote may not be registered yet.
    is_new: bool,
    /// In which it was greeted.
    life: Life,
    /// The database has counted at least as many downloads of it.
    presented: u64,
    /// What its snapshot has seen.
    seen: Vec<u8>,
}

impl Tally {
    /// Of this remote, as it said who it is and as it was greeted. `seen`: what [`crate::download::write`] gave.
    pub fn of(plan: &Plan, user: &str, hello: &Hello, greeted: &Greeted, seen: &Watermarks) -> Tally {
        Tally {
            remote_id: hello.remote_id,
            secret_hash: Sha256::digest(hello.secret).to_vec(),
            user: user.to_owned(),
            model: plan.model.name.clone(),
            model_version: plan.model.version,
            download_applied: hello.download_applied,
            is_new: greeted.is_new,
            life: greeted.life.clone(),
            presented: greeted.presented,
            seen: seen.marks.first().cloned().unwrap_or_default(),
        }
    }
}

/// What became of a download that was to be counted.
#[derive(Clone, Debug)]
pub enum Count {
    /// It is counted.
    Counted(Counted),
    /// Another sync is at the remote, or it has another secret.
    Busy,
    /// The database is not the one any more that greeted the remote ([`Error::OtherLife`]).
    OtherLife,
}

impl Count {
    /// What seals the watermarks; an error where it is not counted.
    pub fn counted(self) -> Result<Counted, Error> {
        match self {
            Count::Counted(counted) => Ok(counted),
            Count::Busy => Err(Error::RemoteBusy),
            Count::OtherLife => Err(Error::OtherLife),
        }
    }
}

/// A download that has been counted, with what seals its watermarks.
#[derive(Clone)]
pub struct Counted {
    count: u64,
    name: [u8; NAME_BYTES],
    key: Vec<u8>,
}

/// Never shows the key.
impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Counted {
    /// Seals what a remote will have seen of the download.
    pub fn seal(&self, incarnation: &[u8; 16], issued_to: &[u8; 16], seen: Watermarks) -> Watermarks {
        let seal = |mark: &Vec<u8>| seal(&self.key, incarnation, issued_to, (self.count, &self.name), mark);
        Watermarks { marks: seen.marks.iter().map(seal).collect(), ..seen }
    }
}

/// Counts downloads that have been read, durably, in one transaction; in their order. To be called outside of a transaction, after the
/// downloads' snapshots were taken and before their watermarks are handed out. A remote that is new is registered by it.
pub fn count_downloads(connection: &mut dyn Connection, tallies: &[Tally]) -> Result<Vec<Count>, Error> {
    match connection.dialect() {
        Dialect::Postgres => count_together(connection, tallies),
        Dialect::Sqlite => {
            connection.begin(Mode::Upload)?;
            let counted = count_one_by_one(connection, tallies);
            crate::finish(connection, counted)
        }
    }
}

/// [`count_downloads`] of one, and [`Counted::seal`].
pub fn seal_watermarks(
    connection: &mut dyn Connection,
    request: &SealRequest<'_>,
    seen: Watermarks,
) -> Result<Watermarks, Error> {
    let SealRequest { plan, user, hello, greeted } = *request;
    let count = count_downloads(connection, &[Tally::of(plan, user, hello, greeted, &seen)])?;
    let counted = count.into_iter().next().ok_or(Error::RemoteBusy)?.counted()?;
    Ok(counted.seal(&greeted.welcome.incarnation, &hello.remote_id, seen))
}

/// All in one statement, which waits for nobody. Parameters: arrays of the tallies' fields. Gives a row for each remote that is counted
/// (`is_counted`) and for each whose row nobody held, as it was before; at least one, with the life and the key.
fn count_sql() -> String {
    let life = life_sql(Dialect::Postgres);
    format!(
        "WITH u AS (SELECT * FROM unnest(?1::bytea[], ?2::bytea[], ?3::text[], ?4::text[], ?5::int8[], ?6::bytea[], ?7::bool[], ?8::text[], ?9::int8[], ?10::bytea[]) \
         AS u(remote_id, secret_hash, user_name, model, model_version, download_applied, is_new, life, presented, name)), \
     here AS MATERIALIZED (SELECT {life} AS life, i.token_key FROM {{hw}}identity i), \
     free AS (SELECT h.remote_id, h.syncs, h.secret_hash FROM {{hw}}remote h WHERE h.remote_id = ANY(?1::bytea[]) \
         FOR NO KEY UPDATE SKIP LOCKED), \
     counted AS (UPDATE {{hw}}remote r SET syncs = r.syncs + 1, \
         recent_counts = substring(int8send(r.syncs + 1) || u.name || coalesce(r.recent_counts, '') FROM 1 FOR {LIST_BYTES}), user_name = u.user_name, model = u.model, model_version = u.model_version, \
         download_applied = u.download_applied, last_sync_at = {{now}} FROM u JOIN free ON free.remote_id = u.remote_id JOIN here ON here.life = u.life \
         WHERE r.remote_id = u.remote_id AND r.secret_hash = u.secret_hash AND r.syncs >= u.presented \
         RETURNING r.remote_id, r.syncs, r.secret_hash), \
     made AS (INSERT INTO {{hw}}remote (remote_id, secret_hash, user_name, model, model_version, download_applied, syncs, recent_counts, \
         last_sync_at) \
         SELECT remote_id, secret_hash, user_name, model, model_version, download_applied, 1, int8send(1) || name, {{now}} FROM u JOIN here ON here.life = u.life \
         WHERE is_new ON CONFLICT (remote_id) DO NOTHING RETURNING remote_id, syncs, secret_hash) \
     SELECT here.life, here.token_key, c.is_counted, c.remote_id, c.secret_hash, c.syncs FROM here LEFT JOIN ( \
         SELECT true AS is_counted, counted.* FROM counted UNION ALL SELECT true, made.* FROM made UNION ALL SELECT false, free.* FROM free \
     ) AS c ON true"
    )
}

/// The parameters of [`count_sql`], as the text of arrays.
fn arrays(tallies: &[Tally], names: &[[u8; NAME_BYTES]]) -> [Value; 10] {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let array = |element: &dyn Fn(&Tally) -> String| {
        let elements = tallies.iter().map(|tally| quoted(&element(tally))).collect::<Vec<_>>();
        Value::text(format!("{{{}}}", elements.join(",")))
    };
    let hexed = |bytes: &[u8]| format!("\\x{}", hex::encode(bytes));
    [
        array(&|tally| hexed(&tally.remote_id)),
        array(&|tally| hexed(&tally.secret_hash)),
        array(&|tally| tally.user.clone()),
        array(&|tally| tally.model.clone()),
        array(&|tally| tally.model_version.to_string()),
        array(&|tally| hexed(&tally.download_applied)),
        array(&|tally| tally.is_new.to_string()),
        array(&|tally| tally.life.as_text().to_owned()),
        array(&|tally| tally.presented.to_string()),
        Value::text(format!("{{{}}}", names.iter().map(|name| quoted(&hexed(name))).collect::<Vec<_>>().join(","))),
    ]
}

fn count_together(connection: &mut dyn Connection, tallies: &[Tally]) -> Result<Vec<Count>, Error> {
    let names = tallies.iter().map(|_| random()).collect::<Result<Vec<[u8; NAME_BYTES]>, _>>()?;
    let rows = connection.query(&dialect_sql(Dialect::Postgres, &count_sql()), &arrays(tallies, &names))?;
    let Some([life, key, ..]) = rows.first().map(Vec::as_slice) else {
        return Ok(vec![Count::OtherLife; tallies.len()]);
    };
    let (life, key) = (Life::read(connection, Some(life))?, bytes(Some(key), "token_key")?);
    let (mut counted, mut free) = (HashMap::new(), HashMap::new());
    for row in rows.iter().filter(|row| row.get(2).is_some_and(|is_counted| !is_counted.is_null())) {
        let whose = (bytes(row.get(3), "remote_id")?, bytes(row.get(4), "secret_hash")?);
        let of = if integer(row.get(2), "is_counted")? == 1 { &mut counted } else { &mut free };
        of.insert(whose, integer(row.get(5), "syncs")? as u64);
    }
    let count = |(tally, name): (&Tally, &[u8; NAME_BYTES])| {
        let whose = (tally.remote_id.to_vec(), tally.secret_hash.clone());
        match (counted.get(&whose), free.get(&whose)) {
            _ if tally.life != life => Count::OtherLife,
            (Some(count), _) => Count::Counted(Counted { count: *count, name: *name, key: key.clone() }),
            (None, Some(before)) if *before < tally.presented => Count::OtherLife,
            (None, _) => Count::Busy,
        }
    };
    Ok(tallies.iter().zip(&names).map(count).collect())
}

/// The same where there is one writer anyway.
fn count_one_by_one(connection: &mut dyn Connection, tallies: &[Tally]) -> Result<Vec<Count>, Error> {
    let life = Life::of(connection)?;
    let version = sqlite::read_watermark(&connection.watermark()?);
    let is_same = |tally: &Tally| tally.life == life && sqlite::read_watermark(&tally.seen) <= version;
    let count = |tally| if is_same(tally) { count_one(connection, tally) } else { Ok(Count::OtherLife) };
    tallies.iter().map(count).collect()
}

fn count_one(connection: &mut dyn Connection, tally: &Tally) -> Result<Count, Error> {
    let dialect = connection.dialect();
    let whose = [Value::Bytes(tally.remote_id.to_vec()), Value::Bytes(tally.secret_hash.clone())];
    let sql = "SELECT syncs, recent_counts FROM {hw}remote WHERE remote_id = ?1 AND secret_hash = ?2";
    let rows = connection.query(&dialect_sql(dialect, sql), &whose)?;
    let row = rows.first();
    let recent = match row {
        Some(row) => Recent::read(integer(row.first(), "syncs")?, row.get(1))?,
        None if tally.is_new => Recent::default(),
        None => return Ok(Count::Busy),
    };
    let name = random()?;
    let (count, list) = recent.followed_by(name);
    if count <= tally.presented {
        return Ok(Count::OtherLife);
    }
    let sql = match row {
        Some(_) => {
            "UPDATE {hw}remote SET syncs = ?3, recent_counts = ?4, user_name = ?5, model = ?6, model_version = ?7, download_applied = ?8, \
             last_sync_at = {now} WHERE remote_id = ?1 AND secret_hash = ?2"
        }
        None => {
            "INSERT INTO {hw}remote (remote_id, secret_hash, syncs, recent_counts, user_name, model, model_version, download_applied, \
             last_sync_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, {now}) ON CONFLICT (remote_id) DO NOTHING"
        }
    };
    let [remote_id, secret_hash] = whose;
    let values = [
        remote_id,
        secret_hash,
        Value::Int(count as i64),
        Value::Bytes(list),
        Value::text(&tally.user),
        Value::text(&tally.model),
        Value::Int(i64::from(tally.model_version)),
        Value::Bytes(tally.download_applied.to_vec()),
    ];
    if connection.execute(&dialect_sql(dialect, sql), &values)? == 0 {
        return Ok(Count::Busy);
    }
    let rows = connection.query(&dialect_sql(dialect, "SELECT token_key FROM {hw}identity"), &[])?;
    let key = bytes(rows.first().and_then(|row| row.first()), "token_key")?;
    Ok(Count::Counted(Counted { count, name, key }))
}
