//! `[pool]` of `headwater.toml`: what the server and its gateway have in memory together ([`headwater_bufferpool`]).

mod knobs;

use std::path::{Path, PathBuf};

use anyhow::Result;
use headwater_bufferpool::{Config, Floors, Named, Policy, Pools};
use headwater_model::parse::closest;
use serde::Deserialize;

use crate::exit::{OrUsage as _, usage};

pub(crate) use self::knobs::knobs;

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

/// What there is that can be assigned to the alternate pool.
#[derive(Debug, Default)]
pub struct Known<'a> {
    /// Named queries.
    pub queries: Vec<&'a str>,
    /// Tables of the models that are shared.
    pub tables: Vec<&'a str>,
}

impl Known<'_> {
    /// An error where there is nothing of this name.
    fn check(&self, named: &Named) -> Result<()> {
        let (text, name, all, what) = match named {
            Named::Query(name) => (format!("query {name}"), name, &self.queries, "named query"),
            Named::Snapshot(name) | Named::Table(name) => {
                (format!("snapshot {name}"), name, &self.tables, "shared table of the models")
            }
        };
        if all.contains(&name.as_str()) {
            return Ok(());
        }
        let expected = match closest(name, all.iter().copied()) {
            Some(near) => format!("; did you mean {near}?"),
            None if all.is_empty() => format!(": there is no {what}"),
            None => format!(", expected one of {}", all.join(", ")),
        };
        Err(usage(format!("[pool] alternate has {text:?}, and no {what} is called so{expected}")))
    }
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
/// The least that is worth a pool of its own.
const ALTERNATE_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MAX: u64 = 1 << 44;

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
    /// The pools. Places are relative to `folder`; `spool_folder` is where the overflow file goes if nothing else is said. Without what is known, the
    /// names in `alternate` are believed.
    pub(crate) fn pools(&self, folder: &Path, spool_folder: Option<&Path>, known: Option<&Known<'_>>) -> Result<Pools> {
        let places = || "the pool can't be made ([pool])".to_owned();
        self.validate()?;
        let overflow_folder = self.overflow_folder(folder, spool_folder);
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
            known.map_or(Ok(()), |known| known.check(&named))?;
            pools.assign(named).or_usage(|| format!("[pool] alternate has {name:?}, and alternate_bytes is 0"))?;
        }
        Ok(pools)
    }

    /// Where the overflow file goes.
    pub(crate) fn overflow_folder(&self, folder: &Path, spool_folder: Option<&Path>) -> Option<PathBuf> {
        self.overflow_folder.as_ref().map(|own| folder.join(own)).or(spool_folder.map(Path::to_owned))
    }

    /// What no pool can be made of, or none that anybody means.
    fn validate(&self) -> Result<()> {
        let floors = [self.upload_bytes_min, self.download_bytes_min, self.answer_bytes_min, self.chunk_bytes_min];
        let (sum, memory) = (floors.iter().fold(0_u64, |sum, floor| sum.saturating_add(*floor)), self.memory_bytes);
        if memory > MEMORY_BYTES_MAX {
            return Err(usage(format!("[pool] memory_bytes is {memory}, expected at most {MEMORY_BYTES_MAX}")));
        }
        if sum > memory {
            let what = "upload_bytes_min, download_bytes_min, answer_bytes_min and chunk_bytes_min";
            return Err(usage(format!("[pool] {what} come to {sum}, more than memory_bytes, which is {memory}")));
        }
        match (self.alternate_bytes, self.alternate.is_empty()) {
            (0, _) => Ok(()),
            (_, true) => Err(usage("[pool] alternate_bytes is set, and alternate assigns nothing to it".to_owned())),
            (bytes, false) if !(ALTERNATE_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes) => Err(usage(format!(
                "[pool] alternate_bytes is {bytes}, expected 0, or {ALTERNATE_BYTES_MIN} to {MEMORY_BYTES_MAX}"
            ))),
            _ => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use headwater_bufferpool::Class;

    use super::*;

    fn pools(options: &str) -> Result<Pools, String> {
        let section: PoolSection = toml::from_str(options).map_err(|error| error.to_string())?;
        let known = Known { queries: vec!["a", "flights"], tables: vec!["t"] };
        section.pools(Path::new(""), None, Some(&known)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_no_pool_can_be_made_of_is_told_by_its_option() {
        for (options, words) in [
            (
                "memory_bytes = 1000",
                "[pool] upload_bytes_min, download_bytes_min, answer_bytes_min and chunk_bytes_min come to 67108864",
            ),
            ("memory_bytes = 99999999999999999", "memory_bytes is 99999999999999999, expected at most"),
            ("skips = 3", "[pool] skips is 3, and only policy = \"lru\" has skips"),
            ("policy = \"mru\"", "expected `s3fifo` or `lru`"),
            ("block_bytes = 100", "block_bytes is 100, expected 512 to 1048576"),
            ("alternate = [\"query a\"]", "[pool] alternate has \"query a\", and alternate_bytes is 0"),
            ("alternate_bytes = 100\nalternate = [\"query a\"]", "alternate_bytes is 100, expected 0, or 1048576 to"),
            ("alternate_bytes = 2000000", "alternate assigns nothing to it"),
            ("alternate_bytes = 2000000\nalternate = [\"a\"]", "expected \"query NAME\" or \"snapshot TABLE\""),
            (
                "alternate_bytes = 2000000\nalternate = [\"query flight\"]",
                "[pool] alternate has \"query flight\", and no named query is called so; did you mean flights?",
            ),
            (
                "alternate_bytes = 2000000\nalternate = [\"snapshot orders\"]",
                "[pool] alternate has \"snapshot orders\", and no shared table of the models is called so, expected one of t",
            ),
            (
                "overflow_folder = \"/nowhere/at/all\"",
                "overflow_folder /nowhere/at/all is no folder that can be written to",
            ),
            ("memry_bytes = 1", "unknown field `memry_bytes`"),
        ] {
            let said = pools(options).expect_err(options);
            assert!(said.contains(words), "{options}: {said}");
        }
    }

    #[test]
    fn what_is_assigned_to_the_alternate_pool_goes_there() {
        let pools = pools(
            "policy = \"lru\"\nskips = 100\nalternate_bytes = 2000000\nalternate = [\"query a\", \"snapshot t\"]",
        );
        let pools = pools.expect("pools");
        assert_eq!(pools.main().budget_bytes(), 128 << 20);
        assert_eq!(pools.main().room_bytes(Class::Answer), (128 - 48) << 20);
        assert_eq!(pools.of(&Named::Query("a".into())).budget_bytes(), 2_000_000);
        assert_eq!(pools.of(&Named::Snapshot("t".into())).budget_bytes(), 2_000_000);
        assert_eq!(pools.of(&Named::Query("b".into())).budget_bytes(), 128 << 20);
    }
}
