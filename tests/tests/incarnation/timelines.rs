//! Timelines of a cluster: a primary that ran on beside its promoted standby is rewound to follow it (`pg_rewind`) and takes over again, and a
//! cluster is recovered to a point in time, between syncs and between the steps of one.

use anyhow::{Context, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, Error, Remote, SyncOptions, SyncReport};
use headwater_testkit::{Postgres, wait_until};
use headwater_tests::session::{DOWNLOADS, GATE, Session, UPLOADS};
use headwater_tests::{Central, World, read_model};

use super::{NAMES, Stage, stage_on};

const DATABASE: &str = "test_0";

/// A primary that can be rewound.
fn primary() -> Result<Postgres> {
    Postgres::builder().set("wal_log_hints", "on").set("wal_keep_size", "256MB").start()
}

/// A standby that has all of this, and gets nothing more.
fn left_behind(primary: &Postgres) -> Result<Postgres> {
    let standby = primary.standby()?;
    standby.catch_up(primary)?;
    standby.cut_off()?;
    Ok(standby)
}

/// One attempt, as its user.
fn attempt(world: &World, remote: &mut Remote, attempts_max: u32) -> Result<Result<SyncReport, Error>> {
    let user = remote.status()?.user;
    let mut options = SyncOptions::new(Credentials::Token(world.token(&user)?));
    options.config.attempts_max = attempts_max;
    Ok(remote.sync(&mut options))
}

impl Stage {
    /// Serves another database from now on.
    fn go_to(&mut self, cluster: &Postgres) -> Result<()> {
        self.world.central = Central::Postgres(cluster.url(DATABASE));
        self.restart_server()
    }

    /// The database can only be read: each remote is told to come back, and nothing of it has changed.
    fn is_turned_away(&mut self) -> Result<()> {
        for (remote, name) in self.remotes.iter_mut().zip(NAMES) {
            let before = remote.status()?;
            self.world.edit(name, &format!("INSERT INTO note VALUES ('{name} turned away', 'x')"))?;
            let error = attempt(&self.world, remote, 1)?.err().context("a database that is only read")?;
            ensure!(error.code() == "database_unavailable", "{error:?}");
            let after = remote.status()?;
            ensure!(after.pending == before.pending + 1, "{before:?} {after:?}");
        }
        Ok(())
    }

    /// What the database knows of its incarnation and of each remote.
    fn known(&self) -> Result<Vec<Vec<Option<String>>>> {
        self.world.central.rows(
            "SELECT encode(i.incarnation, 'hex'), encode(r.remote_id, 'hex'), r.syncs, r.upload_sequence \
             FROM headwater.identity i, headwater.remote r ORDER BY 2",
        )
    }
}

#[test]
fn a_primary_is_rewound_and_takes_over_again() -> Result<()> {
    let first = primary()?;
    let mut stage = stage_on(&first)?;
    let second = left_behind(&first)?;
    let incarnation = stage.known()?[0][0].clone();
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    second.promote()?;
    stage.go_to(&second)?;
    stage.advance()?;
    stage.check_lost()?;
    let known = stage.known()?;
    ensure!(known.len() == NAMES.len() && known.iter().all(|row| row[0] != incarnation), "{known:?}");

    // The first follows the second now. What it had alone is gone, and it can only be read.
    first.rewind(&second)?;
    first.catch_up(&second)?;
    stage.go_to(&first)?;
    ensure!(stage.known()? == known, "it has all of the second: {:?}", stage.known()?);
    stage.is_turned_away()?;
    second.stop()?;
    first.promote()?;
    for report in stage.settle()? {
        ensure!(!report.restarted && report.lost.is_none(), "it lost nothing of the second: {report:?}");
        ensure!(report.rows_down < 10, "what was seen does not come again: {report:?}");
    }
    for name in NAMES {
        stage.head_has(&format!("{name} turned away"), "x")?;
        stage.is_equal(name)?;
    }
    ensure!(
        stage.known()?.iter().map(|row| &row[0]).eq(known.iter().map(|row| &row[0])),
        "the incarnation of the second"
    );
    stage.round("again")
}

/// Remotes sync now with the one and now with the other.
#[test]
fn two_primaries_at_once() -> Result<()> {
    let first = primary()?;
    let mut stage = stage_on(&first)?;
    let second = left_behind(&first)?;
    second.promote()?;
    let mut written = Vec::new();
    for (turn, (cluster, places)) in [
        (&first, vec![0, 1]),
        (&second, vec![0]),
        (&first, vec![1, 0]),
        (&second, vec![0, 1]),
        (&first, vec![1]),
        (&second, vec![1]),
    ]
    .into_iter()
    .enumerate()
    {
        stage.go_to(cluster)?;
        stage.world.central.execute(&format!("INSERT INTO note VALUES ('head {turn}', 'x')"))?;
        for place in places {
            let id = format!("{} turn {turn}", NAMES[place]);
            stage.world.edit(NAMES[place], &format!("INSERT INTO note VALUES ('{id}', 'x')"))?;
            stage.sync(place)?;
            let upload = stage.world.rows(NAMES[place], "SELECT upload_sequence FROM hw_state")?[0][0].clone();
            written.push((place, id, upload.context("a number")?.parse::<u64>()?));
        }
    }
    first.rewind(&second)?;
    first.catch_up(&second)?;
    second.stop()?;
    first.promote()?;
    stage.go_to(&first)?;
    for _ in 0..2 {
        stage.sync_all()?;
        for remote in &mut stage.remotes {
            remote.retry(&Choice::All)?;
        }
    }
    stage.sync_all()?;
    for (name, remote) in NAMES.into_iter().zip(&stage.remotes) {
        ensure!(remote.set_aside(10)?.is_empty(), "{name}: {:?}", remote.set_aside(10)?);
        stage.is_equal(name)?;
    }
    // What a remote was told to be lost and found again at the first primary is not set aside once more when it is lost for good.
    let mut gone = 0;
    for (place, id, upload) in written {
        if stage.head_has(&id, "x").is_err() {
            let lost = stage.remotes[place].lost(10)?;
            ensure!(lost.iter().any(|lost| (lost.first..=lost.last).contains(&upload)), "{id} is not named: {lost:?}");
            gone += 1;
        }
    }
    ensure!(gone == 3, "{gone} rows are gone");
    stage.round("after")
}

#[test]
fn a_cluster_is_recovered_to_a_point_in_time() -> Result<()> {
    let cluster = Postgres::builder().archive().start()?;
    let backup = cluster.base_backup()?;
    let mut stage = stage_on(&cluster)?;
    stage.world.central.execute("SELECT pg_create_restore_point('before')")?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    cluster.recover(&backup, "before")?;
    stage.is_turned_away()?;
    cluster.end_recovery()?;
    stage.advance()?;
    stage.check_lost()?;
    stage.head_has("one turned away", "x")
}

const GATED_SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, area TEXT NOT NULL);
    CREATE TABLE arrival (id TEXT NOT NULL);
    CREATE FUNCTION arrives() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO arrival VALUES (new.id); RETURN NULL; END';
    CREATE TRIGGER arrives AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION arrives();";
const GATED_MODEL: &str = r#"
name = "gated"
version = 1
[partitions.area]
columns = { area = "text" }
members = "SELECT 'all' WHERE gate()"
[tables.note]
conflict = "remote_wins"
key = ["id"]
partition = "area"
columns = { id = "text not null", area = "text not null" }
"#;

/// A remote with a first upload, on a database whose steps can be held.
struct Gated {
    world: World,
    remote: Remote,
}

impl Gated {
    fn new(cluster: &Postgres) -> Result<Gated> {
        let central = Central::Postgres(cluster.create_database()?);
        central.execute(&format!("{GATE}{GATED_SCHEMA}"))?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(GATED_MODEL)?, &["ann"])?;
        world.start_server()?;
        let remote = world.remote("ann", "ann")?;
        let mut gated = Gated { world, remote };
        gated.insert("early")?;
        gated.world.sync(&mut gated.remote)?;
        Ok(gated)
    }

    fn insert(&self, id: &str) -> Result<()> {
        self.world.edit("ann", &format!("INSERT INTO note VALUES ('{id}', 'all')"))
    }

    /// Syncs, and does this while a step waits.
    fn sync_while(&mut self, step: u32, act: impl FnOnce(Session) -> Result<()>) -> Result<Result<SyncReport, Error>> {
        let (keeper, watcher) = (self.session()?, self.session()?);
        keeper.hold(step)?;
        let Gated { world, remote } = self;
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| attempt(world, remote, 1));
            let waits = watcher.wait_for_a_waiter(|| syncing.is_finished());
            drop(watcher);
            let acted = act(keeper);
            let synced = syncing.join().map_err(|_| anyhow::anyhow!("the sync panicked"))?;
            ensure!(waits?, "the sync did not wait");
            acted?;
            synced
        })
    }

    fn session(&self) -> Result<Session> {
        Session::open(&self.world.central.url())
    }

    /// All syncs until nothing moves; all uploads that they said to be lost.
    fn settle(&mut self) -> Result<Vec<SyncReport>> {
        let mut reports = Vec::new();
        for _ in 0..10 {
            let report = self.world.sync(&mut self.remote)?;
            let is_quiet =
                (report.changes_up, report.rows_down, report.deletions_down, report.restarted) == (0, 0, 0, false);
            reports.push(report);
            if is_quiet {
                return Ok(reports);
            }
        }
        anyhow::bail!("no end of it: {reports:?}")
    }

    /// What is named as lost.
    fn lost(&self) -> Result<Vec<String>> {
        let mut lost: Vec<String> = self.remote.set_aside(10)?.into_iter().map(|change| change.key).collect();
        lost.sort();
        Ok(lost)
    }

    /// Sent again, everything is there, and each once.
    fn comes_back(&mut self, ids: &[&str]) -> Result<()> {
        self.remote.retry(&Choice::All)?;
        self.settle()?;
        let report = self.world.diff("ann")?;
        ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
        let mut ids: Vec<_> = ids.iter().map(|id| vec![Some((*id).to_owned())]).collect();
        ids.sort();
        for (table, rows) in [
            ("head", self.world.central.rows("SELECT id FROM note ORDER BY id COLLATE \"C\"")?),
            ("arrivals", self.world.central.rows("SELECT id FROM arrival ORDER BY id COLLATE \"C\"")?),
            ("remote", self.world.rows("ann", "SELECT id FROM note ORDER BY id")?),
        ] {
            ensure!(rows == ids, "{table}: {rows:?}");
        }
        Ok(())
    }
}

fn key(id: &str) -> String {
    format!(r#"{{"id":"{id}"}}"#)
}

/// The server finds the other timeline under the same address between the steps of one sync.
#[test]
fn a_primary_is_rewound_between_the_steps_of_a_sync() -> Result<()> {
    for (step, lost) in [(UPLOADS, vec![key("lost")]), (DOWNLOADS, vec![key("during"), key("lost")])] {
        let first = primary()?;
        let mut gated = Gated::new(&first)?;
        let second = left_behind(&first)?;
        gated.insert("lost")?;
        gated.world.sync(&mut gated.remote)?;
        gated.insert("during")?;
        let synced = gated.sync_while(step, |keeper| {
            second.promote()?;
            first.rewind(&second)?;
            drop(keeper);
            first.catch_up(&second)?;
            second.stop()?;
            first.promote()
        })?;
        let error = synced.err().context("its database was taken away")?;
        ensure!(error.code() == "database_unavailable", "step {step}: {error:?}");
        gated.insert("pending")?;
        let reports = gated.settle()?;
        ensure!(reports.iter().any(|report| report.restarted), "step {step}: {reports:?}");
        // The keeper's session ends with the first primary, so an upload may still be committed there before its own session ends.
        let (found, all) = (gated.lost()?, vec![key("during"), key("lost")]);
        ensure!(found == lost || found == all, "step {step}: {found:?}, {reports:?}");
        gated.comes_back(&["early", "lost", "during", "pending"]).with_context(|| format!("step {step}"))?;
    }
    Ok(())
}

/// The point in time lies between an upload's commit and the count of the download that follows it: the upload is not lost, and the watermarks are.
#[test]
fn a_point_in_time_within_a_sync() -> Result<()> {
    let cluster = Postgres::builder().archive().start()?;
    let backup = cluster.base_backup()?;
    let mut gated = Gated::new(&cluster)?;
    gated.insert("kept")?;
    let synced = gated.sync_while(DOWNLOADS, |keeper| {
        keeper.run("SELECT pg_create_restore_point('within')")?;
        keeper.let_pass(DOWNLOADS)
    })?;
    ensure!(synced?.changes_up == 1);
    gated.world.central.execute("INSERT INTO note VALUES ('head', 'all')")?;
    gated.world.sync(&mut gated.remote)?;
    gated.insert("pending")?;
    cluster.recover(&backup, "within")?;
    cluster.end_recovery()?;
    let is_there = wait_until(std::time::Duration::from_mins(1), || gated.session().is_ok());
    ensure!(is_there, "it accepts connections");
    let reports = gated.settle()?;
    ensure!(reports[0].restarted && reports.iter().all(|report| report.lost.is_none()), "{reports:?}");
    ensure!(gated.lost()?.is_empty(), "{:?}", gated.lost()?);
    gated.comes_back(&["early", "kept", "pending"])
}
