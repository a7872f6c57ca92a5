//! Where knobs are saved: files with CRLF, behind links, read-only, and several who save at once.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::{CONFIG, Said, Stage};

#[test]
fn a_file_stays_what_it_is() {
    let stage = Stage::new();
    // Lines end as they did, and a link stays one.
    std::fs::create_dir(stage.path("real")).expect("a folder");
    stage.write("real/shop.toml", &CONFIG.replace('\n', "\r\n"));
    std::fs::remove_file(stage.path("headwater.toml")).expect("removed");
    symlink("real/shop.toml", stage.path("headwater.toml")).expect("a link");
    let server = stage.serve(&[]);
    stage.ok(&["tune", "server.workers=3", "gateway.packing.fill=50", "--save"]);
    let expected = CONFIG
        .replace("workers = 2 ", "workers = 3 ")
        .replace("queries = \"queries\"\n", "queries = \"queries\"\n\n[gateway.packing]\nfill = 50\n");
    assert_eq!(stage.read("real/shop.toml"), expected.replace('\n', "\r\n"));
    assert!(std::fs::symlink_metadata(stage.path("headwater.toml")).expect("there").is_symlink());

    // What nobody may write is not replaced, and nothing is set.
    let before = stage.read("real/shop.toml");
    std::fs::set_permissions(stage.path("real/shop.toml"), PermissionsExt::from_mode(0o444)).expect("set");
    stage.refused(&["tune", "server.workers=5", "--save"], 2, "is read-only");
    assert!(stage.ok(&["tune", "server.workers"]).contains("  3 "), "not even set");
    assert_eq!(stage.read("real/shop.toml"), before);
    server.stop();
}

/// As on a full disk: not a byte more goes into any file.
#[test]
fn a_file_that_can_not_be_written_is_told_by_its_own_exit_code() {
    let stage = Stage::new();
    let server = stage.serve(&[]);
    let files = || std::fs::read_dir(stage.path("")).expect("a folder").count();
    let before = files();
    let tune = stage.command(&["tune", "server.workers=5", "--save"]);
    let mut full = Command::new("sh");
    full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(tune.get_program()).args(tune.get_args());
    full.current_dir(stage.path("")).env("USER", "olga").env_remove("SUDO_USER");
    let said = Said::of(&mut full);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.err.contains("it is set, but not saved: ") && said.err.contains("could not be written ("), "{said:?}");
    assert_eq!((stage.read("headwater.toml").as_str(), files()), (CONFIG, before));
    assert!(stage.ok(&["tune", "server.workers"]).contains("  5 "), "it is set");
    stage.ok(&["tune", "--save"]);
    assert_eq!(stage.read("headwater.toml"), CONFIG.replace("workers = 2 ", "workers = 5 "));
    server.stop();
}

#[test]
fn of_those_who_save_at_once_none_is_lost_in_silence() {
    let stage = Stage::new();
    let server = stage.serve(&[]);
    let knobs = ["server.backlog", "server.kept_ms", "server.retry_ms", "server.purge_days", "gateway.waiting_max"];
    let saved: Vec<&str> = std::thread::scope(|scope| {
        let saving = knobs.map(|knob| {
            let stage = &stage;
            scope.spawn(move || {
                let said = stage.run(&["tune", &format!("{knob}=77"), "--save"]);
                let is_told = said.code == Some(0) || said.err.contains("was changed meanwhile");
                assert!(is_told, "{said:?}");
                (said.code == Some(0)).then_some(knob)
            })
        });
        saving.into_iter().filter_map(|saving| saving.join().expect("no panic")).collect()
    });
    assert!(!saved.is_empty());
    let text = stage.read("headwater.toml");
    for knob in saved {
        let option = knob.split('.').next_back().unwrap_or_default();
        assert!(text.contains(&format!("{option} = 77")), "{knob} was said to be saved: {text}");
    }
    server.stop();
}
