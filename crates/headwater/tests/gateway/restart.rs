//! A server that is started anew: what clients and caches have is told to be so still, without running its query.

use super::{Stage, change, get, postgres};

const TARGET: &str = "/q/flights.csv?origin=JFK";

fn tag_of(head: &str) -> String {
    head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap_or_else(|| panic!("{head}")).to_owned()
}

/// `untold` changes a row of the answer, and takes that out of the record of changes: whoever knows of it has run the query.
fn what_is_had_is_told_unchanged(url: &str, untold: &str) {
    let mut stage = Stage::new(url);
    change(&stage, url, "INSERT INTO flight (id) VALUES (8)"); // so that it is on record
    let (head, before) = get(&stage.serve(), TARGET, "");
    let tag = tag_of(&head);
    stage.stop();
    change(&stage, url, untold);
    let address = stage.serve();
    let asked = format!("If-None-Match: {tag}\r\n");
    let (head, body) = get(&address, TARGET, &asked);
    assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{head}: {body}");
    assert_eq!(tag_of(&head), tag);
    change(&stage, url, "INSERT INTO flight VALUES (9, 'JFK', 1, '1.00')");
    let (head, after) = get(&address, TARGET, &asked);
    assert!(head.starts_with("http/1.1 200") && tag_of(&head) != tag, "{head}");
    assert!(before.contains("1,5,10.50") && after.contains("1,6,10.50") && after.contains("9,1,1.00"), "{after}");
}

#[test]
fn sqlite_what_is_had_is_told_unchanged() {
    what_is_had_is_told_unchanged(
        "sqlite:HERE/central.db",
        "UPDATE flight SET delay = 6 WHERE id = 1; \
         UPDATE headwater_table_change SET version = version - 1 WHERE table_name = 'flight'",
    );
}

#[test]
fn postgres_what_is_had_is_told_unchanged() {
    let url = postgres();
    what_is_had_is_told_unchanged(
        &url,
        "BEGIN; UPDATE flight SET delay = 6 WHERE id = 1; \
         DELETE FROM headwater.table_change WHERE transaction = pg_current_xact_id(); COMMIT",
    );
}
