//! What tells that a database is not the one that handed out a watermark: the counts in sealed watermarks.

use headwater_consolidated::download::{self, DownloadRequest};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::system::{Greeted, Greeting, SealRequest, greet, identity, seal_watermarks};
use headwater_consolidated::{Dialect, Plan};
use headwater_protocol::message::{Hello, Watermarks};

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
            own: &[],
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            snapshots: None,
        };
        let mut connection = database.connect();
        let (summary, seen) = download::write(&mut *connection, &request, &mut |_| Ok(())).expect("read");
        before_seal();
        let incarnation = greeted.welcome.incarnation;
        let request = SealRequest { plan, user: "anna", hello: &self.hello, incarnation };
        self.hello.watermarks = seal_watermarks(&mut *connection, &request, seen).expect("sealed");
        self.hello.incarnation = incarnation;
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
