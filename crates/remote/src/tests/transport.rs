//! What lies between a remote and its server: proxies with opinions, limits that change, tokens that end.

use headwater_model::Model;
use headwater_protocol::Value;
use headwater_protocol::message::ErrorCode;

use super::crash::{assert_converged, options, pair, sync};
use super::server::Fault;
use super::support::row;
use crate::{Choice, Phase, Progress, Remote};

/// WELCOME comes, and nothing after it.
const WELCOME_ALONE: usize = 62;

/// An upload is applied, its receipt is lost, and then nobody takes an upload of its size any more.
#[test]
fn a_receipt_that_can_not_be_had_any_more_is_done_without() {
    let (mut f, server) = pair();
    for id in 0..4 {
        server.database().set(0, &row(&id.to_string()), Some(row(&format!("{id},t,b"))));
    }
    sync(&mut f).expect("the first sync");
    f.sql(
        "INSERT INTO doc VALUES (10, 'mine', 'b'), (11, 'bad', 'b'); UPDATE doc SET title = 'mine' WHERE id IN (0, 1);
         DELETE FROM doc WHERE id = 2; INSERT INTO tag VALUES ('x', 10)",
    );
    server.database().set(0, &row("1"), Some(row("1,theirs,b")));
    server.database().faults = vec![Fault::CutAnswer(WELCOME_ALONE)];
    let mut once = options();
    once.config.attempts_max = 1;
    f.remote.sync(&mut once).expect_err("the answer is cut");
    assert!(f.remote.status().expect("a status").is_frozen);
    assert!(server.database().row(0, &row("10")).is_some(), "it is applied");
    f.sql("UPDATE doc SET body = 'again' WHERE id = 10");

    server.database().changes_max = Some((1, 413));
    sync(&mut f).expect("smaller ones pass");
    let status = f.remote.status().expect("a status");
    assert!(!status.is_frozen, "nothing is on its way");
    assert_eq!(status.upload_sequence, 2, "its number is used, and one for what was changed since");
    // The database has what was uploaded as it was uploaded: that is settled. The others are on the list.
    assert_eq!(server.database().row(0, &row("10")), Some(&row("10,mine,again")));
    assert_eq!(
        f.set_aside(),
        ["doc {\"id\":11} unanswered in place", "doc {\"id\":1} unanswered in place"],
        "{:?}",
        f.pending()
    );
    assert_eq!(server.database().inserted.len(), 2, "each insert is applied once");
    f.remote.drop_set_aside(&Choice::All).expect("given up");
    assert_eq!(server.database().row(1, &[Value::text("x")]), Some(&vec![Value::text("x"), Value::Int(10)]));
    sync(&mut f).expect("nothing is left to do");
    assert_converged(&f, &server, "in the end");
}

/// A link to the file is the same file: SQLite follows it too.
#[cfg(unix)]
#[test]
fn a_sync_by_another_name_of_the_file_does_not_mix_with_the_first() {
    let (mut f, _server) = pair();
    let link = f.folder.path().join("elsewhere");
    std::fs::create_dir(&link).expect("a folder");
    let link = link.join("link.db");
    std::os::unix::fs::symlink(f.remote.path(), &link).expect("a link");
    let mut linked = Remote::open(&link).expect("the remote opens");
    let first = f.remote.lock().expect("the lock");
    assert_eq!(linked.sync(&mut options()).expect_err("another sync holds the file").code(), "running");
    drop(first);
    linked.sync(&mut options()).expect("the other has ended");
    sync(&mut f).expect("by its own name");
}

/// The laptop sleeps in the midst of a sync, and the token that it got for the password has ended meanwhile.
#[test]
fn a_token_that_ends_during_a_sync_is_renewed() {
    let (mut f, server) = pair();
    f.sql("INSERT INTO doc VALUES (1, 'mine', 'b')");
    server.database().faults = vec![Fault::TokenEnds, Fault::BeforeUpload];
    let report = sync(&mut f).expect("with a new token");
    assert_eq!(report.changes_up, 1);
    server.database().faults = vec![Fault::TokenEnds; 3];
    assert_eq!(sync(&mut f).expect_err("no token is good").code(), "unauthenticated");
}

/// Server and version have changed at once, and an upload is on its way: the server that is named now is asked for it.
#[test]
fn an_upload_is_settled_at_the_server_that_is_named() {
    let (mut f, server) = pair();
    sync(&mut f).expect("the first sync");
    f.sql("INSERT INTO doc VALUES (1, 'mine', 'b')");
    f.cut().expect("an upload");
    f.remote.set_server("http://127.0.0.1:1", "ann").expect("a server that is gone");
    let model = Model { version: 2, ..f.remote.plan.model.clone() };
    server.database().faults = vec![Fault::Error(ErrorCode::ModelUnknown)];
    let mut options = options();
    options.server = Some(server.url.clone());
    let upgraded = f.remote.upgrade(&model, &mut options).expect("the version changes");
    assert!(upgraded.before.is_none());
    assert_eq!((upgraded.to, upgraded.sync.changes_up), (2, 1));
    assert_eq!(f.remote.status().expect("a status").server, server.url, "it is the file's from then on");
    assert_converged(&f, &server, "under the new version");
}

/// While a download is on its way, another program of the application drops a table, and opens the remote: the table comes whole.
#[test]
fn a_table_dropped_during_a_sync_comes_again() {
    let (mut f, server) = pair();
    for id in 0..3 {
        server.database().set(0, &row(&id.to_string()), Some(row(&format!("{id},t,b"))));
    }
    sync(&mut f).expect("the first sync");
    server.database().set(0, &row("3"), Some(row("3,t,b")));
    let (path, mut is_dropped) = (f.remote.path().to_owned(), false);
    let mut drop_once = |progress: Progress| {
        if progress.phase == Phase::Receive && !std::mem::replace(&mut is_dropped, true) {
            let other = rusqlite::Connection::open(&path).expect("another program");
            other.execute_batch("DROP TABLE doc").expect("the table is dropped");
            Remote::open(&path).expect("the remote opens");
        }
    };
    let mut options = options();
    options.progress = Some(&mut drop_once);
    f.remote.sync(&mut options).expect("the sync");
    assert_converged(&f, &server, "the table has all rows");
}

/// The first user that syncs may be root: the lock's file is the database owner's all the same, and of its mode.
#[cfg(unix)]
#[test]
fn the_file_of_the_lock_belongs_to_whom_the_database_belongs_to() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let (f, _server) = pair();
    let path = f.remote.path();
    let of_lock = || std::fs::metadata(format!("{}-sync", path.display())).expect("the lock's file");
    // Only root gives files away.
    let is_root = chown(path, Some(4_711), Some(4_712)).is_ok();
    for mode in [0o660, 0o600] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the mode");
        drop(f.remote.lock().expect("the lock"));
        assert_eq!(of_lock().mode() & 0o777, mode);
        assert!(!is_root || (of_lock().uid(), of_lock().gid()) == (4_711, 4_712));
    }
}
