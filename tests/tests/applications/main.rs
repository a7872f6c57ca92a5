//! Real tools write to a remote's file, and migrate it: the file is an application's, which knows nothing of Headwater.
//!
//! Each tool makes the file and its tables, which are adopted. A second remote has whatever arrives.

mod alembic;
mod django;
mod drizzle;
mod jdbc;
mod node;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use headwater_remote::{Choice, CreateOptions, Remote};
use headwater_tests::{Kind, World};

const SCHEMA: &str = "CREATE TABLE shop_project (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL); \
    CREATE TABLE shop_task (id INTEGER NOT NULL PRIMARY KEY, title TEXT NOT NULL, done BOOLEAN NOT NULL, \
    project_id BIGINT NOT NULL REFERENCES shop_project (id) ON DELETE CASCADE)";

const MODEL: &str = r#"
name = "shop"
version = 1
[tables.shop_project]
key = ["id"]
columns = { id = "int not null", name = "text not null" }
[tables.shop_task]
key = ["id"]
columns = { id = "int not null", title = "text not null", done = "bool not null", project_id = "int not null" }
references = [{ columns = ["project_id"], table = "shop_project", target = ["id"], on_delete = "cascade" }]
"#;

/// The application's file, and another remote.
struct Shop {
    world: World,
    other: Remote,
}

impl Shop {
    fn new() -> Result<Shop> {
        let world = World::new(Kind::Sqlite, SCHEMA, MODEL, &["ann"])?;
        let other = world.remote("other", "ann")?;
        Ok(Shop { world, other })
    }

    fn file(&self) -> PathBuf {
        self.world.path("app")
    }

    /// Makes the application's file a remote.
    fn adopt(&self) -> Result<Remote> {
        let options = CreateOptions { adopt: true, ..CreateOptions::new(self.world.server_url()?, "ann") };
        Ok(Remote::create(self.file(), &self.world.plan.model.public(), &options)?)
    }

    /// All arrives, everywhere, and nothing is set aside.
    fn arrives(&mut self, remote: &mut Remote, what: &str) -> Result<()> {
        for _ in 0..2 {
            let report = self.world.sync(remote)?;
            ensure!((report.conflicts, report.refused, report.untracked) == (0, 0, 0), "{what}: {report:?}");
        }
        self.world.sync(&mut self.other)?;
        let aside = remote.set_aside(10)?;
        ensure!(aside.is_empty(), "{what}: {aside:?}");
        for name in ["app", "other"] {
            let diff = self.world.diff(name)?;
            ensure!(diff.is_equal(false), "{what}, {name}: {}", serde_json::to_string(&diff)?);
        }
        let sound = self.world.rows("app", "PRAGMA integrity_check")?;
        ensure!(sound == [[Some("ok".to_owned())]], "{what}: {sound:?}");
        Ok(())
    }

    /// What an application writes to its output, which writes to the file while one sync follows another.
    fn syncs_beside(&self, remote: &mut Remote, mut writing: Command, installed_by: &'static str) -> Result<String> {
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || run(&mut writing, installed_by));
            while !writer.is_finished() {
                let report = self.world.sync(remote)?;
                ensure!((report.conflicts, report.refused) == (0, 0), "{report:?}");
            }
            writer.join().expect("no panic")
        })
    }

    /// Sends what was set aside, and sees it arrive.
    fn retry(&mut self, remote: &mut Remote, what: &str) -> Result<()> {
        let retried = remote.retry(&Choice::All)?;
        ensure!(retried.left.is_empty(), "{what}: {:?}", retried.left);
        self.arrives(remote, what)
    }

    fn titles(&self) -> Result<Vec<String>> {
        let rows = self.world.central.rows("SELECT title FROM shop_task ORDER BY id")?;
        Ok(rows.into_iter().flatten().flatten().collect())
    }
}

/// Where the scripts are.
fn scripts() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/applications/scripts"))
}

/// What a command that must go well writes.
fn run(command: &mut Command, installed_by: &str) -> Result<String> {
    let done = command.output().with_context(|| format!("{command:?}: {installed_by}"))?;
    let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "{command:?} ({installed_by}): {out}{error}");
    Ok(out.into_owned())
}

/// Debian's Python, which has Debian's packages.
fn python(script: &str, file: &Path, step: &str, package: &str) -> Result<String> {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(scripts().join(script)).arg(file).arg(step).env("PYTHONDONTWRITEBYTECODE", "1");
    run(&mut command, &format!("apt-get install {package}"))
}
