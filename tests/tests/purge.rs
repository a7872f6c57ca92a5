//! Servers purge by themselves what is old; a remote that comes later than that is given everything, and loses nothing of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::system::{PurgeRequest, purge, take_note};
use headwater_remote::Choice;
use headwater_testkit::{Postgres, free_port, wait_until};
use headwater_tests::backup::Site;
use headwater_tests::session::{DOWNLOADS, GATE, Session, UPLOADS};
use headwater_tests::{Central, KINDS, Kind, World, read_model};

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

/// Purges whatever can be. In a cluster that others use, what they have open holds the horizon back for a moment.
fn purge_all(world: &World) -> Result<()> {
    let mut connection = world.central.backend()?.connect()?;
    let now = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
    let mut purged = || {
        take_note(&mut *connection)?;
        anyhow::Ok(purge(&mut *connection, &now, &mut || true)?.rows > 0)
    };
    ensure!(wait_until(Duration::from_mins(1), || purged().expect("a purge")), "nothing was purged");
    Ok(())
}

/// The last watermark that a purge leaves of use is the one that has seen just what the horizon has.
#[test]
fn who_is_exactly_at_the_horizon_is_given_what_is_new() -> Result<()> {
    for kind in KINDS {
        // Transactions of other databases in the cluster would move it.
        let (_site, central) = Site::new(kind)?;
        central.execute(SCHEMA)?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &["ann"])?;
        world.start_server()?;
        let names = ["before", "at", "after"];
        let mut remotes = names.map(|name| world.remote(name, "ann"));
        let mut sync = |place: usize| world.sync(remotes[place].as_mut().expect("a remote"));
        for place in 0..names.len() {
            sync(place)?;
        }
        world.central.execute("DELETE FROM item WHERE id = 1")?;
        // With a transaction open, the download and the note have seen the same.
        let open = match &world.central {
            Central::Postgres(url) => Some(Session::open(url)?),
            Central::Sqlite(_) => None,
        };
        open.as_ref().map_or(Ok(()), |open| open.run("BEGIN; UPDATE item SET note = 'late' WHERE id = 4").map(drop))?;
        sync(1)?;
        take_note(&mut *world.central.backend()?.connect()?)?;
        open.as_ref().map_or(Ok(()), |open| open.run("COMMIT").map(drop))?;
        world.central.execute("DELETE FROM item WHERE id = 2")?;
        sync(2)?;
        world.central.execute("UPDATE item SET note = 'last' WHERE id = 3")?;
        let now = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
        let purged = purge(&mut *world.central.backend()?.connect()?, &now, &mut || true)?;
        ensure!(purged.has_moved && purged.rows > 0, "{kind:?}: {purged:?}");
        for (place, name, afresh) in [(0, "before", 1), (1, "at", 0), (2, "after", 0)] {
            world.edit(name, &format!("INSERT INTO item VALUES ({}, 'mine')", 10 + place))?;
            let report = sync(place)?;
            ensure!(
                (report.afresh, report.restarted, report.changes_up) == (afresh, false, 1),
                "{kind:?}, {name}: {report:?}"
            );
            ensure!(
                name == "before" || report.deletions_down == u64::from(name == "at"),
                "{kind:?}, {name}: {report:?}"
            );
            let diff = world.diff(name)?;
            ensure!(diff.is_equal(false), "{kind:?}, {name}: {}", serde_json::to_string(&diff)?);
        }
        for place in 0..names.len() {
            ensure!(sync(place)?.afresh == 0, "{kind:?}: once");
        }
    }
    Ok(())
}

const GATED_SCHEMA: &str = "CREATE TABLE item (id integer NOT NULL PRIMARY KEY, area text NOT NULL);
    INSERT INTO item VALUES (1, 'all'), (2, 'all'), (3, 'all')";
const GATED_MODEL: &str = r#"
name = "gated"
version = 1
[partitions.area]
columns = { area = "text" }
members = "SELECT 'all' WHERE gate()"
[tables.item]
key = ["id"]
partition = "area"
columns = { id = "int not null", area = "text not null" }
"#;

/// Between its greeting and its snapshot, while its upload waits; and between its snapshot and its first row.
#[test]
fn a_purge_between_the_steps_of_a_sync() -> Result<()> {
    let cluster = Postgres::start()?;
    for (step, afresh, then_afresh) in [(UPLOADS, 1, 0), (DOWNLOADS, 0, 1)] {
        let central = Central::Postgres(cluster.create_database()?);
        central.execute(&format!("{GATE}{GATED_SCHEMA}"))?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(GATED_MODEL)?, &["ann"])?;
        world.start_server()?;
        let mut late = world.remote("late", "ann")?;
        world.sync(&mut late)?;
        world.edit("late", "INSERT INTO item VALUES (10, 'all')")?;
        world.central.execute(
            "INSERT INTO item VALUES (5, 'all'); DELETE FROM item WHERE id = 1; DELETE FROM item WHERE id = 5",
        )?;
        let (keeper, watcher) = (Session::open(&world.central.url())?, Session::open(&world.central.url())?);
        keeper.hold(step)?;
        let report = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| world.sync(&mut late));
            let waits = watcher.wait_for_a_waiter(|| syncing.is_finished());
            let purged = world.central.execute("DELETE FROM item WHERE id = 3").and_then(|()| purge_all(&world));
            keeper.let_pass(step)?;
            let report = syncing.join().expect("a sync does not panic");
            ensure!(waits?, "the sync did not wait");
            purged.and(report)
        })?;
        ensure!((report.changes_up, report.afresh) == (1, afresh), "{step}: {report:?}");
        ensure!(
            world.diff("late")?.is_equal(false) == (step == UPLOADS),
            "{step}: its snapshot has the row or has not"
        );
        world.central.execute("DELETE FROM item WHERE id = 2")?;
        let report = world.sync(&mut late)?;
        ensure!(report.afresh == then_afresh, "{step}: {report:?}");
        ensure!(world.diff("late")?.is_equal(false), "{step}");
    }
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
