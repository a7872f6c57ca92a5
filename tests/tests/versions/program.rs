//! The program itself, from one version to the next, killed and broken on the way.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Phase, Progress, Remote, SyncOptions};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{Child, FaultProxy, Plan, Random, free_port, headwater_binary};
use headwater_tests::{KINDS, Kind, World};

use super::{CHANGES, SCHEMA, one, texts, two, upgrade};

/// The program, its configuration, and a server of it.
struct Program {
    world: World,
    port: u16,
    server: Option<Child>,
}

impl Program {
    fn new(kind: Kind) -> Result<Program> {
        let world = World::unserved(kind, SCHEMA, &one("remote_wins"), &["ann", "bo"])?;
        let mut program = Program { world, port: free_port()?, server: None };
        program.configure(&[("shop-1.toml", one("remote_wins"))])?;
        program.serve()?;
        Ok(program)
    }

    fn configure(&self, models: &[(&str, String)]) -> Result<()> {
        let folder = self.world.folder.path();
        models.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))?;
        let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
        let text = format!("models = {names:?}\n[database]\nurl = {:?}\n", self.world.central.url());
        Ok(std::fs::write(folder.join("headwater.toml"), text)?)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(headwater_binary()?);
        command.current_dir(self.world.folder.path()).args(arguments);
        command.env("HEADWATER_TOKEN", self.world.token("bo")?);
        Ok(command)
    }

    /// Runs a command; its exit code and all that it says.
    fn run(&self, arguments: &[&str]) -> Result<(Option<i32>, String)> {
        let done = self.command(arguments)?.output()?;
        Ok((done.status.code(), String::from_utf8([done.stdout, done.stderr].concat())?))
    }

    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let (code, said) = self.run(arguments)?;
        ensure!(code == Some(0), "{arguments:?}: {code:?}: {said}");
        Ok(said)
    }

    fn serve(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.terminate()?;
            server.wait(Duration::from_mins(1))?;
        }
        let listen = format!("127.0.0.1:{}", self.port);
        let mut server = Child::spawn("serve", &mut self.command(&["serve", "--listen", &listen])?)?;
        server.wait_for_line("listening", Duration::from_mins(1))?;
        self.server = Some(server);
        Ok(())
    }

    fn create(&self, name: &str, options: &[&str]) -> Result<String> {
        let url = format!("http://127.0.0.1:{}", self.port);
        self.ok(&[&["remote", "create", name, "--server", &url, "--user", "bo"], options].concat())
    }
}

#[test]
fn the_program_from_one_version_to_the_next() -> Result<()> {
    for kind in KINDS {
        let mut program = Program::new(kind)?;
        program.create("one.db", &[])?;
        program.ok(&["remote", "sync", "one.db"])?;
        program.world.central.execute(CHANGES)?;
        let models = [("shop-1.toml", one("remote_wins")), ("shop-2.toml", two("remote_wins"))];
        program.configure(&models)?;
        let (code, said) = program.run(&["check"])?;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("shop version 2: item: changes of the table are not tracked"), "{said}");
        assert!(!said.contains("shop version 1: item: changes"), "{said}");
        let shown = program.ok(&["track", "--dry-run"])?;
        assert!(shown.contains("side_item@area") && !shown.contains("side_note"), "only what is not there: {shown}");
        program.ok(&["track"])?;
        assert!(program.ok(&["track"])?.contains("tracked already"));
        program.ok(&["check"])?;
        program.serve()?;
        if kind == Kind::Postgres {
            program.world.central.execute("ALTER TABLE item ALTER grade DROP DEFAULT")?;
            let said = program.ok(&["check"])?;
            let why = "shop version 1: item.grade: the column may not be NULL, has no default and is not in the model";
            assert!(said.contains(why) && !said.contains("version 2: item.grade"), "{said}");
            program.world.central.execute("ALTER TABLE item ALTER grade SET DEFAULT 7")?;
        }

        for (arguments, why) in [
            (&["remote", "upgrade", "one.db", "--to", "9"][..], "no model \"shop\" version 9"),
            (&["remote", "upgrade", "none.db"], "there is no file none.db"),
        ] {
            let (code, said) = program.run(arguments)?;
            assert!(code != Some(0) && said.contains(why), "{arguments:?}: {code:?}: {said}");
        }
        for (version, said) in [("1", "shop version 1"), ("2", "shop version 2")] {
            let made = program.create(&format!("at{version}.db"), &["--at", version])?;
            assert!(made.contains(said), "the only model needs no name: {made}");
        }
        program.world.edit("one", "UPDATE item SET n = n + 1 WHERE id = 'a'")?;
        let said = program.ok(&["remote", "upgrade", "one.db"])?;
        assert!(said.contains("one.db goes on under version 2 of shop; it was 1"), "{said}");
        let (before, after) = said.split_once("The sync under version 2:").unwrap_or_default();
        let syncs = before.contains("under version 1:\nup    1 changes") && after.contains("up    0 changes");
        assert!(syncs, "both are told: {said}");
        assert!(program.ok(&["remote", "upgrade", "one.db"])?.contains("is at version 2 of shop already"));
        let store = one("off").replace("name = \"shop\"", "name = \"store\"");
        program.configure(&[&models[..], &[("store.toml", store)]].concat())?;
        program.ok(&["track"])?;
        program.serve()?;
        let error = program.create("three.db", &[]).expect_err("several models");
        assert!(
            error.to_string().contains("this server has the models shop, store: expected a name (--name"),
            "{error}"
        );
        assert!(program.create("three.db", &["--name", "store"])?.contains("store version 1"));
        let (_, said) = program.run(&["remote", "upgrade", "one.db", "--to", "1"])?;
        assert!(said.contains("expected a newer one than that, not 1"), "{said}");
        program.ok(&["diff", "one.db"])?;

        // The old version retires, and a remote that still has it is told what to do.
        assert!(program.create("two.db", &["--name", "shop", "--at", "1"])?.contains("shop version 1"));
        program.ok(&["remote", "sync", "two.db"])?;
        program.ok(&["diff", "two.db"])?;
        program.configure(&models[1..])?;
        program.serve()?;
        let (_, said) = program.run(&["remote", "sync", "two.db"])?;
        assert!(said.contains("it has version 2, to which `headwater remote upgrade` changes the remote"), "{said}");
        let (_, said) = program.run(&["untrack", "--unused"])?;
        assert!(said.contains("model \"shop\" version 1: ") && said.contains("--force"), "{said}");
        assert!(program.ok(&["remote", "upgrade", "two.db"])?.contains("no server has version 1 any more"));
        program.ok(&["diff", "two.db"])?;
        let gone = program.ok(&["untrack", "--unused", "--dry-run"])?;
        assert!(gone.contains("side_item\"") && gone.contains("side_old\"") && !gone.contains("side_note"), "{gone}");
        program.ok(&["untrack", "--unused", "--force"])?;
        assert!(program.ok(&["untrack", "--unused", "--force"])?.contains("nothing is tracked that is not used"));
        program.ok(&["check"])?;
        program.world.central.execute("UPDATE item SET n = 1000 WHERE id = 'b'; DELETE FROM old")?;
        for file in ["one.db", "two.db"] {
            let said = program.ok(&["remote", "sync", file])?;
            assert!(said.contains("down  1 rows, 0 deletions"), "nobody starts afresh: {said}");
            program.ok(&["diff", file])?;
        }
        let other = one("remote_wins").replace("key = [\"id\"]\nconflict", "key = [\"name\"]\nconflict");
        let other = other.replace("name = \"text\", n", "name = \"text not null\", n");
        program.configure(&[("shop-1.toml", other), models[1].clone()])?;
        let (code, said) = program.run(&["track"])?;
        assert!(code == Some(2) && said.contains("models side by side have one key for a table"), "{code:?}: {said}");
    }
    Ok(())
}

#[test]
fn killed_at_any_moment_a_file_is_of_one_version_or_the_other() -> Result<()> {
    for kind in KINDS {
        let mut program = Program::new(kind)?;
        program.world.central.execute(CHANGES)?;
        program.configure(&[("shop-1.toml", one("remote_wins")), ("shop-2.toml", two("remote_wins"))])?;
        program.ok(&["track"])?;
        program.serve()?;
        let (mut random, mut window, mut versions) = (Random::seeded(7), Duration::from_millis(1), [0, 0]);
        for round in 0..12u32 {
            let name = format!("r{round}");
            let file = format!("{name}.db");
            program.create(&file, &["--model", "shop-1.toml"])?;
            program.ok(&["remote", "sync", &file])?;
            let sql =
                format!("UPDATE item SET n = n + 1 WHERE id = 'a'; INSERT INTO item VALUES ('k{round}', 'kept', 1)");
            program.world.edit(&name, &sql)?;
            let started = Instant::now();
            let mut child = Child::spawn(&name, &mut program.command(&["remote", "upgrade", &file])?)?;
            if round > 0 {
                std::thread::sleep(window.mul_f64(random.below(1000) as f64 / 1000.0));
                child.kill()?;
            } else {
                ensure!(child.wait(Duration::from_mins(1))?.success(), "{}", child.stderr());
                window = started.elapsed();
            }
            let version = Remote::open(program.world.path(&name))?.status()?.model.1;
            versions[version as usize - 1] += 1;
            program.ok(&["remote", "upgrade", &file])?;
            program.ok(&["remote", "sync", &file])?;
            program
                .ok(&["diff", &file])
                .with_context(|| format!("{kind:?}, round {round}, killed at version {version}"))?;
        }
        let a = program.world.central.rows("SELECT n FROM item WHERE id = 'a'")?;
        assert_eq!(a, texts(&[&["13"]]), "each change is applied once: {kind:?}, {versions:?}");
        let kept = program.world.central.rows("SELECT count(*) FROM item WHERE id LIKE 'k%'")?;
        assert_eq!(kept, texts(&[&["12"]]), "{kind:?}, {versions:?}");
    }
    Ok(())
}

/// What is staged of a download under the next version is of no use under the one before: there its numbers mean other tables.
#[test]
fn a_change_of_version_that_breaks_leaves_the_old_version_whole() -> Result<()> {
    let model = |version: u32, second: &str| {
        let table = |name: &str| {
            format!("[tables.{name}]\nkey = [\"id\"]\ncolumns = {{ id = \"text not null\", text = \"text\" }}\n")
        };
        format!("name = \"m\"\nversion = {version}\n{}{}", table("large"), table(second))
    };
    let table = |name: &str| format!("CREATE TABLE {name} (id TEXT NOT NULL PRIMARY KEY, text TEXT);");
    let schema = ["large", "leaves", "comes"].map(table).concat() + "INSERT INTO leaves VALUES ('l', 'l')";
    for kind in KINDS {
        let mut world = World::new(kind, &schema, &model(1, "leaves"), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.serve_also(&model(2, "comes"))?;
        let new = world.beside[0].model.clone();
        let proxy = FaultProxy::start(world.address()?)?;
        remote.set_server(&format!("http://{}", proxy.address()), "ann")?;
        proxy.script(|_| Plan::clean().cut(Direction::Down, 1_400_000, Cut::Reset));
        let (central, mut random) = (world.central.clone(), Random::seeded(3));
        // Much changes while the sync under the old version is at its end.
        let mut has_grown = false;
        let mut grow = |progress: Progress| {
            if progress.phase == Phase::Apply && !std::mem::replace(&mut has_grown, true) {
                for number in 0..30 {
                    let text: String = (0..100_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
                    central.execute(&format!("INSERT INTO large VALUES ('{number}', '{text}')")).expect("a row");
                }
            }
        };
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        options.config.attempts_max = 1;
        options.progress = Some(&mut grow);
        let error = remote.upgrade(&new.public(), &mut options).expect_err("a broken download");
        assert_eq!(error.code(), "network", "{kind:?}: {error}");
        let staged = world.rows("one", "SELECT count(*) FROM hw_staged")?;
        assert_ne!(staged, texts(&[&["0"]]), "{kind:?}: some of it is staged");
        proxy.go_clean();
        let mut remote = Remote::open(world.path("one"))?;
        world.sync(&mut remote)?;
        assert_eq!(remote.status()?.model.1, 1);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
        upgrade(&world, &mut remote, &new)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
    }
    Ok(())
}
