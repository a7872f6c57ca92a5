//! What tells that a database is not the one that handed out a watermark: the counts in sealed watermarks.

use headwater_consolidated::download::{self, DownloadRequest};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::system::{
    Count, Greeted, Greeting, SealRequest, Tally, count_downloads, greet, greet_before_count, identity, remotes,
    seal_watermarks,
};
use headwater_consolidated::{Dialect, Error, Mode, Plan, track};
use headwater_protocol::message::{Hello, Watermarks};
use headwater_protocol::{Row, Value};

use super::database::Database;
use super::replica::Replica;

/// A remote as the server sees it: its watermarks stay in their seals.
struct Sealed {
    hello: Hello,
}

impl Sealed {
    fn new(plan: &Plan, user: &str) -> Sealed {
        Sealed { hello: Replica::new(user).hello(plan) }
    }

    fn greet(&self, database: &Database, plan: &Plan) -> Greeted {
        match greet(&mut *database.connect(), plan, "anna", &self.hello).expect("greeted") {
            Greeting::Welcome(greeted) => greeted,
            Greeting::WrongSecret => panic!("the secret is right"),
        }
    }

    /// Reads a download, and runs `before_seal` between its snapshot and the count.
    fn download(&mut self, database: &Database, plan: &Plan, greeted: &Greeted, before_seal: impl FnOnce()) -> u64 {
        let request = DownloadRequest {
            plan,
            user: "anna",
            remote_id: self.hello.remote_id,
            watermarks: &greeted.watermarks,
            restart: greeted.welcome.restart,
            life: None,
            own: &[],
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            extended: &[],
            packing: None,
            snapshots: None,
            keeps_marks: false,
            tells_leaving: false,
        };
        let mut connection = database.connect();
        let (summary, seen) = download::write(&mut *connection, &request, &mut |_| Ok(())).expect("read");
        before_seal();
        let request = SealRequest { plan, user: "anna", hello: &self.hello, greeted };
        self.hello.watermarks = seal_watermarks(&mut *connection, &request, seen).expect("sealed");
        self.hello.incarnation = greeted.welcome.incarnation;
        summary.partitions_whole
    }

    /// A sync that goes well; whether it started afresh, and how many partitions came whole.
    fn sync(&mut self, database: &Database, plan: &Plan) -> (bool, u64) {
        let greeted = self.greet(database, plan);
        let whole = self.download(database, plan, &greeted, || ());
        (greeted.welcome.restart, whole)
    }

    fn count(&self, database: &Database) -> i64 {
        let id = hex::encode(self.hello.remote_id);
        database.number(&match database.dialect() {
            Dialect::Sqlite => format!("SELECT syncs FROM headwater_remote WHERE remote_id = x'{id}'"),
            Dialect::Postgres => format!("SELECT syncs FROM headwater.remote WHERE remote_id = '\\x{id}'"),
        })
    }

    /// What a state of the database knows of its counts.
    fn counted(&self, database: &Database) -> Row {
        let id = hex::encode(self.hello.remote_id);
        let sql = match database.dialect() {
            Dialect::Sqlite => {
                format!("SELECT syncs, hex(recent_counts) FROM headwater_remote WHERE remote_id = x'{id}'")
            }
            Dialect::Postgres => {
                format!("SELECT syncs, encode(recent_counts, 'hex') FROM headwater.remote WHERE remote_id = '\\x{id}'")
            }
        };
        database.rows(&sql).remove(0)
    }

    /// The database is in such a state.
    fn put_back(&self, database: &Database, counted: &Row) {
        let [Value::Int(syncs), Value::Text(list)] = counted.as_slice() else { panic!("{counted:?}") };
        let (id, list) = (hex::encode(self.hello.remote_id), String::from_utf8_lossy(list));
        database.application(&match database.dialect() {
            Dialect::Sqlite => {
                format!(
                    "UPDATE headwater_remote SET syncs = {syncs}, recent_counts = x'{list}' WHERE remote_id = x'{id}'"
                )
            }
            Dialect::Postgres => format!(
                "UPDATE headwater.remote SET syncs = {syncs}, recent_counts = '\\x{list}' WHERE remote_id = '\\x{id}'"
            ),
        });
    }

    /// The database's count as an older state of it has it.
    fn set_count(&self, database: &Database, count: i64) {
        let id = hex::encode(self.hello.remote_id);
        database.application(&match database.dialect() {
            Dialect::Sqlite => format!("UPDATE headwater_remote SET syncs = {count} WHERE remote_id = x'{id}'"),
            Dialect::Postgres => format!("UPDATE headwater.remote SET syncs = {count} WHERE remote_id = '\\x{id}'"),
        });
    }
}

fn incarnation(database: &Database) -> [u8; 16] {
    identity(&mut *database.connect()).expect("an identity").incarnation
}

pub(crate) fn a_count_that_is_ahead_begins_a_new_incarnation(database: &Database) {
    let plan = database.standard();
    let first = incarnation(database);
    let (mut one, mut two) = (Sealed::new(&plan, "anna"), Sealed::new(&plan, "anna"));
    for remote in [&mut one, &mut two] {
        let (restart, whole) = remote.sync(database, &plan);
        assert!(!restart && whole > 0, "everything is new to it");
        assert_eq!(remote.sync(database, &plan), (false, 0));
        assert_eq!(remote.count(database), 2);
    }
    assert_eq!(incarnation(database), first);
    // A download whose answer was lost: the database has counted more than the remote knows.
    let before = one.hello.clone();
    one.sync(database, &plan);
    one.hello = before;
    assert_eq!(one.sync(database, &plan), (false, 0), "that is no other database");
    assert_eq!(incarnation(database), first);

    one.set_count(database, 3);
    assert_eq!(two.sync(database, &plan), (false, 0), "nobody has noticed yet");
    let (restart, whole) = one.sync(database, &plan);
    assert!(restart && whole > 0);
    let second = incarnation(database);
    assert_ne!(second, first);
    let (restart, whole) = two.sync(database, &plan);
    assert!(restart && whole > 0, "all others start afresh too");
    for remote in [&mut one, &mut two] {
        assert_eq!(remote.sync(database, &plan), (false, 0));
    }
    assert_eq!(incarnation(database), second, "once");
}

/// Somebody has deleted the remote's row: so it would look to it in a backup from before its first sync, and what others have seen of what
/// came after that nobody can tell.
pub(crate) fn a_remote_without_its_row_looks_like_a_backup(database: &Database) {
    let plan = database.standard();
    let (mut one, mut two) = (Sealed::new(&plan, "anna"), Sealed::new(&plan, "anna"));
    one.sync(database, &plan);
    two.sync(database, &plan);
    let id = hex::encode(one.hello.remote_id);
    database.application(&match database.dialect() {
        Dialect::Sqlite => format!("DELETE FROM headwater_remote WHERE remote_id = x'{id}'"),
        Dialect::Postgres => format!("DELETE FROM headwater.remote WHERE remote_id = '\\x{id}'"),
    });
    let first = incarnation(database);
    assert_eq!(two.sync(database, &plan), (false, 0), "nothing happens as long as that remote stays away");
    assert!(one.sync(database, &plan).0 && two.sync(database, &plan).0, "then all start afresh");
    assert_ne!(incarnation(database), first);
    for remote in [&mut one, &mut two] {
        assert_eq!(remote.sync(database, &plan), (false, 0), "once");
    }
}

/// All transactions that a snapshot saw are committed before its count is: who has lost one of them has lost the count.
pub(crate) fn a_download_is_counted_after_its_snapshot(database: &Database) {
    let plan = database.standard();
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    let greeted = one.greet(database, &plan);
    database.application("INSERT INTO customer VALUES (1, 'a', 'seen', 1)");
    let mut backup = 0;
    let id = Sealed { hello: one.hello.clone() };
    one.download(database, &plan, &greeted, || backup = id.count(database));
    // The backup was made after the snapshot, and before what came next.
    one.set_count(database, backup);
    assert!(one.sync(database, &plan).0, "it is noticed");
}

pub(crate) fn what_a_remote_only_says_begins_no_incarnation(database: &Database) {
    let plan = database.standard();
    let first = incarnation(database);
    let (mut one, mut two) = (Sealed::new(&plan, "anna"), Sealed::new(&plan, "anna"));
    one.sync(database, &plan);
    two.sync(database, &plan);
    let honest = one.hello.clone();
    // An upload number that the database never gave: this remote starts afresh, nobody else.
    one.hello.upload_sequence = 7;
    let greeted = one.greet(database, &plan);
    assert!(greeted.welcome.restart && greeted.welcome.upload_sequence == 0);
    one.hello = honest.clone();
    // A mark with a greater count, or any other bit, is none: what it was for comes whole.
    for place in 0..honest.watermarks.marks[0].len() {
        let mut forged = honest.watermarks.clone();
        forged.marks[0][place] ^= 0x11;
        one.hello.watermarks = forged;
        let (restart, whole) = one.sync(database, &plan);
        assert!(!restart && whole > 0, "byte {place}");
    }
    one.hello.watermarks = Watermarks { marks: vec![Vec::new(); 3], entries: honest.watermarks.entries.clone() };
    assert!(one.sync(database, &plan).1 > 0);
    assert_eq!(incarnation(database), first);
    assert_eq!(two.sync(database, &plan), (false, 0));
}

/// A copy of a file takes a new remote ID; its watermarks belong to its rows, and are held against the ID that they were issued to.
pub(crate) fn a_copy_keeps_its_watermarks(database: &Database) {
    let plan = database.standard();
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    one.sync(database, &plan);
    let mut copy = Sealed::new(&plan, "anna");
    (copy.hello.incarnation, copy.hello.watermarks) = (one.hello.incarnation, one.hello.watermarks.clone());
    let kept = copy.hello.clone();
    assert_eq!(copy.sync(database, &plan), (false, 0));
    assert_eq!(copy.sync(database, &plan), (false, 0));
    copy.hello = kept;
    one.set_count(database, 1);
    assert!(copy.sync(database, &plan).0, "the count of the first ID tells");
}

/// Watermarks that a remote came with may go back to it, and nothing is written, where they say as much as new ones would, and not for long.
pub(crate) fn a_download_that_brings_nothing_need_not_be_counted(database: &Database) {
    let plan = database.standard();
    let mut remote = Sealed::new(&plan, "anna");
    let brings_nothing = |remote: &Sealed, own: &[u8]| {
        let greeted = remote.greet(database, &plan);
        let request = DownloadRequest {
            plan: &plan,
            user: "anna",
            remote_id: remote.hello.remote_id,
            watermarks: &greeted.watermarks,
            restart: greeted.welcome.restart,
            life: None,
            own,
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            extended: &[],
            packing: None,
            snapshots: None,
            keeps_marks: false,
            tells_leaving: false,
        };
        let (summary, seen) =
            download::write(&mut *database.connect(), &request, &mut |_| Ok(())).expect("the download is read");
        download::brings_nothing(&request, &summary, &seen)
    };
    assert!(!remote.greet(database, &plan).counted_lately, "nothing was counted yet");
    assert!(!brings_nothing(&remote, &[]), "everything is new");
    remote.sync(database, &plan);
    assert!(remote.greet(database, &plan).counted_lately);
    assert!(brings_nothing(&remote, &[]));
    assert!(!brings_nothing(&remote, &[1]), "what an upload has made would come back");
    database.application("INSERT INTO customer VALUES (7, 'c7', 'other', 1)");
    assert!(!brings_nothing(&remote, &[]), "a row is new");
    assert!(!brings_nothing(&remote, &[]), "and still is: the remote came with the same");
    remote.sync(database, &plan);
    assert!(brings_nothing(&remote, &[]));
    let mut elsewhere = Sealed { hello: remote.hello.clone() };
    elsewhere.hello.incarnation = [9; 16];
    assert!(!brings_nothing(&elsewhere, &[]), "it starts afresh");
    let of_another = greet(&mut *database.connect(), &plan, "bert", &remote.hello).expect("greeted");
    assert!(matches!(of_another, Greeting::Welcome(greeted) if !greeted.counted_lately), "it has another user now");
    database.application(&match database.dialect() {
        Dialect::Sqlite => "UPDATE headwater_remote SET last_sync_at = '2020-01-01 00:00:00.000Z'".to_owned(),
        Dialect::Postgres => "UPDATE headwater.remote SET last_sync_at = now() - interval '61 seconds'".to_owned(),
    });
    assert!(!remote.greet(database, &plan).counted_lately, "that was long ago");
    remote.sync(database, &plan);
    assert!(remote.greet(database, &plan).counted_lately);
}

/// A sync at one database whose answer is lost, one at a copy of it, and back: both have counted as many. So has a database that was put back
/// and that a copy of the file has caught up.
pub(crate) fn a_count_of_the_same_number_elsewhere_is_no_count_of_this_one(database: &Database) {
    let plan = database.standard();
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    let (before, held) = (one.counted(database), one.hello.clone());
    one.sync(database, &plan);
    let here = one.counted(database);
    one.hello = held.clone();
    assert_eq!(one.sync(database, &plan), (false, 0), "a lost answer is no other database");
    one.hello = held;
    one.put_back(database, &before);
    assert_eq!(one.sync(database, &plan), (false, 0), "the copy counts for itself");
    assert_eq!(one.count(database), 2);
    one.put_back(database, &here);
    let first = incarnation(database);
    let (restart, whole) = one.sync(database, &plan);
    assert!(restart && whole > 0, "what it has seen there says nothing here");
    assert_ne!(incarnation(database), first);
    assert_eq!(one.sync(database, &plan), (false, 0), "once");
}

/// A remote may lose as many answers in turn as it likes.
pub(crate) fn lost_answers_begin_no_incarnation(database: &Database) {
    let plan = database.standard();
    let first = incarnation(database);
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    let held = one.hello.clone();
    for _ in 0..20 {
        one.hello = held.clone();
        assert_eq!(one.sync(database, &plan), (false, 0));
    }
    assert_eq!(one.count(database), 21);
    assert_eq!(one.sync(database, &plan), (false, 0));
    assert_eq!(incarnation(database), first);
}

/// Headwater's own tables are emptied and loaded from an older dump: what was noted since is gone, and no count tells it to a remote that has not
/// synced since either.
pub(crate) fn own_tables_that_were_loaded_begin_an_incarnation(database: &Database) {
    let plan = database.standard();
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    let side: Vec<String> = database
        .rows("SELECT side_table FROM headwater.tracked")
        .iter()
        .map(|row| match row.first() {
            Some(Value::Text(name)) => String::from_utf8_lossy(name).into_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let own: Vec<&str> =
        ["headwater.identity", "headwater.remote"].into_iter().chain(side.iter().map(String::as_str)).collect();
    for (place, table) in own.iter().enumerate() {
        database.application(&format!("CREATE TABLE dumped_{place} AS SELECT * FROM {table}"));
    }
    database.application("INSERT INTO customer VALUES (1, 'a', 'since the dump', 1)");
    let first = incarnation(database);
    for (place, table) in own.iter().enumerate() {
        database.application(&format!("TRUNCATE {table}; INSERT INTO {table} SELECT * FROM dumped_{place}"));
    }
    assert_eq!(incarnation(database), first, "nobody has noticed yet");
    let (restart, whole) = one.sync(database, &plan);
    assert!(restart && whole > 0, "what was noted since the dump is not known");
    assert_ne!(incarnation(database), first);
    assert_eq!(one.sync(database, &plan), (false, 0), "once");
}

/// Tables that an earlier version made are named with what mends them, and lose nothing by it.
pub(crate) fn tables_of_an_earlier_version_get_what_they_lack(database: &Database) {
    let plan = database.standard();
    let mut one = Sealed::new(&plan, "anna");
    one.sync(database, &plan);
    database.application(match database.dialect() {
        Dialect::Sqlite => "ALTER TABLE headwater_remote DROP COLUMN recent_counts",
        Dialect::Postgres => "ALTER TABLE headwater.remote DROP COLUMN recent_counts",
    });
    let greeted = greet(&mut *database.connect(), &plan, "anna", &one.hello);
    assert!(matches!(&greeted, Err(Error::Setup { mend, .. }) if mend.contains("headwater track")), "{greeted:?}");
    let missing = track::plan_tracking(&mut *database.connect(), &plan).expect("planned");
    assert!(missing.len() == 1 && missing[0].contains("recent_counts"), "{missing:?}");
    track::track(&mut *database.connect(), &plan).expect("tracked");
    assert!(track::plan_tracking(&mut *database.connect(), &plan).expect("planned").is_empty());
    assert!(greet(&mut *database.connect(), &plan, "anna", &one.hello).is_ok());
}

/// Several downloads are counted in one commit; one whose remote another sync holds, or that is not who it says, keeps the others from nothing.
pub(crate) fn downloads_are_counted_together(database: &Database) {
    let plan = database.standard();
    let known = Sealed::new(&plan, "anna");
    known.greet(database, &plan);
    let (new, held) = (Sealed::new(&plan, "anna"), Sealed::new(&plan, "anna"));
    held.greet(database, &plan);
    let greeted = greet_before_count(&mut *database.connect(), &plan, "anna", &new.hello).expect("greeted");
    let Greeting::Welcome(greeted) = greeted else { panic!("nobody has this ID") };
    assert!(greeted.is_new && !greeted.counted_lately);
    let is_known = |remote: &Sealed| {
        let remotes = remotes(&mut *database.connect(), 10).expect("listed");
        remotes.iter().any(|record| record.remote_id == remote.hello.remote_id)
    };
    assert!(!is_known(&new), "it is registered when its download is counted");
    let mut other = database.connect();
    let mut thief = known.hello.clone();
    thief.secret = [0; 32];
    if database.dialect() == Dialect::Postgres {
        let id = hex::encode(held.hello.remote_id);
        other.begin(Mode::Upload).expect("begun");
        other
            .query(&format!("SELECT 1::int8 FROM headwater.remote WHERE remote_id = '\\x{id}' FOR UPDATE"), &[])
            .expect("held");
    }
    let odd = "o'dd \\ \"name\", {x}";
    let tally = |hello: &Hello, is_new| {
        Tally::of(&plan, odd, hello, &Greeted { is_new, ..greeted.clone() }, &Watermarks::default())
    };
    let tallies =
        [tally(&known.hello, false), tally(&thief, false), tally(&held.hello, false), tally(&new.hello, true)];
    let count = |tallies: &[Tally]| {
        let counted = count_downloads(&mut *database.connect(), tallies).expect("counted");
        counted.iter().map(|count| matches!(count, Count::Counted(_))).collect::<Vec<_>>()
    };
    let counted = count(&tallies);
    let is_held = database.dialect() == Dialect::Postgres;
    assert_eq!(counted, [true, false, !is_held, true]);
    assert_eq!((known.count(database), new.count(database)), (1, 1));
    other.rollback().expect("rolled back");
    let remotes = remotes(&mut *database.connect(), 10).expect("listed");
    assert!(remotes.iter().filter(|record| record.user == odd).count() >= 2, "{remotes:?}");
    // It is bound to its secret, and may count again.
    let mut thief = new.hello.clone();
    thief.secret = [0; 32];
    let again = [tally(&thief, true), tally(&new.hello, true)];
    assert_eq!(count(&again[..1]), [false], "another has this ID by now");
    assert_eq!(greet(&mut *database.connect(), &plan, "anna", &thief).expect("greeted"), Greeting::WrongSecret);
    assert_eq!(count(&again[1..]), [true]);
    assert_eq!(new.count(database), 2);
    let greeted = greet_before_count(&mut *database.connect(), &plan, odd, &new.hello).expect("greeted");
    assert!(matches!(greeted, Greeting::Welcome(greeted) if !greeted.is_new && greeted.counted_lately));
}
