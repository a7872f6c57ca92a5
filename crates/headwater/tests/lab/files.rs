//! Syncs of real remotes, with files.

use rusqlite::Connection;

use super::{Place, consolidated};

const FILES: &str = "name = \"f\"
scenario = { name = \"sync\", remotes = \"files\", rows = 12, kind = [\"download-inserts\", \"download-updates\", \"download-deletes\",
             \"upload-updates\", \"upload-deletes\", \"upload-inserts\"] }
load.clients = 3
stop.iterations = 6
";

#[test]
fn real_remotes_sync_all_kinds() {
    let place = Place::new(FILES);
    for target in consolidated(&place) {
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "f.lab"]);
        assert_eq!(said.code, 0, "{said:?}");
        let results = Connection::open(place.path("f.lab")).expect("results");
        let sql = "SELECT count(*) FROM run WHERE state = 'done' AND operations = 6 AND sets = 2 AND errors = 0";
        assert_eq!(results.query_row(sql, [], |row| row.get(0)), Ok(6), "{said:?}");
        assert_eq!(target.tables(), 0, "all is cleaned up");
        std::fs::remove_file(place.path("f.lab")).expect("results");
    }
}

#[test]
fn what_files_can_not_be_is_told() {
    for (rest, expected) in [
        (
            "scenario.remotes = \"files\"\nscenario.link_delay_ms = 5\nload.clients = 3",
            "only remotes in memory are slowed",
        ),
        ("scenario.remotes = \"paper\"\nload.clients = 3", "only memory, files"),
        ("scenario.remotes = \"files\"\nload.clients = 501", "at most 500"),
    ] {
        let place = Place::new(&format!("name = \"f\"\nscenario.name = \"sync\"\n{rest}\nstop.iterations = 6\n"));
        let said = place.run(&["run", "x.toml", "--target", "sqlite:s.db", "--results", "f.lab"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
        assert!(!place.path("s.db").exists());
    }
}

/// Both kinds of remotes, both ways.
#[test]
fn rows_of_other_sizes_sync_too() {
    let place = Place::new(
        "name = \"n\"\nload.clients = 2\nstop.iterations = 2\n[scenario]\nname = \"sync\"\nrows = 3\nnotes_bytes = [1, 200_000]\n\
         remotes = [\"memory\", \"files\"]\nkind = [\"download-inserts\", \"upload-updates\"]\n",
    );
    for target in consolidated(&place) {
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "n.lab"]);
        assert_eq!(said.code, 0, "{said:?}");
        let results = Connection::open(place.path("n.lab")).expect("results");
        let sql = "SELECT count(*) FROM run WHERE state = 'done' AND operations = 2 AND errors = 0";
        assert_eq!(results.query_row(sql, [], |row| row.get(0)), Ok(8), "{said:?}");
        assert_eq!(target.tables(), 0);
        std::fs::remove_file(place.path("n.lab")).expect("results");
    }
}
