//! What a remote remembers: who it is, what it has seen, what is on its way. All in the file, so that it moves with the data.

use headwater_model::remote_sql;
use headwater_protocol::message::{UploadEnd, WatermarkEntry, Watermarks, Welcome};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Error, While};

/// The row of `hw_state`.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) remote_id: [u8; 16],
    pub(crate) secret: [u8; 32],
    pub(crate) server: String,
    pub(crate) user: String,
    /// The model's public form, as JSON.
    pub(crate) model: String,
    pub(crate) fingerprint: u64,
    pub(crate) incarnation: [u8; 16],
    pub(crate) note: [u8; 16],
    /// Number of the last upload whose receipt was applied.
    pub(crate) upload_sequence: u64,
    /// The last number that was used for an upload and is not acknowledged: the database has lost it, or it was thawed; 0, if there was none.
    pub(crate) upload_used: u64,
    pub(crate) download_applied: [u8; 16],
    /// The upload that is cut and has no receipt yet.
    pub(crate) frozen: Option<UploadEnd>,
    /// Whether a download is staged whole and not applied yet.
    pub(crate) is_staged: bool,
    pub(crate) last_sync: Option<String>,
    /// How large an upload is cut; less than usual where somebody on the way has not taken a larger one.
    pub(crate) cut_bytes_max: u64,
    /// Whether tables that were there before became the remote's: what comes down first may be what they have.
    pub(crate) is_adopted: bool,
    /// Why the last upload was refused whole.
    pub(crate) upload_refused: Option<String>,
}

impl State {
    pub(crate) fn read(connection: &Connection) -> Result<State, Error> {
        let sql = "SELECT \"remote_id\", \"secret\", \"server\", \"user\", \"model\", \"fingerprint\", \"incarnation\", \
                   \"note\", \"upload_sequence\", \"download_applied\", \"frozen\", \"frozen_changes\", \"frozen_digest\", \"staged\", \
                   \"last_sync\", \"cut_bytes_max\", \"adopted\", \"upload_refused\", \
                   \"upload_used\" FROM \"hw_state\"";
        let read = |row: &rusqlite::Row<'_>| {
            let (frozen, changes): (i64, i64) = (row.get(10)?, row.get(11)?);
            let digest: Option<[u8; 32]> = row.get(12)?;
            let end = |digest| UploadEnd { sequence: frozen as u64, changes: changes as u64, digest };
            Ok(State {
                remote_id: row.get(0)?,
                secret: row.get(1)?,
                server: row.get(2)?,
                user: row.get(3)?,
                model: row.get(4)?,
                fingerprint: row.get::<_, i64>(5)? as u64,
                incarnation: row.get(6)?,
                note: row.get(7)?,
                upload_sequence: row.get::<_, i64>(8)? as u64,
                download_applied: row.get(9)?,
                frozen: digest.filter(|_| frozen > 0).map(end),
                is_staged: row.get(13)?,
                last_sync: row.get(14)?,
                cut_bytes_max: row.get::<_, i64>(15)?.max(0) as u64,
                is_adopted: row.get(16)?,
                upload_refused: row.get(17)?,
                upload_used: row.get::<_, i64>(18)? as u64,
            })
        };
        let state = connection.query_row(sql, [], read).optional().while_doing("reading hw_state")?;
        state.ok_or_else(|| Error::damaged("hw_state has no row"))
    }

    /// Whether the file's tables are laid out as ours. To be asked before anything else is read: where they are not, what lies where is not
    /// known.
    pub(crate) fn check_format(connection: &Connection) -> Result<(), Error> {
        let sql = "SELECT \"format\" FROM \"hw_state\"";
        let actual = connection.query_row(sql, [], |row| row.get(0)).optional().while_doing("reading hw_state")?;
        match actual.ok_or_else(|| Error::damaged("hw_state has no row"))? {
            remote_sql::FORMAT => Ok(()),
            actual => Err(Error::Layout { actual, expected: remote_sql::FORMAT }),
        }
    }

    /// Writes the row of a new remote.
    pub(crate) fn insert(&self, connection: &Connection) -> Result<(), Error> {
        let sql = "INSERT INTO \"hw_state\" (\"one\", \"format\", \"remote_id\", \"secret\", \"server\", \"user\", \"model\", \
                   \"fingerprint\", \"incarnation\", \"note\", \"download_applied\", \"adopted\") \
                   VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let row = params![
            remote_sql::FORMAT,
            self.remote_id,
            self.secret,
            self.server,
            self.user,
            self.model,
            self.fingerprint as i64,
            self.incarnation,
            self.note,
            self.download_applied,
            self.is_adopted
        ];
        connection.execute(sql, row).while_doing("writing hw_state").map(drop)
    }

    /// Notes that an upload is cut; `None`: that there is none.
    pub(crate) fn set_frozen(connection: &Connection, end: Option<&UploadEnd>) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"frozen\" = ?, \"frozen_changes\" = ?, \"frozen_digest\" = ?";
        let row = params![
            end.map_or(0, |end| end.sequence as i64),
            end.map_or(0, |end| end.changes as i64),
            end.map(|end| end.digest)
        ];
        connection.execute(sql, row).while_doing("writing hw_state").map(drop)
    }

    /// Notes why the last upload was refused whole; `None`: it was not, or that is settled.
    pub(crate) fn set_upload_refused(connection: &Connection, why: Option<&str>) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"upload_refused\" = ?1 WHERE \"upload_refused\" IS NOT ?1";
        connection.execute(sql, [why]).while_doing("writing hw_state").map(drop)
    }

    /// Notes how large an upload is cut.
    pub(crate) fn set_cut_bytes_max(connection: &Connection, bytes: u64) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"cut_bytes_max\" = ?";
        connection.execute(sql, [bytes as i64]).while_doing("writing hw_state").map(drop)
    }

    /// Notes that no upload gets a number up to those of the last one and of that on its way (it may have arrived).
    pub(crate) fn note_used(connection: &Connection) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"upload_used\" = max(\"upload_used\", \"upload_sequence\", \"frozen\")";
        connection.execute(sql, []).while_doing("writing hw_state").map(drop)
    }

    pub(crate) fn set_upload_sequence(connection: &Connection, sequence: u64) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"upload_sequence\" = ?";
        connection.execute(sql, [sequence as i64]).while_doing("writing hw_state").map(drop)
    }

    /// Notes whether a download is staged whole.
    pub(crate) fn set_staged(connection: &Connection, is_staged: bool) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"staged\" = ?";
        connection.execute(sql, [is_staged]).while_doing("writing hw_state").map(drop)
    }

    /// Notes that a download is applied.
    pub(crate) fn set_applied(
        connection: &Connection,
        welcome: &Welcome,
        download: [u8; 16],
        now: &str,
    ) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"incarnation\" = ?, \"note\" = ?, \"download_applied\" = ?, \"staged\" = 0, \
                   \"last_sync\" = ?";
        let row = params![welcome.incarnation, welcome.note, download, now];
        connection.execute(sql, row).while_doing("writing hw_state").map(drop)
    }

    /// Forgets what has been seen, and of which incarnation.
    pub(crate) fn forget_seen(connection: &Connection) -> Result<(), Error> {
        let sql = "UPDATE \"hw_state\" SET \"incarnation\" = zeroblob(16), \"note\" = zeroblob(16), \
                   \"download_applied\" = zeroblob(16)";
        connection.execute(sql, []).while_doing("writing hw_state")?;
        write_watermarks(connection, &Watermarks::default())
    }

    /// Gives the file a new identity, of which no server knows any upload. What was sent under the old one is another file's affair,
    /// or was dealt with before ([`crate::lost`]).
    pub(crate) fn set_identity(connection: &Connection, remote_id: [u8; 16], secret: [u8; 32]) -> Result<(), Error> {
        for table in ["hw_sent", "hw_upload"] {
            connection.execute(&format!("DELETE FROM \"{table}\""), []).while_doing("forgetting what was sent")?;
        }
        let sql = "UPDATE \"hw_state\" SET \"remote_id\" = ?, \"secret\" = ?, \"upload_sequence\" = 0, \"upload_used\" = 0, \
                   \"download_applied\" = ?";
        connection.execute(sql, params![remote_id, secret, [0u8; 16]]).while_doing("writing hw_state").map(drop)
    }
}

/// What has been seen of each partition.
pub(crate) fn read_watermarks(connection: &Connection) -> Result<Watermarks, Error> {
    let read = || -> rusqlite::Result<Watermarks> {
        let mut watermarks = Watermarks::default();
        let mut places = std::collections::HashMap::new();
        let mut marks = connection.prepare_cached("SELECT \"id\", \"bytes\" FROM \"hw_mark\"")?;
        let mut rows = marks.query([])?;
        while let Some(row) = rows.next()? {
            places.insert(row.get::<_, i64>(0)?, watermarks.marks.len() as u32);
            watermarks.marks.push(row.get(1)?);
        }
        let sql = "SELECT \"table\", \"partition\", \"mark\" FROM \"hw_watermark\"";
        let mut entries = connection.prepare_cached(sql)?;
        let mut rows = entries.query([])?;
        while let Some(row) = rows.next()? {
            // An entry without its mark has seen nothing: the partition comes whole.
            if let Some(&mark) = places.get(&row.get(2)?) {
                watermarks.entries.push(WatermarkEntry { table: row.get(0)?, partition: row.get(1)?, mark });
            }
        }
        Ok(watermarks)
    };
    read().while_doing("reading the watermarks")
}

/// Replaces what has been seen.
pub(crate) fn write_watermarks(connection: &Connection, watermarks: &Watermarks) -> Result<(), Error> {
    let write = || -> rusqlite::Result<()> {
        connection.execute("DELETE FROM \"hw_watermark\"", [])?;
        connection.execute("DELETE FROM \"hw_mark\"", [])?;
        let mut mark = connection.prepare_cached("INSERT INTO \"hw_mark\" (\"id\", \"bytes\") VALUES (?, ?)")?;
        for (id, bytes) in watermarks.marks.iter().enumerate() {
            mark.execute(params![id as i64, bytes])?;
        }
        let sql = "INSERT INTO \"hw_watermark\" (\"table\", \"partition\", \"mark\") VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET \
                   \"mark\" = excluded.\"mark\"";
        let mut insert = connection.prepare_cached(sql)?;
        for entry in &watermarks.entries {
            insert.execute(params![entry.table, entry.partition, entry.mark])?;
        }
        Ok(())
    };
    write().while_doing("writing the watermarks")
}
