//! `headwater-bench readprobe` in its short form, from the command to its plots.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

#[test]
fn records_are_read_in_process_and_by_cursors_in_every_arm() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = env!("CARGO_BIN_EXE_headwater-bench");
    // The program that is measured, which this one can be too.
    let program = folder.path().join("headwater");
    let script = format!("#!/bin/sh\nHEADWATER_BENCH_AS_COMMAND=1 exec '{bench}' \"$@\"\n");
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let mut command = Command::new(bench);
    command.args(["readprobe", "--users", "1,3", "--seconds", "0.05", "--cursor-seconds", "0.1", "--repetitions", "1"]);
    command.args(["--tables", "small", "--step-seconds", "0.5", "--slow-rows", "20", "--plots"]).arg(folder.path());
    let output = command.env("HEADWATER", &program).output().expect("it runs");
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{said}");
    for policy in ["skips 0", "skips 10", "skips 100", "skips 1000", "s3fifo"] {
        for users in [1, 3] {
            assert!(out.contains(&format!("row small {policy} users {users}: ")), "{policy}, {users}: {out}");
        }
    }
    assert!(out.contains("step small: "), "{out}");
    for (arm, rows) in [("one record", 1.0), ("baseline", 16.0), ("records", 64.0), ("both with skips", 64.0)] {
        let begin = format!("row cursors small {arm} users 3: ");
        let line = out.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or_else(|| panic!("{begin}: {out}"));
        let of_message = line.split_once(" rows/s, ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
        // Some may go early, where the machine lets a thread wait.
        assert!(of_message.is_some_and(|of_message| of_message > rows / 2.0 && of_message <= rows), "{arm}: {line}");
        assert!(out.contains(&format!("row slow small {arm} beside 6 users: ")), "{arm}: {out}");
    }
    // It says which is the case: calls are counted, or perf can't.
    let is_counted = !said.contains("no system calls are counted");
    assert_eq!(out.matches("system calls").count(), if is_counted { 2 * 5 + 2 * 7 } else { 0 }, "{out}{said}");
    for plot in ["waits", "gains", "small-rate", "step", "network-small", "cursors-small-rate"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("readprobe-{plot}.svg"))).expect(plot);
        assert!(svg.starts_with("<svg"), "{plot}");
    }
}
