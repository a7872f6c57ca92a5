//! Users, applications and memberships change what they like, at random.
//!
//! `HEADWATER_PARENTS_SEED` repeats a run of the random story, `HEADWATER_PARENTS_STORIES` (3) makes it longer.

use anyhow::Result;
use headwater_remote::Choice;
use headwater_testkit::Random;
use headwater_tests::Kind;

use super::world;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn a_random_story_on_sqlite() -> Result<()> {
    stories(Kind::Sqlite)
}

#[test]
fn a_random_story_on_postgresql() -> Result<()> {
    stories(Kind::Postgres)
}

/// Users, applications and memberships change what they like; in the end, what could not be had is dropped, and each remote holds its
/// part and nothing else.
fn stories(kind: Kind) -> Result<()> {
    let seeds = match setting("HEADWATER_PARENTS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("HEADWATER_PARENTS_STORIES").unwrap_or(3),
    };
    for seed in seeds {
        story(kind, seed).map_err(|error| error.context(format!("again with HEADWATER_PARENTS_SEED={seed}")))?;
    }
    Ok(())
}

fn story(kind: Kind, seed: u64) -> Result<()> {
    let mut random = Random::seeded(seed);
    let world = world(kind)?;
    let mut remotes = [("ann", world.remote("ann", "ann")?), ("ben", world.remote("ben", "ben")?)];
    let mut history = Vec::new();
    let (starts_afresh, loses_track) = (seed.is_multiple_of(3), seed % 3 == 1);
    for _ in 0..60 {
        match random.below(10) {
            0 => {
                let (user, region) =
                    (["ann", "ben"][random.below(2) as usize], ["north", "south", "east"][random.below(3) as usize]);
                let sql = if random.chance(50) {
                    format!("INSERT INTO member VALUES ('{user}', '{region}') ON CONFLICT DO NOTHING")
                } else {
                    format!("DELETE FROM member WHERE user_name = '{user}' AND region = '{region}'")
                };
                world.central.execute(&sql)?;
                history.push(format!("central: {sql}"));
            }
            1..=3 => {
                let sql = write(&mut random);
                let done = world.central.execute(&sql).is_ok();
                history.push(format!("central: {sql} -- {done}"));
            }
            4..=7 => {
                let name = remotes[random.below(2) as usize].0;
                if loses_track && random.chance(30) {
                    let table = ["shop", "orders", "line"][random.below(3) as usize];
                    // They may be gone since before the last sync.
                    let done = world.untrack(name, table).is_ok();
                    history.push(format!("{name}: {table} is not tracked -- {done}"));
                }
                let sql = write(&mut random);
                let done = world.edit(name, &sql).is_ok();
                history.push(format!("{name}: {sql} -- {done}"));
            }
            _ => {
                let (name, remote) = &mut remotes[random.below(2) as usize];
                if starts_afresh && random.chance(30) {
                    remote.reset()?;
                    history.push(format!("{name}: reset"));
                }
                world.sync(remote).map_err(|error| error.context(history.join("\n")))?;
                history.push(format!("{name}: sync"));
            }
        }
    }
    for (name, remote) in &mut remotes {
        for _ in 0..3 {
            world.sync(remote)?;
            history.push(format!("{name}: sync"));
            remote
                .drop_set_aside(&Choice::All)
                .map_err(|error| anyhow::Error::from(error).context(history.join("\n")))?;
        }
        world.sync(remote)?;
        let status = remote.status()?;
        let left = world.rows(name, "SELECT \"table\", hex(key) FROM hw_held")?;
        let report = world.diff(name)?;
        let is_well = report.is_equal(false) && (status.pending, status.set_aside, status.held) == (0, 0, 0);
        assert!(
            is_well,
            "{kind:?} {name} of seed {seed}: {report:?}\n{status:?}\nheld: {left:?}\n{}",
            history.join("\n")
        );
    }
    Ok(())
}

fn write(random: &mut Random) -> String {
    let pick = |random: &mut Random, of: &[&'static str]| of[random.below(of.len() as u64) as usize];
    let regions = ["'north'", "'south'", "'east'", "NULL"];
    let (shop, order, other) = (
        pick(random, &["n", "m", "s", "e", "x"]),
        pick(random, &["n1", "m1", "s1", "e1", "x1", "x2"]),
        pick(random, &["n1", "m1", "s1", "e1", "x1", "x2"]),
    );
    let (line, region, n) =
        (pick(random, &["n11", "n12", "m11", "s11", "e11", "x11", "x12"]), pick(random, &regions), random.below(110));
    match random.below(13) {
        0 => format!("INSERT INTO shop VALUES ('{shop}', {region}, '{n}')"),
        1 | 2 => format!("UPDATE shop SET region = {region} WHERE id = '{shop}'"),
        3 => format!("UPDATE shop SET note = '{n}' WHERE id = '{shop}'"),
        4 => format!("DELETE FROM shop WHERE id = '{shop}'"),
        5 => format!("INSERT INTO orders VALUES ('{order}', '{shop}', '{n}')"),
        6 => format!("UPDATE orders SET shop = '{shop}' WHERE id = '{order}'"),
        7 => format!("UPDATE orders SET note = '{n}' WHERE id = '{order}'"),
        8 => format!("DELETE FROM orders WHERE id = '{order}'"),
        9 => format!("INSERT INTO line VALUES ('{line}', '{order}', {n})"),
        10 => format!("UPDATE line SET orders = '{other}' WHERE orders = '{order}'"),
        11 => format!("UPDATE line SET n = {n} WHERE id = '{line}'"),
        _ => format!("DELETE FROM line WHERE id = '{line}'"),
    }
}
