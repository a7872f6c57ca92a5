//! When each sync begins and ends, at both ends.

use rusqlite::Connection;

use super::{Place, consolidated};

#[test]
fn each_sync_has_four_stamps_and_its_phases() {
    let place = Place::new(
        "name = \"s\"\nscenario = { name = \"sync\", kind = [\"upload-inserts\", \"download-updates\"], workers = 1, rows = 20 }\n\
         load.clients = 6\nstop = { warmup = \"300ms\", iterations = 18 }\n",
    );
    for target in consolidated(&place) {
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "s.lab"]);
        assert_eq!(said.code, 0, "{said:?}");
        let results = Connection::open(place.path("s.lab")).expect("results");
        let count = |rule: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM sync WHERE {rule}");
            results.query_row(&sql, [], |row| row.get(0)).expect("a count")
        };
        assert_eq!(count("true"), 36, "each that was measured, and no other");
        assert_eq!(count("server_ended_ns IS NULL"), 0, "all are joined");
        // Both ends have one clock here, read in microseconds by one of them.
        let order = "began_ns <= server_began_ns + 1000000 AND server_began_ns < server_ended_ns \
                     AND server_began_ns < ended_ns AND began_ns < server_ended_ns";
        assert_eq!(count(order), 36);
        let phases = "receive_ns + wait_ns + greet_ns + upload_ns + download_ns";
        assert_eq!(count(&format!("{phases} <= server_ended_ns - server_began_ns + 1000000")), 36);
        // Six come at once, and one worker is there.
        assert!(count("wait_ns > 0") >= 18, "{} of 36 have waited", count("wait_ns > 0"));
        assert!(count("upload_ns > 0") >= 18 && count("download_ns > 0") >= 18);
        let said = place.run(&["report", "s.lab", "--out", "s.html"]);
        assert_eq!(said.code, 0, "{said:?}");
        let page = std::fs::read_to_string(place.path("s.html")).expect("a report");
        assert!(page.contains("<h2>Syncs by phase</h2>") && page.contains("waits for a worker"));
        std::fs::remove_file(place.path("s.lab")).expect("results");
        std::fs::remove_file(place.path("s.html")).expect("a report");
    }
}
