//! Charts in a terminal: a real one, of util-linux's `script`.

use std::process::Command;

use super::Place;

const EXPERIMENT: &str = "name = \"live\"\nscenario = { name = \"write_simple\" }\nload = { arrival = \"constant\", rate = 200 }\n\
    stop = { duration = \"4s\" }\ntarget.url = \"sqlite:x.db\"\n";

#[test]
fn a_terminal_is_drawn_to_and_nothing_else_is() {
    let place = Place::new(EXPERIMENT);
    let program = env!("CARGO_BIN_EXE_headwater");
    let inside = format!("stty cols 60; '{program}' lab run x.toml --live --results terminal.lab");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &inside, "typescript"]).current_dir(place.folder.path());
    // A terminal of the test's own would be asked how wide it is.
    script.env("TERM", "xterm").env_remove("NO_COLOR").stdin(std::process::Stdio::null());
    let done = script.output().expect("script of util-linux runs: apt-get install bsdutils");
    let drawn = String::from_utf8_lossy(&std::fs::read(place.path("typescript")).expect("a typescript")).into_owned();
    assert!(done.status.success(), "{drawn}");
    for part in ["operations a second", "99 % of responses within, ms", "\u{2502} \x1b[36m\u{2588}", "live", "errors"] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    let said = place.run(&["run", "x.toml", "--live", "--results", "pipe.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("--live draws in a terminal, which standard error is not: going on without"), "{said:?}");
    assert!(!said.err.contains('\u{2502}'), "{said:?}");
}
