//! The server's knobs: options that it reads at each use, so that they can be changed while it runs.
//!
//! All of them are read from one [`Live`] configuration. What has to follow a change at once does so here: places for workers and uploaders,
//! connections of the database, and how the open files are shared out. How full frames get is with the [packer](crate::packing).
//!
//! *Caveats.* Options that are laid down once are no knobs: addresses, TLS, keys, folders, `frame_bytes_max` (turns are counted by it),
//! `head_ms_max` and `keep_alive_ms` (they are those of the HTTP library), the password checks.

use std::sync::Arc;

use headwater_consolidated::Dialect;
use headwater_knobs::{Knob, Live, Range, Value};

use crate::descriptors::{Descriptors, database_files};
use crate::front::Front;
use crate::state::Shared;
use crate::{Config, packing};

/// Where an option is.
enum Place {
    Count(fn(&mut Config) -> &mut usize),
    Bytes(fn(&mut Config) -> &mut u64),
    Few(fn(&mut Config) -> &mut u32),
}

use Place::{Bytes, Count, Few};

/// The name under `[server]`, what it does, and where it is.
type Row = (&'static str, &'static str, Place);

/// Those of a server that syncs nothing.
const ROWS_OF_ALL: [Row; 3] = [
    ("server.connections_max", "connections of clients; those that are open stay", Count(|c| &mut c.connections_max)),
    ("server.idle_ms_max", "how long a client may neither send nor take a byte", Bytes(|c| &mut c.idle_ms_max)),
    ("server.shutdown_ms_max", "how long running syncs may take to end at a stop", Bytes(|c| &mut c.shutdown_ms_max)),
];

/// Those of a server with syncs, beside.
const ROWS: [Row; 32] = [
    ("server.workers", "syncs that use the database at a time; 0: found", Count(|c| &mut c.workers)),
    ("server.uploaders", "of them, those that apply an upload; 0: found", Count(|c| &mut c.uploaders)),
    ("server.workers_max", "the most workers where their number is found", Count(|c| &mut c.workers_max)),
    ("server.backlog", "syncs received whole that may wait for a worker", Count(|c| &mut c.backlog)),
    (
        "server.receiving_max",
        "syncs whose requests are still arriving; 0: connections_max",
        Count(|c| &mut c.receiving_max),
    ),
    ("server.upload_bytes_max", "bytes of one upload", Bytes(|c| &mut c.upload_bytes_max)),
    ("server.upload_frames_max", "frames of one upload", Bytes(|c| &mut c.upload_frames_max)),
    ("server.batch_rows", "rows that are judged and written by one statement", Count(|c| &mut c.batch_rows)),
    (
        "server.spool_memory_bytes",
        "bytes in memory of an upload or download that begins",
        Bytes(|c| &mut c.spool_memory_bytes),
    ),
    ("server.piece_bytes", "bytes of a piece of an upload that comes in pieces", Bytes(|c| &mut c.piece_bytes)),
    ("server.tickets_max", "uploads in pieces that may be on their way", Count(|c| &mut c.tickets_max)),
    ("server.tickets_per_user_max", "of them, those of one user", Count(|c| &mut c.tickets_per_user_max)),
    ("server.tickets_bytes_max", "bytes of all of them", Bytes(|c| &mut c.tickets_bytes_max)),
    ("server.ticket_ms", "how long an upload in pieces waits for its next", Bytes(|c| &mut c.ticket_ms)),
    ("server.kept_ms", "how long a broken download can be resumed", Bytes(|c| &mut c.kept_ms)),
    ("server.kept_downloads_max", "downloads that are kept for that", Count(|c| &mut c.kept_downloads_max)),
    ("server.kept_bytes_max", "bytes of them", Bytes(|c| &mut c.kept_bytes_max)),
    ("server.shared_ms", "how long a shared partition built from now on is handed out", Bytes(|c| &mut c.shared_ms)),
    ("server.shared_bytes_max", "bytes of all chunks", Bytes(|c| &mut c.shared_bytes_max)),
    (
        "server.shared_wait_ms_max",
        "how long a sync waits for what another builds",
        Bytes(|c| &mut c.shared_wait_ms_max),
    ),
    ("server.ready_bytes_max", "bytes of ready files; 0: none are made", Bytes(|c| &mut c.ready_bytes_max)),
    ("server.ready_bytes_min", "downloads of fewer bytes are not worth one", Bytes(|c| &mut c.ready_bytes_min)),
    ("server.ready_ms_max", "how long a ready file is given to new remotes", Bytes(|c| &mut c.ready_ms_max)),
    (
        "server.heartbeat_ms",
        "how often a waiting client of a sync that begins is told so",
        Bytes(|c| &mut c.heartbeat_ms),
    ),
    ("server.wait_ms_max", "how long a sync may wait for a worker", Bytes(|c| &mut c.wait_ms_max)),
    (
        "server.connect_ms_max",
        "how long a sync waits for a connection of the database",
        Bytes(|c| &mut c.connect_ms_max),
    ),
    ("server.commit_wait_ms", "how long a commit may wait for a synchronous standby", Bytes(|c| &mut c.commit_wait_ms)),
    (
        "server.estimate_ms_max",
        "how long a large download is estimated; 0: not at all",
        Bytes(|c| &mut c.estimate_ms_max),
    ),
    ("server.retries", "how often what the database could not do is tried again", Few(|c| &mut c.retries)),
    ("server.retry_ms", "the wait before the first of them", Bytes(|c| &mut c.retry_ms)),
    ("server.note_ms", "how often time and snapshot are noted, after the next note", Bytes(|c| &mut c.note_ms)),
    ("server.purge_days", "after how many days changes are purged; 0: never", Bytes(|c| &mut c.purge_days)),
];

/// For how long a token is good is decided when it is made.
const ROW_OF_TOKENS: Row = ("server.token_ms", "how long a token made from now on is good", Bytes(|c| &mut c.token_ms));

impl Place {
    fn get(&self, config: &mut Config) -> u64 {
        match self {
            Count(at) => *at(config) as u64,
            Bytes(at) => *at(config),
            Few(at) => u64::from(*at(config)),
        }
    }

    fn set(&self, config: &mut Config, value: u64) {
        match self {
            Count(at) => *at(config) = value as usize,
            Bytes(at) => *at(config) = value,
            Few(at) => *at(config) = value as u32,
        }
    }
}

/// Does what a change of the options asks for, or says why it can't be.
type Follow = Arc<dyn Fn(&Config) -> Result<(), String> + Send + Sync>;

/// Those of a server that syncs. `joined`: connections to the database of what is joined to it; `open_files`: the process's limit.
pub(crate) fn of_syncs(shared: &Arc<Shared>, dialect: Dialect, joined: usize, open_files: Option<usize>) -> Vec<Knob> {
    let to_follow = Arc::clone(shared);
    let follow: Follow = Arc::new(move |config| {
        let files = database_files(dialect, config.database_connections() + joined);
        let descriptors = enough(config, files, open_files)?;
        to_follow.config.put(config.clone());
        to_follow.commit_waits.set_limit(config.commit_wait());
        to_follow.front.set_connections_max(descriptors.connections_max);
        to_follow.files.set_open_max(descriptors.files_max);
        to_follow.pool.set_size(config.database_connections());
        to_follow.admission.follow();
        Ok(())
    });
    let rows = ROWS.into_iter().chain([ROW_OF_TOKENS]).chain(ROWS_OF_ALL);
    rows.map(|row| knob(row, &shared.config, &follow)).chain(packing::knobs(&shared.packing)).collect()
}

/// Those of a server without syncs.
pub(crate) fn of_front(front: &Arc<Front>, database_files: usize, open_files: Option<usize>) -> Vec<Knob> {
    let to_follow = Arc::clone(front);
    let follow: Follow = Arc::new(move |config| {
        let descriptors = enough(config, database_files, open_files)?;
        to_follow.config.put(config.clone());
        to_follow.set_connections_max(descriptors.connections_max);
        Ok(())
    });
    ROWS_OF_ALL.into_iter().map(|row| knob(row, &front.config, &follow)).collect()
}

fn enough(config: &Config, database_files: usize, open_files: Option<usize>) -> Result<Descriptors, String> {
    let descriptors = Descriptors::within(open_files, config, database_files);
    match descriptors.too_few() {
        None => Ok(descriptors),
        Some((limit, least)) => Err(format!("the limit of open files is {limit}, and it would want {least} at least")),
    }
}

fn knob((name, effect, place): Row, live: &Live<Config>, follow: &Follow) -> Knob {
    let option = name.trim_start_matches("server.");
    let mut usual = Config::default();
    let bounds = usual.numbers().into_iter().find(|(other, ..)| *other == option);
    let (_, _, least, most) = bounds.expect("every knob is an option that is a number");
    let default = Value::Whole(place.get(&mut usual));
    let place = Arc::new(place);
    let (to_read, live_to_read) = (Arc::clone(&place), live.clone());
    let (live, follow) = (live.clone(), Arc::clone(follow));
    Knob {
        name,
        effect,
        default,
        range: Range::Whole { least, most },
        is_option: true,
        read: Box::new(move || Value::Whole(to_read.get(&mut (*live_to_read.now()).clone()))),
        set: Box::new(move |value| {
            let mut config = (*live.now()).clone();
            place.set(&mut config, value.whole());
            config.validate_numbers().map_err(|error| error.to_string())?;
            follow(&config)
        }),
    }
}

#[cfg(test)]
mod tests;
