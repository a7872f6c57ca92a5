//! `headwater lab`, through the built program.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// A folder with an experiment, and the program run in it.
struct Place {
    folder: tempfile::TempDir,
}

/// What the program said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new(experiment: &str) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(place.path("x.toml"), experiment).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).arg("lab").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let done = self.command(arguments).output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Said { code: done.status.code().expect("not killed"), out: text(done.stdout), err: text(done.stderr) }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }
}

const SWEEP: &str = "name = \"sweep\"
repetitions = 3
scenario.name = \"tpcb\"
load.clients = [1, 2]
scenario.branches = [1, 10]
stop = { warmup = \"1s\", duration = \"10s\" }
";

#[test]
fn check_tells_the_cells_and_how_long_they_take() {
    let place = Place::new(SWEEP);
    let said = place.run(&["check", "x.toml"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.out.lines().count(), 2 + 4 + 1, "a head, four cells, a summary: {}", said.out);
    assert!(said.out.ends_with("4 cells, 3 times each: 12 runs; 2 min 12 s, preparation aside\n"), "{}", said.out);
    let cells = place.json(&["check", "x.toml"]);
    assert_eq!((&cells["runs"], &cells["expected_seconds"]), (&12.into(), &132.0.into()));
    assert_eq!(cells["cells"][3]["varied"]["scenario.branches"], "10");
}

#[test]
fn what_is_wrong_is_told_with_its_line_before_anything_is_run() {
    let place = Place::new(&SWEEP.replace("clients", "client").replace("10s", "10 parsecs"));
    let said = place.run(&["check", "x.toml"]);
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains("x.toml:4:6: unknown key \"client\" in [load]"), "{said:?}");
    assert!(said.err.contains("did you mean \"clients\"?"), "{said:?}");
    assert!(said.err.contains("x.toml:6:36: duration is the string \"10 parsecs\""), "both are told: {said:?}");
    let said = place.run(&["check", "none.toml"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("none.toml could not be read"), "{said:?}");
}
