//! Servers purge by themselves what is old; a remote that comes later than that is given everything, and loses nothing of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::system::{PurgeRequest, purge, take_note};
use headwater_remote::Choice;
use headwater_testkit::free_port;
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "
    CREATE TABLE item (id integer NOT NULL PRIMARY KEY, note text);
    INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')";

const MODEL: &str = r#"
name = "purge"
version = 1
[tables.item]
conflict = "remote_wins"
key = ["id"]
columns = { id = "int not null", note = "text" }
"#;

#[test]
fn two_servers_purge_and_a_late_remote_starts_afresh() -> Result<()> {
    for kind in KINDS {
        story(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// A remote that is older than what is kept, but whose database is the same: it is told why so much comes.
#[test]
fn who_is_behind_the_horizon_is_told_why_tables_come_afresh() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        let mut late = world.remote("late", "ann")?;
        ensure!(world.sync(&mut late)?.afresh == 0, "{kind:?}: it held nothing");
        world.central.execute("DELETE FROM item WHERE id = 1")?;
        purge_all(&world)?;
        let report = world.sync(&mut late)?;
        ensure!((report.afresh, report.restarted) == (1, false), "{kind:?}: {report:?}");
        ensure!(world.diff("late")?.is_equal(false), "{kind:?}");
        ensure!(world.sync(&mut late)?.afresh == 0, "{kind:?}: once");
    }
    Ok(())
}

/// Purges whatever can be.
fn purge_all(world: &World) -> Result<()> {
    let mut connection = world.central.backend()?.connect()?;
    take_note(&mut *connection)?;
    let now = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
    ensure!(purge(&mut *connection, &now, &mut || true)?.rows > 0, "nothing was purged");
    Ok(())
}

const REGIONS: &str = "
    CREATE TABLE member (login text, region text);
    CREATE TABLE orders (id text NOT NULL PRIMARY KEY, region text);
    CREATE TABLE line (id text NOT NULL PRIMARY KEY, orders text REFERENCES orders ON DELETE CASCADE);
    CREATE INDEX line_orders ON line (orders);
    INSERT INTO member VALUES ('ann', 's'), ('ann', 'w');
    INSERT INTO orders VALUES ('o1', 's'), ('o2', 's'), ('o3', 'w'), ('o4', 's');
    INSERT INTO line VALUES ('l1', 'o1'), ('l2', 'o2'), ('l3', 'o3'), ('l4', 'o4')";

const REGIONAL: &str = r#"
name = "regions"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE login = :s.user"
[tables.orders]
key = ["id"]
partition = "region"
columns = { id = "text not null", region = "text" }
[tables.line]
key = ["id"]
partition = { through = "orders" }
references = [{ columns = ["orders"], table = "orders", on_delete = "cascade" }]
columns = { id = "text not null", orders = "text" }
"#;

/// What is left of partitions when only what is there now is told: rows that lost their parent here, where foreign keys were off; a row
/// that was moved from a partition that stays into one that is left.
#[test]
fn who_is_behind_the_horizon_keeps_nothing_that_is_gone() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, REGIONS, REGIONAL, &["ann"])?;
        let mut late = world.remote("late", "ann")?;
        world.sync(&mut late)?;
        world.edit(
            "late",
            "PRAGMA foreign_keys = OFF; DELETE FROM orders WHERE id = 'o1'; UPDATE orders SET region = 'w' WHERE id = 'o4'",
        )?;
        world.central.execute("DELETE FROM orders WHERE id IN ('o1', 'o4'); DELETE FROM member WHERE region = 'w'")?;
        purge_all(&world)?;
        let report = world.sync(&mut late)?;
        ensure!((report.afresh, report.not_stored) == (2, 0), "{kind:?}: {report:?}");
        ensure!(late.status()?.held == 0, "{kind:?}: {:?}", late.status()?);
        ensure!(world.diff("late")?.is_equal(false), "{kind:?}: {:?}", world.diff("late")?);
        let rows = world.rows("late", "SELECT id FROM orders UNION ALL SELECT id FROM line ORDER BY id")?.concat();
        ensure!(rows == ["l2", "o2"].map(|id| Some(id.to_owned())), "{kind:?}: {rows:?}");
        let aside = late.set_aside(9)?;
        ensure!(aside.len() == 1 && aside[0].key.contains("o4"), "{kind:?}: {aside:?}");
        // Nothing comes back.
        world.central.execute("INSERT INTO orders VALUES ('o1', 's'), ('o4', 's')")?;
        world.sync(&mut late)?;
        late.drop_set_aside(&Choice::All)?;
        ensure!(world.diff("late")?.is_equal(false), "{kind:?}: {:?}", world.diff("late")?);
    }
    Ok(())
}

fn story(kind: Kind) -> Result<()> {
    let mut world = World::unserved(kind, SCHEMA, MODEL, &["ann"])?;
    world.config.listen.set_port(free_port()?);
    world.start_server()?;
    let mut late = world.remote("late", "ann")?;
    world.sync(&mut late)?;
    world.stop_server();
    world.edit("late", "INSERT INTO item VALUES (10, 'mine'); UPDATE item SET note = 'mine' WHERE id = 4; DELETE FROM item WHERE id = 3")?;
    world.central.execute("DELETE FROM item WHERE id = 1; UPDATE item SET note = 'theirs' WHERE id IN (2, 3)")?;
    // From now on notes are taken, and purges tried, every second, by two servers.
    world.config.note_ms = 1_000;
    world.start_server()?;
    let second = world.start_another_server(None)?;
    let deadline = Instant::now() + Duration::from_mins(2);
    let mut days = 2_000;
    // The only note that the remote knows is older than all of them, and goes too.
    world.central.execute(match kind {
        Kind::Sqlite => "UPDATE headwater_note SET taken_at = '2001-01-01 00:00:00.000Z' WHERE length(snapshot) = 0",
        Kind::Postgres => "UPDATE headwater.note SET taken_at = '2001-01-01' WHERE length(snapshot) = 0",
    })?;
    while side_rows(&world, kind)? > 0 {
        ensure!(Instant::now() < deadline, "nothing was purged");
        days -= 2;
        age_notes(&world, kind, days)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    world.stop_another_server(second);
    let report = world.sync(&mut late)?;
    ensure!(report.restarted && report.changes_up == 3 && report.rows_down + report.deletions_down >= 3, "{report:?}");
    ensure!(late.status()?.pending == 0, "{:?}", late.status()?);
    let held = world.rows("late", "SELECT id, note FROM item ORDER BY id")?;
    let expected = [("2", "theirs"), ("4", "mine"), ("10", "mine")];
    let expected: Vec<Vec<Option<String>>> =
        expected.iter().map(|(id, note)| vec![Some((*id).to_owned()), Some((*note).to_owned())]).collect();
    ensure!(held == expected, "{held:?}");
    let diff = world.diff("late")?;
    ensure!(diff.is_equal(false), "{diff:?}");
    let quiet = world.sync(&mut late)?;
    ensure!((quiet.rows_down, quiet.deletions_down) == (0, 0), "again: {quiet:?}");
    Ok(())
}

fn side_rows(world: &World, kind: Kind) -> Result<u64> {
    let rows = world.central.rows(match kind {
        Kind::Sqlite => "SELECT count(*) FROM headwater_side_item",
        Kind::Postgres => "SELECT count(*) FROM headwater.side_item",
    })?;
    rows.first().and_then(|row| row.first()?.as_ref()?.parse().ok()).context("a number")
}

/// As if the servers had run for years and took the last note so many days ago. What is the horizon already stays as old as it was.
fn age_notes(world: &World, kind: Kind, days: u32) -> Result<()> {
    world.central.execute(&match kind {
        Kind::Sqlite => format!(
            "UPDATE headwater_note SET taken_at = strftime('%Y-%m-%d %H:%M:%f', 'now', '-{days} days') || 'Z' \
             WHERE length(snapshot) > 0 AND note NOT IN (SELECT note FROM headwater_horizon)"
        ),
        Kind::Postgres => format!(
            "UPDATE headwater.note SET taken_at = clock_timestamp() - interval '{days} days' \
             WHERE length(snapshot) > 0 AND note NOT IN (SELECT note FROM headwater.horizon)"
        ),
    })
}
