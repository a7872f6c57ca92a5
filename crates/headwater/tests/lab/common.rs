//! Rows that all clients have in common: every client gets them, and all change them at once.

use super::{KINDS, Place, consolidated, syncs};

fn succeeds(scenario: &str, clients: usize) {
    let place = Place::new(&syncs(scenario, &format!("load.clients = {clients}")));
    for target in consolidated(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

#[test]
fn rows_in_common_come_to_every_client_and_go_up_from_every_client() {
    succeeds(&format!("kind = {KINDS}, common_percent = [50, 100], workers = 4"), 6);
}

#[test]
fn rows_in_common_are_written_by_all_where_nobody_looks_for_conflicts() {
    let uploads = "[\"upload-updates\", \"upload-deletes\", \"upload-inserts\"]";
    succeeds(&format!("kind = {uploads}, common_percent = 50, conflicts = \"off\", workers = 4"), 6);
}

#[test]
fn files_have_rows_in_common_too() {
    succeeds("kind = [\"upload-updates\", \"upload-deletes\"], common_percent = 50, remotes = \"files\"", 4);
}
