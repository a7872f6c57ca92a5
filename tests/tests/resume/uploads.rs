//! Uploads that go in pieces, and break.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use headwater_remote::Remote;
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{Child, FaultProxy, Plan, Random, headwater_binary};
use headwater_tests::{KINDS, Kind, World};

use crate::{LONG, MODEL, SCHEMA, Stage, rows};

impl Stage {
    /// A remote that is in step, with this many rows pending.
    pub(crate) fn pending(&mut self, count: u64) -> Result<(String, Remote)> {
        // What others before it sent is not to be downloaded first.
        self.world.central.execute("DELETE FROM note")?;
        let (name, mut remote) = self.remote()?;
        self.proxy.go_clean();
        self.sync(&mut remote, 1)?;
        self.world.edit(&name, &rows(&format!("{name} "), count))?;
        Ok((name, remote))
    }

    /// Every row went up once, and the remote is as the head.
    pub(crate) fn is_whole(&self, name: &str, count: u64) -> Result<()> {
        let rows = self.world.central.rows(&format!("SELECT count(*) FROM note WHERE id LIKE '{name} %'"))?;
        ensure!(rows == [[Some(count.to_string())]], "the head has {rows:?} of {count} rows");
        self.is_equal(name)
    }

    /// What a sync with so many rows sends up a clean line.
    pub(crate) fn whole_upload(&mut self, count: u64) -> Result<u64> {
        let (name, mut remote) = self.pending(count)?;
        let (bytes, report) = self.carried(Direction::Up, || Ok(self.sync(&mut remote, 1)?))?;
        ensure!((report.changes_up, report.refused, report.conflicts) == (count, 0, 0), "{report:?}");
        self.is_whole(&name, count)?;
        Ok(bytes)
    }
}

#[test]
fn ten_cuts_cost_an_upload_of_20_mb_less_than_a_fifth() -> Result<()> {
    let mut stage = Stage::new(Kind::Sqlite, 0)?;
    let whole = stage.whole_upload(25_000)?;
    ensure!(whole > 20_000_000, "{whole} bytes");
    let mut random = Random::seeded(whole);
    let (name, mut remote) = stage.pending(25_000)?;
    let cuts: Vec<Plan> =
        (0..10).map(|_| Plan::clean().cut(Direction::Up, random.below(whole / 10), Cut::Reset)).collect();
    stage.proxy.next(cuts);
    let (up, report) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 20)?))?;
    assert_eq!((report.changes_up, report.failures), (25_000, 10), "{report:?}");
    eprintln!("{up} bytes went up for an upload of {whole}, through 10 cuts");
    assert!(up < whole * 12 / 10, "{up} bytes went up, the upload has {whole}");
    stage.is_whole(&name, 25_000)
}

/// Where each request of the pieces begins, within its head, and within its body.
#[test]
fn an_upload_cut_at_every_piece() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::with(kind, 0, |config| config.piece_bytes = 200_000)?;
        let (_, mut remote) = stage.pending(1_000)?;
        stage.proxy.record(true);
        let before = stage.proxy.connections().len();
        let (whole, _) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 1)?))?;
        stage.proxy.record(false);
        let connections = stage.proxy.connections();
        ensure!(connections.len() == before + 1, "all went over one connection");
        let (sent, _) = connections.last().and_then(|traffic| traffic.recorded.clone()).context("recorded")?;
        let heads = sent.windows(12).enumerate().filter(|(_, bytes)| bytes.ends_with(b" /v1/upload/"));
        let pieces: Vec<u64> = heads.map(|(place, _)| place as u64).collect();
        ensure!(pieces.len() > 3, "{} pieces", pieces.len());
        for (number, start) in pieces.iter().enumerate() {
            for at in [*start, start + 40, start + 100_000] {
                if at + 1_000 > sent.len() as u64 {
                    continue;
                }
                let (name, mut remote) = stage.pending(1_000)?;
                let cut = if number % 2 == 0 { Cut::Reset } else { Cut::Fin };
                stage.proxy.next([Plan::clean().cut(Direction::Up, at, cut)]);
                let (up, report) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 3)?))?;
                assert_eq!((report.failures, report.refused), (1, 0), "{kind:?} cut at {at}: {report:?}");
                assert!(up < whole + 210_000, "{kind:?} cut at {at}: {up} bytes went up of {whole}");
                stage.is_whole(&name, 1_000).with_context(|| format!("{kind:?} cut at {at}"))?;
            }
        }
    }
    Ok(())
}

/// The answer was lost, the upload is applied: what was sent is not sent again, nor applied again.
#[test]
fn a_lost_receipt_costs_no_second_upload() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 0)?;
        let whole = stage.whole_upload(2_000)?;
        let (_, mut remote) = stage.pending(2_000)?;
        let (answers, _) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 1)?))?;
        let (name, mut remote) = stage.pending(2_000)?;
        // The sync's answer is the last, and ends with a few frames: most of them don't come.
        stage.proxy.next([Plan::clean().cut(Direction::Down, answers - 200, Cut::Reset)]);
        let broken = stage.sync(&mut remote, 1);
        ensure!(broken.is_err(), "the answer came whole: {broken:?}");
        ensure!(remote.status()?.is_frozen, "without a receipt the upload is not done");
        let (up, report) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 20)?))?;
        assert_eq!((report.changes_up, report.conflicts), (2_000, 0), "{kind:?}");
        assert!(up < whole / 10, "{kind:?}: {up} bytes went up again of {whole}");
        stage.is_whole(&name, 2_000)?;
    }
    Ok(())
}

#[test]
fn pieces_broken_at_random_bytes() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::with(kind, 0, |config| config.piece_bytes = 300_000)?;
        let whole = stage.whole_upload(1_000)?;
        let mut random = Random::seeded(whole);
        for round in 0..9 {
            let (name, mut remote) = stage.pending(1_000)?;
            let at = random.below(whole);
            let plan = match round % 3 {
                0 => Plan::clean().flip(Direction::Up, at),
                1 => Plan::clean().cut(Direction::Up, at, Cut::Fin),
                _ => Plan::clean().cut(Direction::Up, at, Cut::Reset),
            };
            stage.proxy.next([plan]);
            stage.sync(&mut remote, 20).with_context(|| format!("{kind:?}, round {round}, broken at {at}"))?;
            // What was damaged may have been cut smaller, and then it is more than one sync.
            stage.sync(&mut remote, 20)?;
            stage.is_whole(&name, 1_000).with_context(|| format!("{kind:?}, round {round}, broken at {at}"))?;
        }
    }
    Ok(())
}

/// Another server does not know the ticket: the pieces start again there.
#[test]
fn a_server_that_does_not_know_the_ticket() -> Result<()> {
    for kind in KINDS {
        let mut stage = Stage::new(kind, 0)?;
        let whole = stage.whole_upload(4_000)?;
        let (name, mut remote) = stage.pending(4_000)?;
        stage.proxy.next([Plan::clean().cut(Direction::Up, whole / 2, Cut::Fin)]);
        let broken = stage.sync(&mut remote, 1);
        ensure!(broken.is_err(), "the upload went whole: {broken:?}");
        let other = stage.world.start_another_server(None)?;
        stage.proxy.set_target(other)?;
        let (up, report) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 1)?))?;
        assert_eq!((report.changes_up, report.failures), (4_000, 0), "{kind:?}: {report:?}");
        assert!(up > whole * 9 / 10, "{kind:?}: all of it goes to the other server, {up} bytes of {whole}");
        stage.is_whole(&name, 4_000)?;
    }
    Ok(())
}

/// The server is killed in the midst of the pieces, and one started in its place.
#[test]
fn a_killed_server_loses_the_pieces_and_nothing_else() -> Result<()> {
    let world = World::unserved(Kind::Sqlite, SCHEMA, MODEL, &["ann"])?;
    let (mut server, address) = serve(&world)?;
    let proxy = FaultProxy::start(address)?;
    let mut stage = Stage { world, proxy, made: 0 };
    let (name, mut remote) = stage.pending(4_000)?;
    stage.proxy.next([Plan::clean().cut(Direction::Up, 2_500_000, Cut::Fin)]);
    let broken = stage.sync(&mut remote, 1);
    ensure!(broken.is_err(), "the upload went whole: {broken:?}");
    server.kill()?;
    let (_server, address) = serve(&stage.world)?;
    stage.proxy.set_target(address)?;
    let report = stage.sync(&mut remote, 3)?;
    assert_eq!((report.changes_up, report.refused), (4_000, 0), "{report:?}");
    stage.is_whole(&name, 4_000)
}

fn serve(world: &World) -> Result<(Child, std::net::SocketAddr)> {
    let (config, model) = (world.path("headwater").with_extension("toml"), world.path("model").with_extension("toml"));
    std::fs::write(&model, MODEL)?;
    let text = format!("models = ['{}']\n[database]\nurl = '{}'\n", model.display(), world.central.url());
    std::fs::write(&config, text)?;
    let mut command = Command::new(headwater_binary()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
    let mut server = Child::spawn("headwater serve", &mut command)?;
    let line = server.wait_for_line("listening on http://", LONG)?;
    let address = line.trim().rsplit('/').next().context("an address")?.parse()?;
    Ok((server, address))
}
