//! What a ready file is made of: the download of an exact set of partitions, which is nobody's.
//!
//! A new remote may begin with a file that was made for others who hold the same partitions ([`crate::download`] brings it up to date). So
//! what is in it may depend on the partitions alone: a model with a `download_cursor`, whose script knows who asks, and a database whose row
//! security shows each user other rows, have none. Whose partitions they are is read anew at every request ([`ask`]).

use headwater_model::Direction;
use headwater_model::script::Step;
use headwater_model::sql::literal;
use headwater_model::tracking::postgres::{base_table, table_id};
use headwater_protocol::message::Watermarks;
use headwater_protocol::row::put_row;
use headwater_protocol::wire::Write as _;
use headwater_protocol::{Row, Type, Value};
use sha2::{Digest, Sha256};

use super::shared::{Looks, Shared};
use super::{Download, DownloadRequest, DownloadSummary, Written, begin, begin_with, ended};
use crate::memberships::Members;
use crate::rows::{Echo, FrameSink};
use crate::system::{Life, dialect_sql, integer};
use crate::{Connection, Dialect, Error, Plan, memberships};

/// What somebody's remote is to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The memberships, by place in the model's partitions; each in one order and once.
    pub partitions: Vec<Vec<Row>>,
    /// What names exactly this: the same for everybody who has the same memberships in the same incarnation, under the same model.
    pub key: [u8; 32],
    /// In which life of the database this was found.
    pub life: Life,
    /// Whether what is kept for it can still be brought up to date; `None`: nothing is.
    pub is_current: Option<bool>,
}

/// By what is kept for partitions can be told whether it is of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The watermark of its snapshot.
    pub mark: Vec<u8>,
    /// A note that the database took after that.
    pub note: [u8; 16],
}

/// Whether a model's downloads depend on partitions alone, as far as the model says.
pub fn is_possible(plan: &Plan) -> bool {
    let by_script = plan.tables.iter().any(|table| table.table.script(Step::DownloadCursor).is_some());
    !by_script && plan.tables.iter().any(|table| table.table.direction != Direction::Upload)
}

/// Reads a user's memberships, and looks in the same snapshot whether what is `kept` under their key can be brought up to date. `None`: what this user is shown of the tables is his own affair (row security), so that nothing can be made for several.
pub fn ask(
    connection: &mut dyn Connection,
    plan: &Plan,
    (user, remote_id): (&str, &[u8; 16]),
    incarnation: &[u8; 16],
    kept: &mut dyn FnMut(&[u8; 32]) -> Option<Kept>,
) -> Result<Option<Asked>, Error> {
    begin(connection, plan, (user, remote_id), None)?;
    let mut ask = |connection: &mut dyn Connection| -> Result<Option<Asked>, Error> {
        // The first statement after the begin: from here on there is one snapshot.
        connection.watermark()?;
        let life = Life::of(connection)?;
        if has_row_security(connection, plan)? {
            return Ok(None);
        }
        let mut partitions = Vec::new();
        for partition in &plan.model.partitions {
            let members = memberships::query(connection, partition, user, remote_id)?.rows;
            let types: Vec<Type> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
            partitions.push(in_order(members, &types));
        }
        let key = key(plan, incarnation, &partitions);
        let is_current = match kept(&key) {
            Some(kept) => Some(is_current(connection, &kept)?),
            None => None,
        };
        let partitions = partitions.into_iter().map(|rows| rows.into_iter().map(|(_, row)| row).collect()).collect();
        Ok(Some(Asked { partitions, key, life, is_current }))
    };
    let asked = ask(connection);
    ended(connection, asked, |_| true)
}

/// Writes the frames of a first download of exactly these partitions, as [`super::write`] does of somebody's; no user and no remote is told to
/// the database.
pub fn write_partitions(
    connection: &mut dyn Connection,
    plan: &Plan,
    partitions: &[Vec<Row>],
    sink: &mut FrameSink<'_>,
) -> Result<(DownloadSummary, Watermarks), Error> {
    let nothing = Watermarks::default();
    let request = DownloadRequest {
        plan,
        user: "",
        remote_id: [0; 16],
        watermarks: &nothing,
        restart: false,
        life: None,
        own: &[],
        echo: &Echo::default(),
        conflicted: &[],
        refresh: &[],
        extended: &[],
        packing: None,
        snapshots: None,
        keeps_marks: false,
        tells_leaving: false,
    };
    begin_with(connection, plan, (request.user, &request.remote_id), request.life, Vec::new())?;
    let written = connection.watermark().and_then(|mark| {
        let seen = Watermarks { marks: vec![mark], entries: Vec::new() };
        let members = partitions.iter().cloned().map(Members::from).collect();
        let (summary, shared) = (DownloadSummary::default(), Shared::default());
        let (namings, spellings) = Default::default();
        let download = Download {
            connection,
            request: &request,
            sink,
            members,
            summary,
            seen,
            time: None,
            shared,
            namings,
            spellings,
        };
        download.run(&Looks::default())
    });
    match ended(connection, written, |_| true)? {
        Written::All(summary, seen, _) => Ok((summary, seen)),
        Written::Nothing(_) => unreachable!("without a store of snapshots none is needed"),
    }
}

/// Whether all that has changed since can be told, by this database and by no other: one that was put back from a backup since lacks the note
/// that was taken after the watermark's snapshot.
fn is_current(connection: &mut dyn Connection, Kept { mark, note }: &Kept) -> Result<bool, Error> {
    let sql = dialect_sql(connection.dialect(), "SELECT count(*) FROM {hw}note WHERE note = ?1");
    let rows = connection.query(&sql, &[Value::Bytes(note.to_vec())])?;
    let has_note = integer(rows.first().and_then(|row| row.first()), "count")? > 0;
    if !has_note || !connection.accepts_watermark(mark)? {
        return Ok(false);
    }
    let gaps = connection.gaps(mark)?;
    Ok(!gaps.everything && gaps.tables.is_empty())
}

/// Whether the database shows each user other rows of a table that comes down.
fn has_row_security(connection: &mut dyn Connection, plan: &Plan) -> Result<bool, Error> {
    if connection.dialect() == Dialect::Sqlite {
        return Ok(false);
    }
    let tables: Vec<String> = plan.tables.iter().map(|table| literal(&base_table(&table.table))).collect();
    let sql = format!(
        "SELECT coalesce(bool_or(row_security_active({})), false) FROM unnest(ARRAY[{}]::text[]) AS name",
        table_id("name"),
        tables.join(", ")
    );
    let rows = connection.query(&sql, &[])?;
    Ok(rows.first().and_then(|row| row.first()) != Some(&Value::Bool(false)))
}

/// By their bytes, each once.
fn in_order(rows: Vec<Row>, types: &[Type]) -> Vec<(Vec<u8>, Row)> {
    let mut rows: Vec<(Vec<u8>, Row)> = rows
        .into_iter()
        .map(|row| {
            let mut bytes = Vec::new();
            put_row(&mut bytes, types, &row);
            (bytes, row)
        })
        .collect();
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    rows.dedup_by(|(one, _), (other, _)| one == other);
    rows
}

fn key(plan: &Plan, incarnation: &[u8; 16], partitions: &[Vec<(Vec<u8>, Row)>]) -> [u8; 32] {
    let mut bytes = Vec::new();
    bytes.put_bytes(plan.model.name.as_bytes());
    bytes.extend_from_slice(&plan.model.version.to_le_bytes());
    bytes.extend_from_slice(&plan.fingerprint.to_le_bytes());
    bytes.extend_from_slice(incarnation);
    for rows in partitions {
        bytes.put_varint(rows.len() as u64);
        for (row, _) in rows {
            bytes.put_bytes(row);
        }
    }
    Sha256::digest(&bytes).into()
}
