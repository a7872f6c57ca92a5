//! An upload is applied once, whatever is repeated, copied or lost.

use std::sync::atomic::{AtomicBool, Ordering};

use headwater_consolidated::system::{Greeting, SealRequest, greet, seal_watermarks};
use headwater_consolidated::upload::{Uploaded, Verdict};
use headwater_consolidated::{Connection, Dialect, Error, Mode, Plan};
use headwater_protocol::message::{Change, FrozenFate, FrozenUpload, Hello};
use headwater_protocol::{Frame, Kind};

use super::database::Database;
use super::replica::Replica;
use super::values::{customer, int, text};

fn upload(remote: &Replica, database: &Database, plan: &Plan) -> Uploaded {
    remote.upload_only(&mut *database.connect(), plan).expect("no error")
}

pub(crate) fn a_repeated_upload_gets_the_same_receipt(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1), (2, 'b', 'Bob', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("UPDATE customer SET name = 'Eve' WHERE id = 1");
    remote.update(&plan, "customer", customer(1, "a", "Amy", 2));
    remote.delete(&plan, "customer", &customer(2, "b", "Bob", 1));
    remote.insert(&plan, "customer", customer(3, "c", "Cid", 1));
    remote.insert(&plan, "customer", customer(4, "c", "the same code", 1));
    let first = upload(&remote, database, &plan);
    assert_eq!((first.verdict, first.receipt.outcomes.len()), (Verdict::Applied, 2));
    database.application("UPDATE customer SET name = 'meanwhile' WHERE id = 3");
    for _ in 0..2 {
        let again = upload(&remote, database, &plan);
        assert_eq!(again.verdict, Verdict::Replayed);
        assert_eq!((&again.receipt, &again.own), (&first.receipt, &first.own));
        assert_eq!(again.conflicted, first.conflicted);
    }
    assert_eq!(
        database.number("SELECT count(*) FROM customer WHERE name = 'meanwhile'"),
        1,
        "nothing was applied again"
    );
    // The sync goes on where the receipt was lost.
    let synced = remote.sync(database, &plan);
    assert_eq!(synced.upserts.iter().filter(|(_, row)| row[0] == int(1)).count(), 1, "the conflict's row");
    assert!(synced.upserts.contains(&(0, customer(3, "c", "meanwhile", 1))));
    assert!(synced.deletes.is_empty(), "its own deletion is not sent back");
}

pub(crate) fn a_copy_and_a_lost_upload_are_told_apart(database: &Database) {
    let plan = database.standard();
    let mut original = Replica::synced(database, &plan, "anna");
    let mut copy = original.clone();
    original.insert(&plan, "customer", customer(1, "a", "original", 1));
    original.sync(database, &plan);
    copy.insert(&plan, "customer", customer(2, "b", "copy", 1));
    assert_eq!(upload(&copy, database, &plan).verdict, Verdict::Copy);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 1);
    // Under an ID of its own it goes on.
    let fresh = Replica::new("anna");
    (copy.id, copy.secret) = (fresh.id, fresh.secret);
    copy.sync(database, &plan);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 2);
    // The database forgets an upload whose receipt the remote has.
    let prefix = if database.dialect() == Dialect::Sqlite { "headwater_" } else { "headwater." };
    database.application(&format!("UPDATE {prefix}remote SET upload_sequence = 0"));
    original.insert(&plan, "customer", customer(3, "c", "after", 1));
    assert_eq!(upload(&original, database, &plan).verdict, Verdict::Behind);
    assert_eq!(database.number("SELECT count(*) FROM customer"), 2);
}

/// What a remote gives up is never applied later, and its next upload has the next number; what it was said to have been applied was.
pub(crate) fn a_number_that_is_given_up_is_used_up(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.cut = Some([1; 8]);
    remote.insert(&plan, "customer", customer(1, "a", "given up", 1));
    let late = remote.clone();
    let named = |remote: &Replica, sequence, cut, is_given_up| Hello {
        frozen: Some(FrozenUpload { sequence, cut: [cut; 8], is_given_up }),
        ..remote.hello(&plan)
    };
    let told = |hello: &Hello| {
        let Greeting::Welcome(greeted) = greet(&mut *database.connect(), &plan, "anna", hello).expect("greeted") else {
            panic!("the secret is right")
        };
        (greeted.welcome.upload_sequence, greeted.welcome.frozen)
    };
    assert_eq!(told(&named(&remote, 1, 1, false)), (0, FrozenFate::Unknown));
    for _ in 0..2 {
        assert_eq!(told(&named(&remote, 1, 1, true)), (1, FrozenFate::GivenUp), "asked again it is told again");
    }
    assert_eq!(upload(&late, database, &plan).verdict, Verdict::Copy, "a request that comes late");
    assert_eq!(database.number("SELECT count(*) FROM customer"), 0);
    // It goes on with the next number.
    remote.acknowledged = 1;
    remote.cut = Some([2; 8]);
    assert_eq!(upload(&remote, database, &plan).verdict, Verdict::Applied);
    assert_eq!(upload(&late, database, &plan).verdict, Verdict::Copy);
    assert_eq!(told(&named(&remote, 2, 2, true)), (2, FrozenFate::Applied), "it is too late to give it up");
    assert_eq!(told(&named(&remote, 1, 1, false)), (2, FrozenFate::GivenUp));
    // A copy of the file that has cut the same changes has another upload, and one that was copied with it the same.
    let mut copy = remote.clone();
    assert_eq!(upload(&copy, database, &plan).verdict, Verdict::Replayed);
    copy.cut = Some([3; 8]);
    assert_eq!(upload(&copy, database, &plan).verdict, Verdict::Copy);
    assert_eq!(told(&named(&copy, 2, 3, false)), (2, FrozenFate::Another));
    assert_eq!(database.number("SELECT count(*) FROM customer"), 1);
}

pub(crate) fn a_second_sync_of_a_remote_is_told_to_come_back(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.insert(&plan, "customer", customer(1, "a", "x", 1));
    if database.dialect() == Dialect::Sqlite {
        // One writer at a time: the second waits, and then finds the upload applied.
        return;
    }
    let mut first = database.connect();
    first.begin(Mode::Upload).expect("begun");
    first.query("SELECT 1::int8 FROM headwater.remote FOR UPDATE", &[]).expect("locked");
    let second = remote.upload_only(&mut *database.connect(), &plan);
    assert!(matches!(second, Err(Error::RemoteBusy)), "{second:?}");
    let hello = remote.hello(&plan);
    let greeted = greet(&mut *database.connect(), &plan, "anna", &hello).expect("what comes after it finds out");
    let Greeting::Welcome(greeted) = greeted else { panic!("the secret is right") };
    let request = SealRequest { plan: &plan, user: "anna", hello: &hello, greeted: &greeted };
    let sealed = seal_watermarks(&mut *database.connect(), &request, greeted.watermarks.clone());
    assert!(matches!(sealed, Err(Error::RemoteBusy)), "{sealed:?}");
    remote.greet(&mut *database.connect(), &plan).expect("the upload after it finds out");
    first.rollback().expect("rolled back");
    assert_eq!(upload(&remote, database, &plan).verdict, Verdict::Applied);
}

/// Another writer inserts the same key in a transaction that is open when the upload tries, and then commits.
pub(crate) fn an_insert_that_loses_a_race_is_judged(database: &Database) {
    if database.dialect() == Dialect::Sqlite {
        return; // one writer: there is no race
    }
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..20 {
        remote.insert(&plan, "customer", customer(id, &format!("c{id}"), "remote", 1));
    }
    let mut other = database.connect();
    other.batch("BEGIN; INSERT INTO customer VALUES (7, 'c7', 'other', 1)").expect("inserted");
    let done = AtomicBool::new(false);
    let uploaded = std::thread::scope(|scope| {
        let uploading = scope.spawn(|| {
            let uploaded = remote.upload_only(&mut *database_connection(database), &plan);
            done.store(true, Ordering::Release);
            uploaded
        });
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while database.number(waiting) == 0 && !done.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!done.load(Ordering::Acquire), "the upload waits for the other's insert");
        other.batch("COMMIT").expect("committed");
        uploading.join().expect("no panic").expect("applied")
    });
    assert_eq!((uploaded.counts.inserted, uploaded.counts.conflicts), (19, 1));
    assert_eq!(uploaded.conflicted, [(0, vec![int(7)])]);
    assert_eq!(database.rows("SELECT name FROM customer WHERE id = 7"), [vec![text("other")]]);
}

fn database_connection(database: &Database) -> Box<dyn Connection> {
    database.connect()
}

pub(crate) fn a_malformed_upload_changes_nothing(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.insert(&plan, "customer", customer(1, "a", "x", 1));
    let (frames, end) = remote.cut(&plan);
    let attempt = |frames: &[Frame], changes: u64| {
        let request = headwater_consolidated::upload::UploadRequest {
            plan: &plan,
            remote_id: remote.id,
            user: "anna",
            life: None,
            download_applied: [0; 16],
            acknowledged: 0,
            cut: None,
            end: headwater_protocol::message::UploadEnd { changes, ..end },
            limits: headwater_consolidated::upload::UploadLimits::default(),
        };
        let mut frames = frames.to_vec();
        headwater_consolidated::upload::apply(&mut *database.connect(), &request, &mut frames).map(|_| ())
    };
    let mut renamed = plan.tables[0].header.clone();
    renamed.name = "member".into();
    let mut beyond = plan.tables[0].header.clone();
    beyond.table = 4_000_000;
    let mut cut = Vec::new();
    Change { old: None, new: Some(customer(9, "z", "cut", 1)) }.write(&mut cut, &plan.tables[0].types);
    cut.pop();
    let malformed: [(&str, Vec<Frame>, u64); 6] = [
        ("another table's name", vec![renamed.to_frame(), frames[1].clone()], 1),
        ("a table that is not there", vec![beyond.to_frame(), frames[1].clone()], 1),
        ("changes before a table", vec![frames[1].clone()], 1),
        ("another kind of frame", vec![Frame::new(Kind::Rows, vec![])], 0),
        ("more changes announced", frames.clone(), 2),
        ("a change that is cut", vec![frames[0].clone(), frames[1].clone(), Frame::new(Kind::Changes, cut)], 2),
    ];
    for (what, frames, changes) in malformed {
        let result = attempt(&frames, changes);
        assert!(matches!(result, Err(Error::Decode(_))), "{what}: {result:?}");
        assert_eq!(database.number("SELECT count(*) FROM customer"), 0, "{what}");
    }
    assert!(attempt(&frames, 1).is_ok(), "the number is still free");
}
