//! Spools: uploads and downloads on their way, so that no worker waits for a client.
//!
//! An [`UploadSpool`] is filled while a request arrives and read by place when its upload is applied; a download's spool is filled by
//! a worker and drained at the client's speed while it is still being filled ([`download`]). Both lie in the buffer pool, each with so many
//! bytes of its memory at most; what finds no room there goes to the pool's overflow file. Where that is full too, what is spare goes first
//! ([`Spare`]).

pub(crate) mod download;
mod spare;
mod upload;

use std::io;

use headwater_bufferpool::{Class, Error, Policy, Pool, Pools, Spool};
use headwater_knobs::Live;
use serde_json::json;

use crate::Config;

pub(crate) use spare::Spare;
pub(crate) use upload::UploadSpool;

/// Makes spools.
#[derive(Clone, Debug)]
pub(crate) struct Spools {
    pool: Pool,
    config: Live<Config>,
    spare: Spare,
}

impl Spools {
    /// In this pool, each with as many bytes of its memory as the options say when it begins.
    pub(crate) fn new(pool: Pool, config: Live<Config>) -> Spools {
        Spools { pool, config, spare: Spare::default() }
    }

    /// What goes where others find no room.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    fn upload(&self) -> Spool {
        self.spool("an upload", Class::Upload)
    }

    fn download(&self) -> Spool {
        self.spool("a download", Class::Download)
    }

    fn spool(&self, name: &str, class: Class) -> Spool {
        let memory_bytes_max = self.config.now().spool_memory_bytes;
        self.pool.spool(name, class, memory_bytes_max).expect("this class is spooled, and nothing is claimed yet")
    }

    /// Bytes in memory, bytes in the overflow file.
    pub(crate) fn used(&self) -> (u64, u64) {
        let memory = [Class::Upload, Class::Download].map(|class| self.pool.used_bytes_of(class));
        (memory.iter().sum(), self.pool.overflow_bytes())
    }
}

/// The pool's error, as one of a disk.
fn of_disk(error: &Error) -> io::Error {
    let kind = match error {
        Error::DiskFull { .. } | Error::NoRoom { .. } => io::ErrorKind::StorageFull,
        Error::Damaged { .. } => io::ErrorKind::InvalidData,
        Error::OutOfRange { .. } => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, told(error))
}

/// What it says, with its cause.
fn told(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What the pools have and have done, for people.
pub(crate) fn told_of(pools: &Pools) -> serde_json::Value {
    let told = |pool: &Pool| {
        let counters = pool.counters();
        let classes: serde_json::Map<String, serde_json::Value> = Class::ALL
            .into_iter()
            .map(|class| {
                let counts = counters.of(class);
                let (bytes, hits, misses) = (pool.used_bytes_of(class), counts.hits, counts.misses);
                let told = json!({ "bytes": bytes, "hits": hits, "misses": misses, "evictions": counts.evictions });
                (class.name().to_owned(), told)
            })
            .collect();
        let (waits, overflow) = (counters.waits, counters.overflow);
        let (policy, skips) = match pool.policy() {
            Policy::Lru { skips } => ("lru", Some(skips)),
            Policy::S3Fifo => ("s3fifo", None),
        };
        json!({
            "memory_bytes": pool.used_bytes(),
            "memory_bytes_max": pool.budget_bytes(),
            "policy": policy,
            "skips": skips,
            "classes": classes,
            "read_bytes": counters.read_bytes(),
            "overflow": {
                "bytes": pool.overflow_bytes(),
                "written_bytes": overflow.written_bytes,
                "read_bytes": overflow.read_bytes,
            },
            "waits": { "chain": waits.chain, "table": waits.table, "block": waits.block },
        })
    };
    match pools.alternate() {
        Some(alternate) => json!({ "main": told(pools.main()), "alternate": told(alternate) }),
        None => json!({ "main": told(pools.main()) }),
    }
}
