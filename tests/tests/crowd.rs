//! A crowd: many remotes that change the same few rows at the same time as one another and as the database's own application, move
//! them between partitions, swap unique values, delete parents; users join and leave partitions meanwhile. When all is quiet, every
//! remote equals its part of the consolidated database, whatever was refused is on its list, and nobody needed a hand.
//!
//! Each run draws its statements from a seed, which a failure names; `HEADWATER_CROWD_SEED` chooses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater::diff::Report;
use headwater_remote::Remote;
use headwater_testkit::Random;
use headwater_tests::{Kind, World};

const REMOTES: usize = 6;
const ROUNDS: usize = 12;
const REGIONS: [&str; 3] = ["north", "south", "west"];

const MODEL: &str = r#"
name = "crowd"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.account]
conflict = "RULE"
key = ["id"]
partition = "region"
unique = [["code"], ["id", "region"]]
[tables.account.columns]
id = "text not null"
region = "text not null"
code = "int"
name = "text"
note = "text"
[tables.entry]
conflict = "RULE"
key = ["id"]
partition = "region"
references = [{ columns = ["account", "region"], table = "account", target = ["id", "region"] }]
[tables.entry.columns]
id = "text not null"
region = "text not null"
account = "text"
n = "int"
[tables.memo]
conflict = "RULE"
key = ["id", "part"]
[tables.memo.columns]
id = "text not null"
part = "int not null"
text = "text"
"#;

/// The rules that the tables draw from, by the column that `newer_wins` looks at.
fn rules(column: &str) -> [String; 6] {
    let fixed = ["off", "consolidated_wins", "remote_wins", "merge(consolidated)", "merge(remote)"].map(str::to_owned);
    let [off, consolidated, remote, merged, merged_remote] = fixed;
    [off, consolidated, remote, merged, merged_remote, format!("newer_wins({column})")]
}

fn model(random: &mut Random) -> String {
    ["code", "n", "part"].iter().fold(MODEL.to_owned(), |model, column| {
        let rules = rules(column);
        model.replacen("RULE", &rules[random.below(rules.len() as u64) as usize], 1)
    })
}

fn schema() -> String {
    let members: Vec<String> = (0..REMOTES)
        .flat_map(|user| REGIONS.iter().enumerate().map(move |(place, region)| (user, place, region)))
        .filter(|(user, place, _)| user % 3 == *place || user % 2 == 0)
        .map(|(user, _, region)| format!("('u{user}', '{region}')"))
        .collect();
    format!(
        "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
         CREATE TABLE account (id text NOT NULL PRIMARY KEY, region text NOT NULL, code integer UNIQUE, name text, note text,
             UNIQUE (id, region));
         CREATE TABLE entry (id text NOT NULL PRIMARY KEY, region text NOT NULL, account text, n integer CHECK (n < 900),
             FOREIGN KEY (account, region) REFERENCES account (id, region) ON UPDATE CASCADE ON DELETE CASCADE);
         CREATE TABLE memo (id text NOT NULL, part integer NOT NULL, text text, PRIMARY KEY (id, part));
         INSERT INTO member VALUES {};",
        members.join(", ")
    )
}

/// One statement that an application may have: some fail where they run, some are refused later.
fn statement(random: &mut Random) -> String {
    let account = format!("'a{}'", random.below(12));
    let other = format!("'a{}'", random.below(12));
    let entry = format!("'e{}'", random.below(20));
    let (region, n) = (REGIONS[random.below(3) as usize], random.below(1_000));
    match random.below(16) {
        0..3 => format!("INSERT INTO account VALUES ({account}, '{region}', {}, 'name {n}', NULL)", n % 20),
        3 => format!("UPDATE account SET name = 'name {n}' WHERE id = {account}"),
        4 => format!("UPDATE account SET note = 'note {n}' WHERE id = {account}"),
        5 => format!("UPDATE account SET code = {} WHERE id = {account}", n % 20),
        6 => format!("UPDATE account SET region = '{region}' WHERE id = {account}"),
        7 => format!("UPDATE account SET id = {other} WHERE id = {account}"),
        8 => format!("DELETE FROM account WHERE id = {account}"),
        9 => format!(
            "UPDATE account SET code = -1 WHERE id = {account} AND code IS NOT NULL; \
             UPDATE account SET code = 1 - code WHERE id IN ({account}, {other}) AND code IN (0, 1)"
        ),
        10..12 => format!("INSERT INTO entry SELECT {entry}, region, id, {n} FROM account WHERE id = {account}"),
        12 => format!("UPDATE entry SET n = {n} WHERE id = {entry}"),
        13 => format!("DELETE FROM entry WHERE id = {entry}"),
        14 => format!("INSERT INTO memo VALUES ('m{}', {}, 'text {n}')", n % 7, n % 2),
        _ => format!("UPDATE memo SET text = 'text {n}' WHERE id = 'm{}'", n % 7),
    }
}

fn membership(random: &mut Random) -> String {
    let (user, region) = (random.below(REMOTES as u64), REGIONS[random.below(3) as usize]);
    if random.chance(50) {
        format!("DELETE FROM member WHERE user_name = 'u{user}' AND region = '{region}'")
    } else {
        format!("INSERT INTO member VALUES ('u{user}', '{region}')")
    }
}

fn name(place: usize) -> String {
    format!("u{place}")
}

/// One remote: edits offline, then syncs, over and over.
fn life(world: &World, place: usize, remote: &mut Remote, mut random: Random) -> Result<()> {
    for _ in 0..ROUNDS {
        for _ in 0..random.below(9) {
            // What the remote's own constraints refuse is nobody's loss.
            let _ = world.edit(&name(place), &statement(&mut random));
        }
        world.sync(remote).with_context(|| format!("{} at work", name(place)))?;
    }
    Ok(())
}

fn application(world: &World, mut random: Random, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        let sql = if random.chance(10) { membership(&mut random) } else { statement(&mut random) };
        let _ = world.central.execute(&format!("BEGIN; {sql}; COMMIT"));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn crowd(kind: Kind, seed: u64) -> Result<()> {
    let users: Vec<String> = (0..REMOTES).map(name).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let world = World::new(kind, &schema(), &model(&mut Random::seeded(seed ^ 0xaaaa)), &users)?;
    let mut remotes = users.iter().map(|user| world.remote(user, user)).collect::<Result<Vec<_>>>()?;
    let done = AtomicBool::new(false);
    let lives: Vec<Result<()>> = std::thread::scope(|scope| {
        let writer = scope.spawn(|| application(&world, Random::seeded(seed ^ 0xffff), &done));
        let world = &world;
        let threads: Vec<_> = remotes
            .iter_mut()
            .enumerate()
            .map(|(place, remote)| {
                let random = Random::seeded(seed.wrapping_add(place as u64));
                scope.spawn(move || life(world, place, remote, random))
            })
            .collect();
        let lives = threads.into_iter().map(|thread| thread.join().expect("a remote's thread panicked")).collect();
        done.store(true, Ordering::Release);
        writer.join().expect("the application's thread panicked");
        lives
    });
    lives.into_iter().collect::<Result<()>>()?;
    settle(&world, &mut remotes)?;
    for (place, remote) in remotes.iter().enumerate() {
        check(&world, &name(place), remote).with_context(|| name(place))?;
    }
    Ok(())
}

/// Syncs in turn until nothing moves.
fn settle(world: &World, remotes: &mut [Remote]) -> Result<()> {
    for _ in 0..6 {
        let mut moved = 0;
        for remote in remotes.iter_mut() {
            let report = world.sync(remote)?;
            moved += report.changes_up + report.rows_down + report.deletions_down;
        }
        if moved == 0 {
            return Ok(());
        }
    }
    anyhow::bail!("after six rounds of syncs without edits rows still move")
}

fn check(world: &World, name: &str, remote: &Remote) -> Result<()> {
    let diff = world.diff(name)?;
    ensure!(diff.is_equal(true), "{}", told(&diff, remote)?);
    let status = remote.status()?;
    let in_place = remote.set_aside(10_000)?.iter().filter(|change| change.is_in_place).count() as u64;
    ensure!(!status.is_frozen && status.pending == 0, "{status:?}");
    ensure!(status.held <= in_place, "{} rows are held beside {in_place} changes set aside", status.held);
    for pragma in ["integrity_check", "foreign_key_check"] {
        let found = world.rows(name, &format!("PRAGMA {pragma}"))?;
        ensure!(found.is_empty() || found == [[Some("ok".to_owned())]], "{pragma}: {found:?}");
    }
    Ok(())
}

/// What differs, and what is set aside, a line each.
fn told(diff: &Report, remote: &Remote) -> Result<String> {
    let differences = diff.tables.iter().flat_map(|table| {
        table.differences.iter().map(|found| {
            format!("{} {:?} {:?} {:?} {:?}", table.table, found.kind, found.key, found.columns, found.pending)
        })
    });
    let aside = remote.set_aside(100)?.into_iter().map(|a| {
        format!("set aside: {} {} {} ({}) {:?} -> {:?}", a.table, a.reason, a.message, a.is_in_place, a.old, a.new)
    });
    Ok(differences.chain(aside).collect::<Vec<_>>().join("\n"))
}

fn run(kind: Kind) -> Result<()> {
    let seed = match std::env::var("HEADWATER_CROWD_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    crowd(kind, seed).with_context(|| format!("{kind:?} with HEADWATER_CROWD_SEED={seed}"))
}

#[test]
fn a_crowd_on_sqlite() -> Result<()> {
    run(Kind::Sqlite)
}

#[test]
fn a_crowd_on_postgresql() -> Result<()> {
    run(Kind::Postgres)
}
