//! The gateway's knobs: its settings, read at each use, and how full its messages of records get.

use std::sync::Arc;
use std::time::Duration;

use headwater_consolidated::QueryPool;
use headwater_knobs::packing::{self, Part};
use headwater_knobs::{Knob, Live, Range, Value};
use headwater_protocol::packer::{Knobs as Packer, Packing};

use crate::client_sql::ClientSql;
use crate::packing::Compression;
use crate::service::{Service, Settings};

/// The most bytes of a full piece of an answer: how fast a client takes it is seen by pieces.
pub const PIECE_BYTES_MAX: usize = 64 << 10;
/// The most queries that may run at a time.
pub const EXECUTIONS_MAX: u64 = 1_000;
/// The longest that a query may be let wait for a place, in seconds.
pub const WAITING_S_MAX: f64 = 3_600.0;
/// The fastest that a slow client can be asked to be.
const RATE_MAX: u64 = 1 << 40;
/// The most bytes of answers.
const BYTES_MAX: u64 = 1 << 40;
const AUTO: &str = "auto";
/// The strongest compression.
const LEVEL_MAX: u64 = 9;

/// Of pieces of answers. Between two records nothing is looked for (`priority`), and the thread that makes a piece waits for the database's
/// next record itself, so that nobody could send what it has begun (`idle_wait`).
const OF_PIECES: [packing::Row; 4] = [
    (Part::MessageSize, "gateway.packing.message_size", "bytes of a full piece of an answer that is sent as it comes"),
    (
        Part::Records,
        "gateway.packing.records",
        "records after which a piece goes; automatic: when it is full, or 1, 2, 4, ... without delay_first",
    ),
    (
        Part::Fill,
        "gateway.packing.fill",
        "at how many percent of message_size a piece goes; 0: by records alone, or full",
    ),
    (
        Part::DelayFirst,
        "gateway.packing.delay_first",
        "whether the first piece is filled too; false: the first record goes alone",
    ),
];

/// Of messages of cursors.
const OF_CURSORS: [packing::Row; 6] = [
    (Part::MessageSize, "gateway.cursor.message_size", "bytes of a full message of a cursor, from its next message on"),
    (
        Part::Records,
        "gateway.cursor.records",
        "records after which a message goes; automatic: 1, 2, 4, ... until messages are full",
    ),
    (
        Part::Fill,
        "gateway.cursor.fill",
        "at how many percent of message_size a message goes; 0: by records alone, or full",
    ),
    (
        Part::DelayFirst,
        "gateway.cursor.delay_first",
        "whether the first message is filled too; false: the first record goes alone",
    ),
    (
        Part::Priority,
        "gateway.cursor.priority",
        "records that are added before the clock and the client are looked at; 0: before each",
    ),
    (
        Part::IdleWaitMs,
        "gateway.cursor.idle_wait_ms",
        "how long a message that has begun waits for records that don't come",
    ),
];

type Get = fn(&Settings) -> Value;
type Put = fn(&mut Settings, &Value);
/// Name, effect, range, and where it is.
type Row = (&'static str, &'static str, Range, Get, Put);

fn whole(least: u64, most: u64) -> Range {
    Range::Whole { least, most }
}

fn rows() -> [Row; 8] {
    [
        (
            "gateway.executions_max",
            "queries that run at a time, each on a connection of its own",
            whole(1, EXECUTIONS_MAX),
            |s| Value::Whole(s.executions_max as u64),
            |s, value| s.executions_max = value.whole() as usize,
        ),
        (
            "gateway.waiting_max",
            "queries that may wait for a place; beyond, 503",
            whole(0, 1_000_000),
            |s| Value::Whole(s.waiting_max as u64),
            |s, value| s.waiting_max = value.whole() as usize,
        ),
        (
            "gateway.waiting_s_max",
            "how long one waits for a place, then 503",
            Range::Number { most: WAITING_S_MAX },
            |s| Value::Number(s.patience.as_secs_f64()),
            |s, value| s.patience = Duration::from_secs_f64(value.number()),
        ),
        (
            "gateway.cache",
            "whether answers made from now on are kept in the pool",
            Range::Truth,
            |s| Value::Truth(s.cache),
            |s, value| s.cache = value.truth(),
        ),
        (
            "gateway.held_bytes_max",
            "an answer of more bytes is sent as it comes, and not kept",
            whole(0, BYTES_MAX),
            |s| Value::Whole(s.held_bytes_max as u64),
            |s, value| s.held_bytes_max = value.whole() as usize,
        ),
        (
            "gateway.sending_bytes_max",
            "bytes of answers outside the pool that clients have not taken; beyond, 503",
            whole(0, BYTES_MAX),
            |s| Value::Whole(s.sending_bytes_max as u64),
            |s, value| s.sending_bytes_max = value.whole() as usize,
        ),
        (
            "gateway.compression",
            "how hard answers are compressed; auto: by processor and link",
            Range::WordOr { word: AUTO, least: 0, most: LEVEL_MAX },
            |s| match s.compression {
                Compression::Auto => Value::Word(AUTO.to_owned()),
                Compression::Fixed(level) => Value::Whole(level.into()),
            },
            |s, value| {
                s.compression = match value {
                    Value::Whole(level) => Compression::Fixed(*level as u32),
                    _ => Compression::Auto,
                }
            },
        ),
        (
            "gateway.reader_bytes_per_s_min",
            "how fast a client must take a large answer while others wait; 0: as it likes",
            whole(0, RATE_MAX),
            |s| Value::Whole(s.reader_bytes_per_s_min),
            |s, value| s.reader_bytes_per_s_min = value.whole(),
        ),
    ]
}

/// Those of a gateway, which may run SQL of clients too.
pub(crate) fn of(service: &Arc<Service>, sql: Option<&ClientSql>) -> Vec<Knob> {
    let of_clients = sql.map(|sql| sql.pool().clone());
    rows().into_iter().map(|row| knob(row, service, of_clients.clone())).collect()
}

/// Those of the packers: of answers, and of cursors where there are any.
pub(crate) fn of_packing(pieces: &Packer, cursors: Option<&Packer>) -> Vec<Knob> {
    let cursors = cursors.map(|cursors| packing::knobs(cursors, Packing::AUTOMATIC, &OF_CURSORS));
    let pieces = packing::knobs(pieces, Packing::FULL, &OF_PIECES);
    pieces.into_iter().chain(cursors.into_iter().flatten()).collect()
}

fn knob((name, effect, range, get, put): Row, service: &Arc<Service>, of_clients: Option<QueryPool>) -> Knob {
    let (to_read, service): (Live<Settings>, _) = (service.settings().clone(), Arc::clone(service));
    Knob {
        name,
        effect,
        default: get(&Settings::default()),
        range,
        is_option: true,
        read: Box::new(move || get(&to_read.now())),
        set: Box::new(move |value| {
            let before = service.settings().now();
            let mut settings = (*before).clone();
            put(&mut settings, value);
            service.settings().put(settings.clone());
            if settings.executions_max != before.executions_max {
                service.set_executions_max(&settings);
                if let Some(pool) = &of_clients {
                    pool.set_size(settings.executions_max);
                }
            }
            Ok(())
        }),
    }
}
