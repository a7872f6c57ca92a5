//! What happens to the database while a file is on its way to a new remote: it is put back, its tables are altered, another version is served,
//! its records are purged. The transfer is held open for it; then it goes on, or its connection is cut and the rest is asked for.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use headwater_consolidated::system::{self, PurgeRequest};
use headwater_consolidated::track;
use headwater_remote::http::{Credentials, Server};
use headwater_remote::ready::Taken;
use headwater_remote::{CreateOptions, Remote, SyncReport};
use headwater_testkit::proxy::{Direction, FaultProxy};
use headwater_testkit::{Plan, wait_until};
use headwater_tests::backup::Site;
use headwater_tests::{KINDS, World, read_model};

use super::breaks::beside;
use super::{ANN, BOB, CAT, MODEL, SCHEMA, USERS, create, fill, world};

const ITEMS: u32 = 6_000;
/// Bytes of the connection that pass before the event: the promise, and some of the file.
const HELD_AFTER: u64 = 20_000;

/// How the transfer goes on after the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    IsCut,
}

struct Stage {
    world: World,
    proxy: FaultProxy,
}

impl Stage {
    fn new(world: World) -> Result<Stage> {
        let proxy = FaultProxy::start(world.address()?)?;
        Ok(Stage { world, proxy })
    }

    /// Has a file made, and another remote take it; lets this happen when some of its bytes have come.
    fn take_while(
        &mut self,
        name: &str,
        then: Then,
        event: impl FnOnce(&mut Stage) -> Result<()>,
    ) -> Result<(Remote, Option<Taken>)> {
        self.proxy.set_target(self.world.address()?)?;
        self.warm(name)?;
        self.proxy.next([Plan::clean().hold(Direction::Down, HELD_AFTER)]);
        let url = format!("http://{}", self.proxy.address());
        let server =
            Server { url: url.clone(), credentials: Credentials::Token(self.world.token(CAT)?), ca_file: None };
        let (path, model) = (self.world.path(name), self.world.plan.model.public());
        let (made, held) = std::thread::scope(|scope| {
            let making = scope.spawn(|| Remote::create_from(&path, &model, &CreateOptions::new(&url, CAT), &server));
            let some_came = || self.proxy.connections().last().is_some_and(|traffic| traffic.down >= HELD_AFTER);
            let is_held =
                wait_until(Duration::from_mins(1), || some_came() || making.is_finished()) && !making.is_finished();
            let happened = event(self);
            if then == Then::IsCut {
                self.proxy.cut_all();
            }
            self.proxy.go_clean();
            let made = making.join().map_err(|_| anyhow!("the attempt panicked"));
            happened.and_then(|()| Ok((made??, is_held)))
        })?;
        ensure!(held, "{name}: no transfer was held");
        ensure!(beside(&self.world, name)?.is_empty(), "{name}: nothing is left beside it");
        Ok(made)
    }

    /// Has a file made.
    fn warm(&self, name: &str) -> Result<()> {
        create(&self.world, &format!("{name} first"), ANN)?;
        let (_, taken) = create(&self.world, &format!("{name} second"), BOB)?;
        taken.map(drop).with_context(|| format!("{name}: the second that asks is given a file"))
    }

    /// The remote, with a change of its own, becomes in a few syncs what an ordinary one is.
    fn is_ordinary(&self, name: &str, mut remote: Remote) -> Result<SyncReport> {
        self.world.edit(name, &format!("INSERT INTO note VALUES ('{name}', 'pending')"))?;
        remote.set_server(&self.world.server_url()?, CAT)?;
        let first = self.world.sync(&mut remote)?;
        self.world.sync(&mut remote)?;
        let arrived = self.world.central.rows(&format!("SELECT text FROM note WHERE id = '{name}'"))?;
        ensure!(arrived == [[Some("pending".to_owned())]], "{name}: {arrived:?}");
        ensure!(remote.set_aside(1)?.is_empty(), "{name}: nothing is set aside");
        let report = self.world.diff(name)?;
        ensure!(report.is_equal(false), "{name}: {}", serde_json::to_string(&report)?);
        Ok(first)
    }
}

fn both_ways(mut stage: Stage, test: impl Fn(&mut Stage, Then, &str) -> Result<()>) -> Result<()> {
    for then in [Then::GoesOn, Then::IsCut] {
        let name = format!("{then:?}");
        test(&mut stage, then, &name).with_context(|| format!("{:?} {then:?}", stage.world.central))?;
    }
    Ok(())
}

fn on_both(test: impl Fn(&mut Stage, Then, &str) -> Result<()>) -> Result<()> {
    KINDS.into_iter().try_for_each(|kind| both_ways(Stage::new(world(kind, ITEMS)?)?, &test))
}

/// What was read of a life that is over is not the beginning of a remote.
#[test]
fn a_restore_during_the_transfer() -> Result<()> {
    for kind in KINDS {
        let (site, central) = Site::new(kind)?;
        central.execute(SCHEMA)?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &USERS)?;
        fill(&world, ITEMS)?;
        world.config.ready_bytes_min = 0;
        world.start_server()?;
        both_ways(Stage::new(world)?, |stage, then, name| {
            let backup = site.back_up()?;
            stage
                .world
                .central
                .execute("UPDATE item SET body = 'lost' WHERE id < 100; DELETE FROM item WHERE id = 200")?;
            let (remote, taken) = stage.take_while(name, then, |stage| {
                site.put_back(&backup)?;
                stage.world.central.execute("UPDATE item SET body = 'after' WHERE id = 300")
            })?;
            ensure!(taken.is_some() == (then == Then::GoesOn), "{taken:?}");
            let report = stage.is_ordinary(name, remote)?;
            ensure!(report.restarted == taken.is_some() && report.lost.is_none(), "{report:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A column of the same name and type, with other values: no record of change tracking says so.
#[test]
fn a_table_is_altered_during_the_transfer() -> Result<()> {
    on_both(|stage, then, name| {
        let (remote, taken) = stage.take_while(name, then, |stage| {
            stage.world.central.execute("ALTER TABLE item DROP COLUMN body; ALTER TABLE item ADD COLUMN body TEXT")?;
            track::track(&mut *stage.world.central.backend()?.connect()?, &stage.world.plan).map(drop)?;
            stage.world.central.execute("UPDATE item SET body = 'after' WHERE id = 300")
        })?;
        ensure!(then == Then::IsCut || taken.is_some(), "{taken:?}");
        stage.is_ordinary(name, remote).map(drop)
    })
}

/// Servers of another version take the place of the one that sends.
#[test]
fn another_version_during_the_transfer() -> Result<()> {
    on_both(|stage, then, name| {
        let version = if then == Then::GoesOn { 2 } else { 3 };
        let (remote, taken) = stage.take_while(name, then, |stage| {
            let column = format!("extra{version}");
            stage.world.central.execute(&format!("ALTER TABLE item ADD COLUMN {column} TEXT"))?;
            let next = MODEL
                .replace("version = 1", &format!("version = {version}"))
                .replace("body = \"text\"", &format!("body = \"text\", {column} = \"text\""));
            let next = headwater_consolidated::Plan::new(read_model(&next)?);
            track::track(&mut *stage.world.central.backend()?.connect()?, &next)?;
            stage.world.beside.push(next);
            // It does not have the file.
            let other = stage.world.start_another_server(None)?;
            stage.proxy.set_target(other)?;
            stage
                .world
                .central
                .execute("UPDATE item SET body = 'after' WHERE id = 300; DELETE FROM item WHERE id = 400")
        })?;
        ensure!(taken.is_some() == (then == Then::GoesOn), "{taken:?}");
        stage.is_ordinary(name, remote).map(drop)
    })
}

/// Then nobody can tell what has changed since.
#[test]
fn a_purge_during_the_transfer() -> Result<()> {
    on_both(|stage, then, name| {
        let (remote, taken) = stage.take_while(name, then, |stage| {
            stage
                .world
                .central
                .execute("UPDATE item SET body = 'after' WHERE id = 300; DELETE FROM item WHERE id = 402")?;
            let mut connection = stage.world.central.backend()?.connect()?;
            system::take_note(&mut *connection)?;
            let all = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
            ensure!(system::purge(&mut *connection, &all, &mut || true)?.rows > 0, "something is purged");
            Ok(())
        })?;
        ensure!(taken.is_some() == (then == Then::GoesOn), "{taken:?}");
        let report = stage.is_ordinary(name, remote)?;
        ensure!((report.afresh > 0) == taken.is_some(), "{report:?}");
        Ok(())
    })
}
