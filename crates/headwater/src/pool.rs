//! `[pool]` of `headwater.toml`: what the server and its gateway have in memory together ([`headwater_bufferpool`]).

use std::path::{Path, PathBuf};

use anyhow::Result;
use headwater_bufferpool::{Config, Floors, Named, Policy, Pools};
use serde::Deserialize;

use crate::exit::{OrUsage as _, usage};

/// The section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PoolSection {
    /// Bytes of all blocks in memory.
    memory_bytes: u64,
    /// Bytes of one of them.
    block_bytes: usize,
    policy: PolicyName,
    /// Under `lru`: accesses of a block until it is moved in the chain.
    skips: u32,
    /// What uploads have for sure, and so on.
    upload_bytes_min: u64,
    download_bytes_min: u64,
    answer_bytes_min: u64,
    chunk_bytes_min: u64,
    overflow_bytes_max: u64,
    overflow_folder: Option<PathBuf>,
    /// Bytes of the alternate pool; 0: there is none.
    alternate_bytes: u64,
    /// What goes there: `query NAME`, `snapshot TABLE`.
    alternate: Vec<String>,
}

/// Which block goes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PolicyName {
    S3fifo,
    Lru,
}

/// What each class has for sure.
const FLOOR_BYTES: u64 = 16 << 20;

impl Default for PoolSection {
    fn default() -> PoolSection {
        let usual = Config::default();
        PoolSection {
            memory_bytes: 128 << 20,
            block_bytes: usual.block_bytes,
            policy: PolicyName::S3fifo,
            skips: 0,
            upload_bytes_min: FLOOR_BYTES,
            download_bytes_min: FLOOR_BYTES,
            answer_bytes_min: FLOOR_BYTES,
            chunk_bytes_min: FLOOR_BYTES,
            overflow_bytes_max: usual.overflow_bytes_max,
            overflow_folder: None,
            alternate_bytes: 0,
            alternate: Vec::new(),
        }
    }
}

impl PoolSection {
    /// The pools. Places are relative to `folder`; `spool_folder` is where the overflow file goes if nothing else is said.
    pub(crate) fn pools(&self, folder: &Path, spool_folder: Option<&Path>) -> Result<Pools> {
        let places = || "the pool can't be made ([pool])".to_owned();
        let overflow_folder =
            self.overflow_folder.as_ref().map(|own| folder.join(own)).or(spool_folder.map(Path::to_owned));
        if let Some(own) = &overflow_folder {
            tempfile::tempfile_in(own)
                .or_usage(|| format!("[pool] overflow_folder {} is no folder that can be written to", own.display()))?;
        }
        let main = Config {
            block_bytes: self.block_bytes,
            budget_bytes: self.memory_bytes,
            floors: Floors {
                upload: self.upload_bytes_min,
                download: self.download_bytes_min,
                answer: self.answer_bytes_min,
                chunk: self.chunk_bytes_min,
            },
            policy: self.policy()?,
            overflow_bytes_max: self.overflow_bytes_max,
            overflow_folder,
        };
        let alternate = Config { budget_bytes: self.alternate_bytes, floors: Floors::default(), ..main.clone() };
        let pools = Pools::new(&main, (self.alternate_bytes > 0).then_some(&alternate)).or_usage(places)?;
        for name in &self.alternate {
            let named = named(name)?;
            pools.assign(named).or_usage(|| format!("[pool] alternate has {name:?}, and alternate_bytes is 0"))?;
        }
        Ok(pools)
    }

    fn policy(&self) -> Result<Policy> {
        match (self.policy, self.skips) {
            (PolicyName::Lru, skips) => Ok(Policy::Lru { skips }),
            (PolicyName::S3fifo, 0) => Ok(Policy::S3Fifo),
            (PolicyName::S3fifo, skips) => {
                Err(usage(format!("[pool] skips is {skips}, and only policy = \"lru\" has skips")))
            }
        }
    }
}

fn named(text: &str) -> Result<Named> {
    match text.split_once(' ') {
        Some(("query", name)) => Ok(Named::Query(name.trim().to_owned())),
        Some(("snapshot", table)) => Ok(Named::Snapshot(table.trim().to_owned())),
        _ => Err(usage(format!("[pool] alternate has {text:?}, expected \"query NAME\" or \"snapshot TABLE\""))),
    }
}
