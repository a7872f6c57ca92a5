//! Sealed watermarks: what a remote has seen, with the proof that this database handed it out.
//!
//! A database that was restored from a backup, or promoted without its last second, knows no more than it did then; it may since have
//! advanced past the watermarks that remotes hold, and nothing in a watermark alone would tell. So the database counts the downloads
//! of each remote, durably and *after* the download's snapshot was taken, and the watermarks that are handed out name that count. A
//! remote that presents a greater count than the database has is proof that it lost something, and perhaps of what the remote has
//! seen: all transactions of a snapshot were committed before the count was, so a database that has the count has them too.
//!
//! | field | bytes |
//! |---|---|
//! | format | 1 byte, 2 |
//! | issued to | 16 bytes, the remote ID that the download was for |
//! | count | varint, the downloads of that remote so far |
//! | watermark | as the backend gives it |
//! | seal | 16 bytes of HMAC-SHA-256 over the incarnation and all of the above |
//!
//! The key lies in the database, so nobody can make up a count that ends an incarnation, nor move a watermark to another one. The
//! remote ID stands in it because a copy of a file takes a new one and keeps its watermarks, which belong to its rows.
//!
//! *Caveats.* A count says nothing of which file of two copies a sync was for. Of two copies that shared an ID when a database was
//! restored, one can catch the count up before the other comes with its own; by its uploads that one is found out ([`super::history`]).

use std::collections::HashMap;

use headwater_protocol::message::{Hello, Watermarks};
use headwater_protocol::wire::{Reader, Write};
use headwater_protocol::{Row, Value};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::identity::Identity;
use super::sql::{bytes, dialect_sql, integer};
use crate::{Connection, Dialect, Error, Mode, Plan};

const FORMAT: u8 = 2;
const SEAL_BYTES: usize = 16;
/// The key signs tokens too; what is signed there begins otherwise.
const PURPOSE: &[u8] = b"headwater watermark\0";

/// Whose watermarks are sealed, and what is noted of the sync that they end.
#[derive(Clone, Copy, Debug)]
pub struct SealRequest<'a> {
    /// The model.
    pub plan: &'a Plan,
    /// Who syncs.
    pub user: &'a str,
    /// The remote, as it said who it is.
    pub hello: &'a Hello,
    /// That WELCOME named.
    pub incarnation: [u8; 16],
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
}

impl Tally {
    /// Of this remote, as it said who it is. `is_new`: [`Greeted::is_new`](super::Greeted::is_new).
    pub fn of(plan: &Plan, user: &str, hello: &Hello, is_new: bool) -> Tally {
        Tally {
            remote_id: hello.remote_id,
            secret_hash: Sha256::digest(hello.secret).to_vec(),
            user: user.to_owned(),
            model: plan.model.name.clone(),
            model_version: plan.model.version,
            download_applied: hello.download_applied,
            is_new,
        }
    }
}

/// A download that has been counted, with what seals its watermarks.
#[derive(Clone)]
pub struct Counted {
    count: u64,
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
        let seal = |mark: &Vec<u8>| seal(&self.key, incarnation, issued_to, self.count, mark);
        Watermarks { marks: seen.marks.iter().map(seal).collect(), ..seen }
    }
}

/// Counts downloads that have been read, durably, in one transaction; in their order, and `None` for a remote that another sync is at, or that
/// has another secret. To be called outside of a transaction, after the downloads' snapshots were taken and before their watermarks are handed
/// out. A remote that is new is registered by it.
pub fn count_downloads(connection: &mut dyn Connection, tallies: &[Tally]) -> Result<Vec<Option<Counted>>, Error> {
    let rows = match connection.dialect() {
        Dialect::Postgres => connection.query(&dialect_sql(Dialect::Postgres, COUNT_SQL), &arrays(tallies))?,
        Dialect::Sqlite => {
            connection.begin(Mode::Upload)?;
            let counted = count_one_by_one(connection, tallies);
            crate::finish(connection, counted)?
        }
    };
    let mut found = HashMap::new();
    for row in &rows {
        let count = integer(row.get(1), "syncs")? as u64;
        let whose = (bytes(row.first(), "remote_id")?, bytes(row.get(3), "secret_hash")?);
        found.insert(whose, Counted { count, key: bytes(row.get(2), "token_key")? });
    }
    let whose = |tally: &Tally| (tally.remote_id.to_vec(), tally.secret_hash.clone());
    Ok(tallies.iter().map(|tally| found.get(&whose(tally)).cloned()).collect())
}

/// All in one statement, which waits for nobody. Parameters: arrays of the tallies' fields.
const COUNT_SQL: &str = "WITH u AS (SELECT * FROM unnest(?1::bytea[], ?2::bytea[], ?3::text[], ?4::text[], ?5::int8[], ?6::bytea[], ?7::bool[]) \
         AS u(remote_id, secret_hash, user_name, model, model_version, download_applied, is_new)), \
     free AS (SELECT h.remote_id FROM {hw}remote h WHERE h.remote_id = ANY(?1::bytea[]) FOR NO KEY UPDATE SKIP LOCKED), \
     counted AS (UPDATE {hw}remote r SET syncs = r.syncs + 1, user_name = u.user_name, model = u.model, model_version = u.model_version, \
         download_applied = u.download_applied, last_sync_at = {now} FROM u JOIN free ON free.remote_id = u.remote_id \
         WHERE r.remote_id = u.remote_id AND r.secret_hash = u.secret_hash RETURNING r.remote_id, r.syncs, r.secret_hash), \
     made AS (INSERT INTO {hw}remote (remote_id, secret_hash, user_name, model, model_version, download_applied, syncs, last_sync_at) \
         SELECT remote_id, secret_hash, user_name, model, model_version, download_applied, 1, {now} FROM u WHERE is_new \
         ON CONFLICT (remote_id) DO NOTHING RETURNING remote_id, syncs, secret_hash) \
     SELECT c.remote_id, c.syncs, i.token_key, c.secret_hash FROM (SELECT * FROM counted UNION ALL SELECT * FROM made) AS c, {hw}identity i";

/// The parameters of [`COUNT_SQL`], as the text of arrays.
fn arrays(tallies: &[Tally]) -> [Value; 7] {
    let array = |element: &dyn Fn(&Tally) -> String| {
        let quoted = |tally| format!("\"{}\"", element(tally).replace('\\', "\\\\").replace('"', "\\\""));
        Value::text(format!("{{{}}}", tallies.iter().map(quoted).collect::<Vec<_>>().join(",")))
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
    ]
}

/// The same rows as of [`COUNT_SQL`], where there is one writer anyway.
fn count_one_by_one(connection: &mut dyn Connection, tallies: &[Tally]) -> Result<Vec<Row>, Error> {
    let key = "(SELECT token_key FROM {hw}identity)";
    let update = format!(
        "UPDATE {{hw}}remote SET syncs = syncs + 1, user_name = ?3, model = ?4, model_version = ?5, download_applied = ?6, \
         last_sync_at = {{now}} WHERE remote_id = ?1 AND secret_hash = ?2 RETURNING remote_id, syncs, {key}, secret_hash"
    );
    let insert = format!(
        "INSERT INTO {{hw}}remote (remote_id, secret_hash, user_name, model, model_version, download_applied, syncs, last_sync_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, {{now}}) ON CONFLICT (remote_id) DO NOTHING RETURNING remote_id, syncs, {key}, secret_hash"
    );
    let [update, insert] = [update, insert].map(|sql| dialect_sql(connection.dialect(), &sql));
    let mut rows = Vec::new();
    for tally in tallies {
        let values = [
            Value::Bytes(tally.remote_id.to_vec()),
            Value::Bytes(tally.secret_hash.clone()),
            Value::text(&tally.user),
            Value::text(&tally.model),
            Value::Int(i64::from(tally.model_version)),
            Value::Bytes(tally.download_applied.to_vec()),
        ];
        let mut counted = connection.query(&update, &values)?;
        if counted.is_empty() && tally.is_new {
            counted = connection.query(&insert, &values)?;
        }
        rows.extend(counted);
    }
    Ok(rows)
}

/// [`count_downloads`] of one that is registered, and [`Counted::seal`]. [`Error::RemoteBusy`]: another sync of this remote is applying its
/// upload.
pub fn seal_watermarks(
    connection: &mut dyn Connection,
    request: &SealRequest<'_>,
    seen: Watermarks,
) -> Result<Watermarks, Error> {
    let SealRequest { plan, user, hello, incarnation } = *request;
    let counted = count_downloads(connection, &[Tally::of(plan, user, hello, false)])?;
    let counted = counted.into_iter().next().flatten().ok_or(Error::RemoteBusy)?;
    Ok(counted.seal(&incarnation, &hello.remote_id, seen))
}

fn seal(key: &[u8], incarnation: &[u8; 16], issued_to: &[u8; 16], count: u64, mark: &[u8]) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend_from_slice(issued_to);
    out.put_varint(count);
    out.extend_from_slice(mark);
    let seal = mac(key, incarnation, &out).finalize().into_bytes();
    out.extend_from_slice(&seal[..SEAL_BYTES]);
    out
}

fn mac(key: &[u8], incarnation: &[u8; 16], sealed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(PURPOSE);
    mac.update(incarnation);
    mac.update(sealed);
    mac
}

/// A remote's watermarks with their seals opened.
pub(super) struct Opened {
    /// As the backend gave them; what this incarnation has not sealed is empty, which no backend accepts.
    pub(super) watermarks: Watermarks,
    /// The greatest count in them, by the remote ID that they were issued to.
    pub(super) counts: HashMap<[u8; 16], u64>,
}

/// Opens the seals of watermarks that a remote presents.
pub(super) fn open(identity: &Identity, presented: &Watermarks) -> Opened {
    let mut counts = HashMap::new();
    let mut marks = Vec::with_capacity(presented.marks.len());
    for sealed in &presented.marks {
        let Some((issued_to, count, mark)) = open_one(identity, sealed) else {
            marks.push(Vec::new());
            continue;
        };
        let greatest = counts.entry(issued_to).or_insert(count);
        *greatest = count.max(*greatest);
        marks.push(mark);
    }
    Opened { watermarks: Watermarks { marks, entries: presented.entries.clone() }, counts }
}

fn open_one(identity: &Identity, sealed: &[u8]) -> Option<([u8; 16], u64, Vec<u8>)> {
    let (content, seal) = sealed.split_at_checked(sealed.len().checked_sub(SEAL_BYTES)?)?;
    mac(&identity.token_key, &identity.incarnation, content).verify_truncated_left(seal).ok()?;
    let mut reader = Reader::new(content);
    if reader.u8("watermark format").ok()? != FORMAT {
        return None;
    }
    let issued_to = reader.array("remote id").ok()?;
    let count = reader.varint("count").ok()?;
    Some((issued_to, count, reader.rest().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(incarnation: u8) -> Identity {
        Identity {
            incarnation: [incarnation; 16],
            note: [0; 16],
            database_id: String::new(),
            token_key: [7; 32],
            format_version: 1,
        }
    }

    fn watermarks(marks: Vec<Vec<u8>>) -> Watermarks {
        Watermarks { marks, entries: Vec::new() }
    }

    #[test]
    fn what_was_sealed_comes_back() {
        let marks = [(1, 5, &b"one"[..]), (1, 9, b"two"), (2, 300, b"")];
        let sealed = marks.map(|(to, count, mark)| seal(&[7; 32], &[3; 16], &[to; 16], count, mark));
        let opened = open(&identity(3), &watermarks(sealed.to_vec()));
        assert_eq!(opened.watermarks.marks, [b"one".to_vec(), b"two".to_vec(), Vec::new()]);
        assert_eq!(opened.counts, HashMap::from([([1; 16], 9), ([2; 16], 300)]));
    }

    #[test]
    fn nothing_else_opens() {
        let sealed = seal(&[7; 32], &[3; 16], &[1; 16], 5, b"mark");
        let is_open = |identity: &Identity, sealed: &[u8]| open_one(identity, sealed).is_some();
        assert!(is_open(&identity(3), &sealed));
        assert!(!is_open(&identity(4), &sealed), "of another incarnation");
        assert!(!is_open(&Identity { token_key: [8; 32], ..identity(3) }, &sealed), "of another key");
        for place in 0..sealed.len() {
            assert!(!is_open(&identity(3), &sealed[..place]), "cut at {place}");
            let mut forged = sealed.clone();
            forged[place] ^= 1;
            assert!(!is_open(&identity(3), &forged), "a bit flipped at {place}");
        }
    }
}
