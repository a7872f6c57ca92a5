//! The consolidated database turns out not to be the one that the remotes knew: put back from a backup, loaded from a dump, promoted
//! without its last second, a file replaced. Two remotes with pending changes go on by themselves, and each in a few syncs is its part
//! of the database again; what was pending has arrived, and what the database lost of their uploads is named.

mod timelines;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, Remote, SyncOptions, SyncReport};
use headwater_testkit::Postgres;
use headwater_tests::backup::{back_up, replace};
use headwater_tests::{Central, World, read_model};

const NAMES: [&str; 2] = ["one", "two"];
const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT)";
const MODEL: &str = r#"
name = "notes"
version = 1
[tables.note]
conflict = "remote_wins"
key = ["id"]
columns = { id = "text not null", text = "text" }
"#;

/// A database with two remotes that have synced.
struct Stage {
    world: World,
    remotes: [Remote; 2],
}

impl Stage {
    fn new(central: Central) -> Result<Stage> {
        central.execute(SCHEMA)?;
        central.execute("INSERT INTO note VALUES ('first', 'made at the head')")?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &NAMES)?;
        world.start_server()?;
        let remotes = [world.remote(NAMES[0], NAMES[0])?, world.remote(NAMES[1], NAMES[1])?];
        let mut stage = Stage { world, remotes };
        stage.round("early")?;
        Ok(stage)
    }

    /// Something is written everywhere, and everybody gets it.
    fn round(&mut self, mark: &str) -> Result<()> {
        self.world.central.execute(&format!("INSERT INTO note (id, text) VALUES ('head {mark}', 'x')"))?;
        for name in NAMES {
            self.world
                .edit(name, &format!("INSERT INTO note VALUES ('{name} {mark}', 'x'), ('{name} {mark} 2', 'x')"))?;
        }
        for _ in 0..2 {
            for report in self.sync_all()? {
                ensure!(!report.restarted && report.lost.is_none(), "nothing has happened yet: {report:?}");
            }
        }
        NAMES.iter().try_for_each(|name| self.is_equal(name))
    }

    /// Changes that are pending when it happens: new rows, and a change of one that was uploaded last.
    fn leave_pending(&self, last: &str) -> Result<()> {
        for name in NAMES {
            self.world.edit(
                name,
                &format!(
                    "INSERT INTO note VALUES ('{name} pending', 'x'); UPDATE note SET text = 'pending' WHERE id = '{name} {last}'"
                ),
            )?;
        }
        Ok(())
    }

    /// The head goes on for itself, past any number that a remote may have seen.
    fn advance(&self) -> Result<()> {
        let one = |number| format!("BEGIN; INSERT INTO note (id, text) VALUES ('later {number}', 'x'); COMMIT;");
        self.world.central.execute(&(0..300).map(one).collect::<String>())
    }

    fn sync(&mut self, place: usize) -> Result<SyncReport> {
        self.world.sync(&mut self.remotes[place])
    }

    fn sync_all(&mut self) -> Result<Vec<SyncReport>> {
        (0..NAMES.len()).map(|place| self.sync(place)).collect()
    }

    /// The server, on what is the database from now on.
    fn restart_server(&mut self) -> Result<()> {
        self.world.start_server()?;
        let url = self.world.server_url()?;
        self.remotes.iter_mut().zip(NAMES).try_for_each(|(remote, name)| Ok(remote.set_server(&url, name)?))
    }

    fn is_equal(&self, name: &str) -> Result<()> {
        let report = self.world.diff(name)?;
        ensure!(report.is_equal(false), "{name} differs: {}", serde_json::to_string(&report)?);
        Ok(())
    }

    fn head_has(&self, id: &str, text: &str) -> Result<()> {
        let rows = self.world.central.rows(&format!("SELECT text FROM note WHERE id = '{id}'"))?;
        ensure!(rows == [[Some(text.to_owned())]], "{id:?} is {rows:?} at the head, expected {text:?}");
        Ok(())
    }

    /// Three syncs of each; what the first ones said.
    fn settle(&mut self) -> Result<Vec<SyncReport>> {
        let first = self.sync_all()?;
        for _ in 0..2 {
            for report in self.sync_all()? {
                ensure!(report.lost.is_none(), "what is lost is told once: {report:?}");
            }
        }
        for report in self.sync_all()? {
            let moved = (report.changes_up, report.rows_down, report.deletions_down);
            ensure!(moved == (0, 0, 0), "nothing is sent again and again: {report:?}");
        }
        Ok(first)
    }

    /// After an event that lost what round("lost") did: the pending changes have arrived, and what is lost is named and nothing else.
    fn check_lost(&mut self) -> Result<()> {
        let first = self.settle()?;
        for (place, name) in NAMES.into_iter().enumerate() {
            let report = &first[place];
            ensure!(report.restarted, "{name} went on as if nothing had happened: {report:?}");
            ensure!(report.lost == Some((2, 2)), "{name} lost upload 2: {report:?}");
            self.head_has(&format!("{name} pending"), "x")?;
            self.head_has(&format!("{name} lost"), "pending").context("a pending change of a lost row")?;
            let lost = self.remotes[place].lost(10)?;
            ensure!(lost.len() == 1 && (lost[0].first, lost[0].last, lost[0].changes) == (2, 2, 2), "{lost:?}");
            let aside = self.remotes[place].set_aside(10)?;
            ensure!(aside.len() == 1, "{name}: {aside:?}");
            let key = format!(r#"{{"id":"{name} lost 2"}}"#);
            ensure!(
                (aside[0].reason.as_str(), &aside[0].key, aside[0].is_in_place) == ("lost", &key, true),
                "{aside:?}"
            );
            let diff = self.world.diff(name)?;
            ensure!(diff.is_equal(true) && diff.tables[0].extra == 1, "{}", serde_json::to_string(&diff)?);
        }
        // Whoever wants it back touches it: then nothing is lost, and nothing differs.
        for name in NAMES {
            self.world.edit(name, &format!("UPDATE note SET text = 'again' WHERE id = '{name} lost 2'"))?;
        }
        for _ in 0..2 {
            self.sync_all()?;
        }
        NAMES.iter().try_for_each(|name| self.is_equal(name))?;
        self.head_has("one lost 2", "again")?;
        self.round("after")
    }

    /// After an event that lost nothing, but after which watermarks say nothing.
    fn check_moved(&mut self) -> Result<()> {
        let first = self.settle()?;
        for (place, name) in NAMES.into_iter().enumerate() {
            let report = &first[place];
            ensure!(report.restarted && report.lost.is_none(), "{name}: {report:?}");
            self.head_has(&format!("{name} pending"), "x")?;
            self.head_has(&format!("{name} kept"), "pending")?;
            ensure!(self.remotes[place].set_aside(10)?.is_empty(), "nothing is set aside");
        }
        NAMES.iter().try_for_each(|name| self.is_equal(name))?;
        self.round("after")
    }
}

fn cluster() -> Result<(Postgres, Stage)> {
    let cluster = Postgres::start()?;
    let stage = stage_on(&cluster)?;
    Ok((cluster, stage))
}

fn stage_on(cluster: &Postgres) -> Result<Stage> {
    let url = cluster.create_database()?;
    // Another cluster's transactions have lower numbers.
    let many = "DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    headwater_testkit::sql(&url, many)?;
    Stage::new(Central::Postgres(url))
}

#[test]
fn a_cluster_put_back_from_a_backup() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let backup = cluster.copy_data()?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    cluster.put_back(&backup)?;
    stage.advance()?;
    stage.check_lost()
}

/// Remotes that upload nothing have only the counts of their downloads to tell by.
#[test]
fn a_cluster_put_back_twice() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let backup = cluster.copy_data()?;
    for _ in 0..2 {
        stage.world.central.execute("INSERT INTO note VALUES ('head only', 'x')")?;
        stage.settle()?;
        cluster.put_back(&backup)?;
        stage.advance()?;
        let restarted: Vec<bool> = stage.settle()?.iter().map(|report| report.restarted).collect();
        ensure!(restarted == [true, true], "downloads alone tell it too: {restarted:?}");
        NAMES.iter().try_for_each(|name| stage.is_equal(name))?;
    }
    Ok(())
}

#[test]
fn a_dump_in_a_new_cluster() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    stage.round("kept")?;
    stage.leave_pending("kept")?;
    let dump = stage.world.folder.path().join("dump.sql");
    cluster.dump("test_0", &dump)?;
    let elsewhere = Postgres::start()?;
    stage.world.central = Central::Postgres(elsewhere.load(&dump)?);
    drop(cluster);
    stage.restart_server()?;
    stage.check_moved()
}

#[test]
fn an_older_dump_in_the_same_cluster() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let dump = stage.world.folder.path().join("dump.sql");
    cluster.dump("test_0", &dump)?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    stage.world.central = Central::Postgres(cluster.load(&dump)?);
    stage.restart_server()?;
    stage.advance()?;
    stage.check_lost()
}

/// What was uploaded under the first version is lost when the remotes are of the second, whose table has a column more.
fn lost_before_an_upgrade<B>(
    stage: &mut Stage,
    copy: impl FnOnce() -> Result<B>,
    put_back: impl FnOnce(B) -> Result<()>,
) -> Result<()> {
    stage.world.central.execute("ALTER TABLE note ADD COLUMN stars BIGINT NOT NULL DEFAULT 7")?;
    stage.world.serve_also(&MODEL.replace("version = 1", "version = 2").replace(
        "columns = { id = \"text not null\",",
        "columns = { stars = \"int not null\", id = \"text not null\",",
    ))?;
    let url = stage.world.server_url()?;
    stage.remotes.iter_mut().zip(NAMES).try_for_each(|(remote, name)| remote.set_server(&url, name))?;
    let backup = copy()?;
    for name in NAMES {
        stage.world.edit(
            name,
            &format!(
                "UPDATE note SET text = 'new' WHERE id = '{name} early'; DELETE FROM note WHERE id = '{name} early 2'"
            ),
        )?;
    }
    stage.round("lost")?;
    stage.world.central.execute("UPDATE note SET stars = 9 WHERE id = 'one lost'")?;
    let two = stage.world.beside[0].model.public();
    for (remote, name) in stage.remotes.iter_mut().zip(NAMES) {
        let token = stage.world.token(name)?;
        remote.upgrade(&two, &mut SyncOptions::new(Credentials::Token(token)))?;
    }
    put_back(backup)?;
    stage.advance()?;
    for (place, name) in NAMES.into_iter().enumerate() {
        let report = stage.sync(place)?;
        ensure!((report.lost, report.lost_changes) == (Some((2, 2)), 4), "{name}: {report:?}");
        let aside = stage.remotes[place].set_aside(10)?;
        let mut keys: Vec<_> =
            aside.iter().map(|note| (note.key.as_str(), note.reason.as_str(), note.is_in_place)).collect();
        keys.sort_unstable();
        let key = |end| format!(r#"{{"id":"{name} {end}"}}"#);
        let expected = ["early 2", "early", "lost 2", "lost"].map(key);
        let expected = expected.each_ref().map(|key| (key.as_str(), "lost", true));
        ensure!(keys == expected, "{keys:?}");
        stage.remotes[place].retry(&Choice::All)?;
    }
    stage.settle()?;
    for name in NAMES {
        stage.is_equal(name)?;
        stage.head_has(&format!("{name} early"), "new")?;
        stage.head_has(&format!("{name} lost"), "x")?;
    }
    let rows = stage
        .world
        .central
        .rows("SELECT id, stars FROM note WHERE id IN ('one early 2', 'one lost', 'one early') ORDER BY id")?;
    ensure!(
        rows == [["one early", "7"], ["one lost", "9"]].map(|row| row.map(|value| Some(value.to_owned()))),
        "{rows:?}"
    );
    Ok(())
}

#[test]
fn a_cluster_put_back_after_an_upgrade() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    lost_before_an_upgrade(&mut stage, || cluster.copy_data(), |backup| cluster.put_back(&backup))
}

#[test]
fn a_file_put_back_after_an_upgrade() -> Result<()> {
    let (_folder, path, mut stage) = sqlite()?;
    lost_before_an_upgrade(&mut stage, || back_up(&path), |backup| replace(&path, &backup))
}

/// The wrong backup was put back, work went on, and then the right one: it has uploads of the same remotes, as many, and others.
fn the_wrong_backup(
    stage: &mut Stage,
    put_wrong: impl FnOnce(&mut Stage) -> Result<()>,
    put_right: impl FnOnce(&mut Stage) -> Result<()>,
) -> Result<()> {
    stage.round("kept")?;
    put_wrong(stage)?;
    for name in NAMES {
        stage.world.edit(name, &format!("INSERT INTO note VALUES ('{name} work', 'x')"))?;
    }
    let lost: Vec<_> = stage.settle()?.iter().map(|report| report.lost).collect();
    ensure!(lost == [Some((2, 2)); 2], "the wrong one lacks upload 2: {lost:?}");
    stage.head_has("one work", "x")?;
    put_right(stage)?;
    let lost: Vec<_> = stage.settle()?.iter().map(|report| report.lost).collect();
    // Number 3 was on its way when the wrong one came: nobody could know whether it had arrived.
    ensure!(lost == [Some((3, 4)); 2], "the right one has upload 2, and not what went to the wrong one: {lost:?}");
    for (place, name) in NAMES.into_iter().enumerate() {
        stage.head_has(&format!("{name} kept"), "x")?;
        let aside = stage.remotes[place].set_aside(10)?;
        let keys: Vec<_> = aside.iter().map(|change| (change.reason.as_str(), change.key.as_str())).collect();
        ensure!(keys == [("lost", format!(r#"{{"id":"{name} work"}}"#).as_str())], "{keys:?}");
        stage.remotes[place].retry(&Choice::All)?;
    }
    stage.settle()?;
    NAMES.iter().try_for_each(|name| stage.is_equal(name))?;
    stage.head_has("two work", "x")?;
    stage.round("after")
}

#[test]
fn the_wrong_dump_and_then_the_right_one() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let dump = stage.world.folder.path().join("dump.sql");
    cluster.dump("test_0", &dump)?;
    let right = stage.world.central.clone();
    let put = |stage: &mut Stage, central: Central| {
        stage.world.central = central;
        stage.restart_server()
    };
    let wrong = |stage: &mut Stage| put(stage, Central::Postgres(cluster.load(&dump)?));
    the_wrong_backup(&mut stage, wrong, |stage| put(stage, right))
}

#[test]
fn the_wrong_file_and_then_the_right_one() -> Result<()> {
    let (folder, path, mut stage) = sqlite()?;
    let [wrong, right] = ["wrong.db", "right.db"].map(|name| folder.path().join(name));
    std::fs::rename(back_up(&path)?, &wrong)?;
    let put_wrong = |_: &mut Stage| {
        std::fs::rename(back_up(&path)?, &right)?;
        replace(&path, &wrong)
    };
    the_wrong_backup(&mut stage, put_wrong, |_| replace(&path, &right))
}

/// The server runs on, and its connections with it.
#[test]
fn an_older_dump_in_the_same_database() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let dump = stage.world.folder.path().join("dump.sql");
    cluster.dump("test_0", &dump)?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    let nothing = "DROP SCHEMA headwater CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    stage.world.central.execute(nothing)?;
    cluster.load_into(&stage.world.central.url(), &dump)?;
    stage.advance()?;
    stage.check_lost()
}

#[test]
fn a_standby_that_lost_the_last_second() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let standby = cluster.standby()?;
    standby.catch_up(&cluster)?;
    standby.cut_off()?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    cluster.kill()?;
    standby.promote()?;
    stage.world.central = Central::Postgres(standby.url("test_0"));
    stage.restart_server()?;
    stage.advance()?;
    stage.check_lost()
}

#[test]
fn a_switchover_that_lost_nothing() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let standby = cluster.standby()?;
    stage.round("kept")?;
    stage.leave_pending("kept")?;
    standby.catch_up(&cluster)?;
    cluster.kill()?;
    standby.promote()?;
    stage.world.central = Central::Postgres(standby.url("test_0"));
    stage.restart_server()?;
    stage.advance()?;
    let first = stage.settle()?;
    let whole = stage.world.central.rows("SELECT count(*) FROM note")?[0][0].clone().context("a count")?;
    for report in first {
        ensure!(!report.restarted && report.lost.is_none(), "none begins: {report:?}");
        ensure!(report.rows_down < whole.parse()?, "what was seen does not come again: {report:?}");
    }
    NAMES.iter().try_for_each(|name| stage.is_equal(name))?;
    stage.round("after")
}

fn sqlite() -> Result<(tempfile::TempDir, PathBuf, Stage)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("central.db");
    let stage = Stage::new(Central::Sqlite(path.clone()))?;
    Ok((folder, path, stage))
}

#[test]
fn a_file_replaced_while_the_server_runs() -> Result<()> {
    let (_folder, path, mut stage) = sqlite()?;
    let backup = back_up(&path)?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    replace(&path, &backup)?;
    stage.advance()?;
    stage.check_lost()?;
    let sound = stage.world.central.rows("PRAGMA integrity_check")?;
    ensure!(sound == [[Some("ok".to_owned())]], "{sound:?}");
    Ok(())
}

#[test]
fn a_file_replaced_while_no_server_runs() -> Result<()> {
    let (_folder, path, mut stage) = sqlite()?;
    let backup = back_up(&path)?;
    stage.round("lost")?;
    stage.leave_pending("lost")?;
    stage.world.stop_server();
    replace(&path, &backup)?;
    stage.restart_server()?;
    stage.advance()?;
    stage.check_lost()
}

/// A copy of the very state that is there is no other database.
#[test]
fn a_file_replaced_by_its_equal() -> Result<()> {
    let (_folder, path, mut stage) = sqlite()?;
    stage.round("kept")?;
    stage.leave_pending("kept")?;
    let backup = back_up(&path)?;
    replace(&path, &backup)?;
    for report in stage.settle()? {
        ensure!(!report.restarted && report.lost.is_none(), "none begins: {report:?}");
    }
    NAMES.iter().try_for_each(|name| stage.is_equal(name))
}

/// A remote made after the backup is unknown to what was put back.
fn a_remote_younger_than_the_backup(stage: &mut Stage, put_back: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut young = stage.world.remote("young", NAMES[0])?;
    stage.world.edit("young", "INSERT INTO note VALUES ('young', 'x')")?;
    stage.world.sync(&mut young)?;
    stage.world.edit("young", "INSERT INTO note VALUES ('young pending', 'x')")?;
    put_back()?;
    stage.advance()?;
    let report = stage.world.sync(&mut young)?;
    ensure!(report.restarted && report.lost == Some((1, 1)), "{report:?}");
    stage.head_has("young pending", "x")?;
    ensure!(stage.world.diff("young")?.is_equal(true), "all but what is set aside is equal");
    Ok(())
}

#[test]
fn a_remote_younger_than_the_backup_of_a_cluster() -> Result<()> {
    let (cluster, mut stage) = cluster()?;
    let backup = cluster.copy_data()?;
    a_remote_younger_than_the_backup(&mut stage, || cluster.put_back(&backup))
}

#[test]
fn a_remote_younger_than_the_backup_of_a_file() -> Result<()> {
    let (_folder, path, mut stage) = sqlite()?;
    let backup = back_up(&path)?;
    a_remote_younger_than_the_backup(&mut stage, || replace(&path, &backup))
}
