//! The pool's knobs: what of `[pool]` can be changed while it is used.

use std::sync::Arc;

use headwater_bufferpool::{Class, Policy, Pool, Pools, SKIPS_MAX};
use headwater_knobs::{Knob, Range, Value};

use super::{ALTERNATE_BYTES_MIN, MEMORY_BYTES_MAX, PoolSection};

const LRU: &str = "lru";
const S3FIFO: &str = "s3fifo";
const BYTES: Range = Range::Whole { least: 0, most: MEMORY_BYTES_MAX };

/// Those of these pools; one for the alternate pool only where there is one.
pub(crate) fn knobs(pools: &Arc<Pools>) -> Vec<Knob> {
    let floors = [
        (Class::Upload, "pool.upload_bytes_min", "bytes that uploads have for sure"),
        (Class::Download, "pool.download_bytes_min", "bytes that downloads have for sure"),
        (Class::Answer, "pool.answer_bytes_min", "bytes that answers have for sure"),
        (Class::Chunk, "pool.chunk_bytes_min", "bytes that chunks have for sure"),
    ];
    let floors = floors.map(|(class, name, effect)| floor(pools, class, name, effect));
    let first = [memory(pools), policy(pools), skips(pools)];
    first.into_iter().chain(floors).chain([overflow(pools)]).chain(alternate(pools)).collect()
}

fn knob<R, S>(
    pools: &Arc<Pools>,
    (name, effect): (&'static str, &'static str),
    usual: (Value, Range),
    read: R,
    set: S,
) -> Knob
where
    R: Fn(&Pools) -> Value + Send + Sync + 'static,
    S: Fn(&Pools, &Value) -> Result<(), String> + Send + Sync + 'static,
{
    let (to_read, to_set) = (Arc::clone(pools), Arc::clone(pools));
    let (default, range) = usual;
    let (read, set) = (Box::new(move || read(&to_read)), Box::new(move |value: &Value| set(&to_set, value)));
    Knob { name, effect, default, range, is_option: true, read, set }
}

fn memory(pools: &Arc<Pools>) -> Knob {
    let told =
        ("pool.memory_bytes", "bytes of all blocks in memory; fewer: what is beyond goes, or to the overflow file");
    let usual = (Value::Whole(PoolSection::default().memory_bytes), BYTES);
    let set = |pools: &Pools, value: &Value| pools.main().set_budget(value.whole()).map_err(|error| whole(&error));
    knob(pools, told, usual, |pools| Value::Whole(pools.main().budget_bytes()), set)
}

fn policy(pools: &Arc<Pools>) -> Knob {
    let told = ("pool.policy", "which block goes; s3fifo has no skips");
    let usual = (Value::Word(S3FIFO.to_owned()), Range::Words(&[S3FIFO, LRU]));
    let read = |pools: &Pools| {
        let word = if pools.main().policy() == Policy::S3Fifo { S3FIFO } else { LRU };
        Value::Word(word.to_owned())
    };
    let set = |pools: &Pools, value: &Value| {
        let policy = match (value.to_string().as_str(), pools.main().policy()) {
            (LRU, Policy::Lru { skips }) => Policy::Lru { skips },
            (LRU, Policy::S3Fifo) => Policy::Lru { skips: 0 },
            _ => Policy::S3Fifo,
        };
        each(pools, |pool| pool.set_policy(policy))
    };
    knob(pools, told, usual, read, set)
}

fn skips(pools: &Arc<Pools>) -> Knob {
    let told = ("pool.skips", "with lru: accesses of a block until it is moved in the chain");
    let usual = (Value::Whole(0), Range::Whole { least: 0, most: SKIPS_MAX.into() });
    let read = |pools: &Pools| match pools.main().policy() {
        Policy::Lru { skips } => Value::Whole(skips.into()),
        Policy::S3Fifo => Value::Whole(0),
    };
    let set = |pools: &Pools, value: &Value| match (pools.main().policy(), value.whole()) {
        (Policy::S3Fifo, 0) => Ok(()),
        (Policy::S3Fifo, _) => Err(format!("pool.policy is {S3FIFO}, which has none; set pool.policy={LRU} before it")),
        (Policy::Lru { .. }, skips) => each(pools, |pool| pool.set_skips(skips as u32)),
    };
    knob(pools, told, usual, read, set)
}

fn floor(pools: &Arc<Pools>, class: Class, name: &'static str, effect: &'static str) -> Knob {
    let read = move |pools: &Pools| Value::Whole(pools.main().floors().of(class));
    let set = move |pools: &Pools, value: &Value| {
        let floors = pools.main().floors().with(class, value.whole());
        pools.main().set_floors(floors).map_err(|error| whole(&error))
    };
    knob(pools, (name, effect), (Value::Whole(super::FLOOR_BYTES), BYTES), read, set)
}

fn overflow(pools: &Arc<Pools>) -> Knob {
    let told = ("pool.overflow_bytes_max", "bytes of the overflow file; what lies in it stays");
    let read = |pools: &Pools| Value::Whole(pools.main().overflow_bytes_max());
    let set = |pools: &Pools, value: &Value| {
        each(pools, |pool| {
            pool.set_overflow_bytes_max(value.whole());
            Ok(())
        })
    };
    knob(pools, told, (Value::Whole(PoolSection::default().overflow_bytes_max), BYTES), read, set)
}

fn alternate(pools: &Arc<Pools>) -> Option<Knob> {
    pools.alternate()?;
    let told = ("pool.alternate_bytes", "bytes of the alternate pool; 0: what is assigned to it goes to the main one");
    let read = |pools: &Pools| Value::Whole(pools.alternate().map_or(0, Pool::budget_bytes));
    let set = |pools: &Pools, value: &Value| match (value.whole(), pools.alternate()) {
        (1..ALTERNATE_BYTES_MIN, _) => Err(format!("expected 0, or {ALTERNATE_BYTES_MIN} and more")),
        (bytes, Some(pool)) => pool.set_budget(bytes).map_err(|error| whole(&error)),
        (_, None) => Err("there is no alternate pool".to_owned()),
    };
    Some(knob(pools, told, (Value::Whole(0), BYTES), read, set))
}

/// The same in both pools.
fn each(pools: &Pools, set: impl Fn(&Pool) -> Result<(), headwater_bufferpool::Error>) -> Result<(), String> {
    let all = [Some(pools.main()), pools.alternate()];
    all.into_iter().flatten().try_for_each(|pool| set(pool).map_err(|error| whole(&error)))
}

/// An error with its cause.
fn whole(error: &headwater_bufferpool::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use headwater_bufferpool::Named;
    use headwater_knobs::{Knobs, contract};

    use super::*;

    fn pools(options: &str) -> (Arc<Pools>, Knobs) {
        let section: PoolSection = toml::from_str(options).expect("sound");
        let pools = Arc::new(section.pools(Path::new(""), None, None).expect("pools"));
        let knobs = Knobs::new(knobs(&pools));
        (pools, knobs)
    }

    fn set(knobs: &Knobs, all: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let owned: Vec<_> = all.iter().map(|(name, value)| (format!("pool.{name}"), (*value).to_owned())).collect();
        let changes = knobs.change(&owned).map_err(|fault| fault.to_string())?;
        Ok(changes.into_iter().map(|change| format!("{}: {} to {}", change.name, change.from, change.to)).collect())
    }

    /// What has to be so before a knob can have all of its values.
    fn before(name: &str) -> Vec<(&'static str, &'static str)> {
        let floors =
            ["pool.upload_bytes_min", "pool.download_bytes_min", "pool.answer_bytes_min", "pool.chunk_bytes_min"];
        match name {
            "pool.memory_bytes" => floors.map(|floor| (floor, "0")).into(),
            "pool.skips" => vec![("pool.policy", "lru")],
            _ if floors.contains(&name) => {
                let others = floors.into_iter().filter(|floor| *floor != name).map(|floor| (floor, "0"));
                [("pool.memory_bytes", "17592186044416")].into_iter().chain(others).collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_knob_does_what_it_says() {
        for options in ["", "policy = \"lru\"\nskips = 7", "alternate_bytes = 2000000\nalternate = [\"query a\"]"] {
            contract::check(&pools(options).1, before).expect("sound");
        }
    }

    #[test]
    fn a_policy_takes_its_skips_with_it() {
        let (pools, knobs) = pools("alternate_bytes = 2000000\nalternate = [\"query a\"]");
        let said = set(&knobs, &[("skips", "100")]).expect_err("s3fifo has none");
        assert!(said.contains("set pool.policy=lru before it"), "{said}");
        let changes = set(&knobs, &[("policy", "lru"), ("skips", "100")]).expect("one after the other");
        assert_eq!(changes, ["pool.policy: s3fifo to lru", "pool.skips: 0 to 100"]);
        let both = [pools.main(), pools.alternate().expect("there is one")].map(Pool::policy);
        assert_eq!(both, [Policy::Lru { skips: 100 }; 2]);
        let changes = set(&knobs, &[("policy", "s3fifo")]).expect("sound");
        assert_eq!(changes, ["pool.policy: lru to s3fifo", "pool.skips: 100 to 0"]);
    }

    #[test]
    fn what_the_pool_can_not_be_is_told_in_its_words() {
        let (pools, knobs) = pools("alternate_bytes = 2000000\nalternate = [\"query a\"]");
        let said = set(&knobs, &[("memory_bytes", "1000")]).expect_err("less than the floors");
        assert!(said.contains("pool.memory_bytes can't be 1000 now: the buffer pool's budget"), "{said}");
        let said = set(&knobs, &[("upload_bytes_min", "134217728")]).expect_err("more than all");
        assert!(said.contains("come to"), "{said}");
        let said = set(&knobs, &[("alternate_bytes", "1000")]).expect_err("too few");
        assert!(said.contains("expected 0, or 1048576 and more"), "{said}");
        let query = Named::Query("a".into());
        assert_eq!(pools.of(&query).budget_bytes(), 2_000_000);
        set(&knobs, &[("alternate_bytes", "0")]).expect("sound");
        assert_eq!(pools.of(&query).budget_bytes(), 128 << 20, "it goes to the main pool");
    }
}
