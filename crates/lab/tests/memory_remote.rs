//! A remote in memory against a real server, on both databases.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use headwater_access::Tokens;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Plan, system, track};
use headwater_lab::peer::Peer;
use headwater_lab::sync::memory::{Identity, MemoryRemote, Pace, Synced, Upload};
use headwater_lab::sync::purchase::{self, Purchases};
use headwater_protocol::ValueRef;
use headwater_protocol::message::{ChangeOp, RowOp};
use headwater_server::{Config, Handle, Server};
use tokio::runtime::Runtime;

/// The rows of the employee.
const ROWS: i64 = 2_000;

/// All of them.
const ALL: purchase::Whose = purchase::Whose::Clients(1);

/// A database with purchases, and a server on it.
struct World {
    backend: Arc<dyn Backend>,
    plan: Plan,
    purchases: Purchases,
    server: Handle,
    token: String,
    runtime: Runtime,
}

impl World {
    fn new(backend: Arc<dyn Backend>, is_postgresql: bool) -> World {
        World::with(backend, is_postgresql, true)
    }

    fn with(backend: Arc<dyn Backend>, is_postgresql: bool, detects_conflicts: bool) -> World {
        let plan = purchase::plan(detects_conflicts);
        let mut connection = backend.connect().expect("a database");
        connection.batch(&purchase::tables_sql(is_postgresql)).expect("tables");
        let fill = "INSERT INTO lab_member VALUES ('one', 1)";
        connection
            .batch(&format!("{}; {fill}", purchase::stock_sql(1, 1..ROWS + 1, purchase::NOTES_BYTES)))
            .expect("filled");
        track::track(&mut *connection, &plan).expect("tracked");
        system::add_account(&mut *connection, "one", "no password fits this").expect("an account");
        let key = system::identity(&mut *connection).expect("an identity").token_key;
        let token =
            Tokens::new(&key).and_then(|tokens| tokens.issue("one", Duration::from_hours(1), SystemTime::now()));
        let runtime = Runtime::new().expect("a runtime");
        let config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        let server = runtime.block_on(Server::start(config, backend.clone(), vec![plan.clone()])).expect("a server");
        let purchases = Purchases::new(&plan, purchase::NOTES_BYTES);
        World { backend, plan, purchases, server, token: token.expect("a token").expose().to_owned(), runtime }
    }

    fn remote(&self, number: u8) -> MemoryRemote {
        self.remote_at(self.server.local_addr().to_string(), number)
    }

    fn remote_at(&self, place: String, number: u8) -> MemoryRemote {
        MemoryRemote::new(Identity {
            server: Peer::at(place),
            user: "one".to_owned(),
            token: self.token.clone(),
            model: (self.plan.model.name.clone(), self.plan.model.version, self.plan.fingerprint),
            remote_id: [number; 16],
            secret: [number; 32],
        })
    }

    fn sql(&self, sql: &str) {
        self.backend.connect().expect("a database").batch(sql).expect(sql);
    }

    /// How many rows the consolidated database has in another way than this.
    fn differences(&self, are_there: bool, is_updated: bool) -> usize {
        let mut connection = self.backend.connect().expect("a database");
        let queries = purchase::differences_sql(ALL, are_there, is_updated);
        queries.iter().map(|sql| connection.query(sql, &[]).expect(sql).len()).sum()
    }

    fn sync(&self, remote: &mut MemoryRemote, is_updated: bool) -> Result<Synced, String> {
        self.sync_at(Pace::default(), remote, is_updated)
    }

    fn sync_at(&self, pace: Pace, remote: &mut MemoryRemote, is_updated: bool) -> Result<Synced, String> {
        let mut check = |_, op, row: &[ValueRef<'_>]| match (op, row) {
            (RowOp::Delete, &[ValueRef::Int(employee), ValueRef::Int(number)]) => Ok(purchase::mark(employee, number)),
            _ => match self.purchases.check(row, is_updated) {
                Some((employee, number)) => Ok(purchase::mark(employee, number)),
                None => Err(format!("{row:?}")),
            },
        };
        self.runtime.block_on(remote.sync(pace, &mut check)).map_err(|failure| failure.detail)
    }

    fn up(&self, remote: &mut MemoryRemote, op: ChangeOp, is_updated: bool) -> (u64, u64, u64) {
        let changes = (1..=ROWS).map(|number| self.purchases.change(op, 1, number, is_updated));
        remote.put(Upload::of(&self.purchases.header, changes));
        let synced = self.sync(remote, is_updated).expect("a sync");
        (synced.changes, synced.contested, synced.upserts + synced.deletes)
    }
}

fn every_row_goes_both_ways(backend: Arc<dyn Backend>, is_postgresql: bool) {
    let world = World::new(backend, is_postgresql);
    let (mut one, mut other) = (world.remote(1), world.remote(2));
    let all = (1..=ROWS).fold(0u64, |sum, number| sum.wrapping_add(purchase::mark(1, number)));
    let rows = ROWS as u64;
    let counts = |synced: Synced| (synced.upserts, synced.deletes, synced.sum);
    assert_eq!(world.sync(&mut one, false).map(counts), Ok((0, 0, 0)), "an empty sync");
    // Down.
    world.sql(&purchase::all_sql(ALL, ChangeOp::Insert, false));
    assert_eq!(world.sync(&mut one, false).map(counts), Ok((rows, 0, all)));
    assert_eq!(world.sync(&mut one, false).map(counts), Ok((0, 0, 0)), "it has seen them");
    world.sql(&purchase::all_sql(ALL, ChangeOp::Update, true));
    let wrong = world.sync(&mut one, false).expect_err("the rows are others than it is told");
    assert!(wrong.contains("a downloaded row is wrong"), "{wrong}");
    assert_eq!(world.sync(&mut one, true).map(counts), Ok((rows, 0, all)), "and they come again");
    assert_eq!(world.sync(&mut other, true).map(counts), Ok((rows, 0, all)));
    world.sql(&purchase::all_sql(ALL, ChangeOp::Delete, false));
    assert_eq!(world.sync(&mut one, false).map(counts), Ok((0, rows, all)));
    // Up: what one sends, the other has, and it itself gets nothing back.
    for (op, is_updated) in [(ChangeOp::Insert, false), (ChangeOp::Update, true), (ChangeOp::Update, false)] {
        assert_eq!(world.up(&mut one, op, is_updated), (rows, 0, 0), "{op:?}");
        assert_eq!(world.differences(true, is_updated), 0);
        assert_eq!(world.differences(true, !is_updated), 3, "what differs is seen");
        assert_eq!(world.sync(&mut other, is_updated).map(|synced| synced.upserts), Ok(rows), "{op:?}");
    }
    assert_eq!(world.differences(false, false), 3);
    assert_eq!(world.up(&mut one, ChangeOp::Delete, false), (rows, 0, 0));
    assert_eq!((world.differences(false, false), world.differences(true, false)), (0, 3));
    assert_eq!(world.sync(&mut other, false).map(counts), Ok((0, rows, all)));
}

#[test]
fn every_row_goes_both_ways_on_postgresql() {
    let url = headwater_testkit::Postgres::shared().and_then(headwater_testkit::Postgres::create_database);
    let postgres = Postgres::new(&url.expect("a database"), Settings::default()).expect("an address");
    every_row_goes_both_ways(Arc::new(postgres), true);
}

#[test]
fn every_row_goes_both_ways_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    std::fs::File::create(&path).expect("a file");
    every_row_goes_both_ways(Arc::new(Sqlite::new(path)), false);
}

/// Somebody before the server who refuses so many connections, each until an hour from now, and passes the others on; the place where it
/// listens.
fn refusing(server: SocketAddr, times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        // Closed later: a request that was not read to its end would break its answer.
        let mut refused = Vec::new();
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.expect("a client");
            if number < times {
                let mut heard = vec![0; 1 << 16];
                let _ = client.read(&mut heard).expect("a request");
                let refusal = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
                client.write_all(refusal.as_bytes()).expect("a client that listens");
                refused.push(client);
                continue;
            }
            let mut server = TcpStream::connect(server).expect("the server");
            let (mut from, mut to) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    place
}

#[test]
fn who_is_refused_comes_back_when_told_or_when_it_likes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    std::fs::File::create(&path).expect("a file");
    let world = World::new(Arc::new(Sqlite::new(path)), false);
    world.sql(&purchase::all_sql(ALL, ChangeOp::Insert, false));
    let mut impatient = world.remote_at(refusing(world.server.local_addr(), 20), 1);
    let at_once = Pace { retry_delay: Some(Duration::from_millis(1)), ..Pace::default() };
    let synced = world.sync_at(at_once, &mut impatient, false).expect("let in in the end");
    assert_eq!((synced.upserts, synced.refusals, synced.retries), (ROWS as u64, 20, 20));
    let synced = world.sync_at(at_once, &mut impatient, false).expect("let in");
    assert_eq!((synced.refusals, synced.retries), (0, 0));
    // An hour is more than any sync is tried for.
    let mut obedient = world.remote_at(refusing(world.server.local_addr(), 20), 2);
    let told = world.sync_at(Pace::default(), &mut obedient, false).expect_err("it does not come back within the hour");
    assert!(told.contains("HTTP status 503"), "{told}");
}

#[test]
fn conflicts_are_found_unless_they_are_off() {
    for (detects_conflicts, contested) in [(true, ROWS as u64), (false, 0)] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("central.db");
        std::fs::File::create(&path).expect("a file");
        let world = World::with(Arc::new(Sqlite::new(path)), false, detects_conflicts);
        let mut remote = world.remote(1);
        world.sql(&purchase::all_sql(ALL, ChangeOp::Insert, false));
        world.sync(&mut remote, false).expect("the rows");
        world.sql("UPDATE lab_purchase SET cost = '1.000000'");
        // What comes down after the upload is looked at by nobody here: with conflicts the rows are neither.
        let changes = (1..=ROWS).map(|number| world.purchases.change(ChangeOp::Update, 1, number, true));
        remote.put(Upload::of(&world.purchases.header, changes));
        let synced = world.runtime.block_on(remote.sync(Pace::default(), &mut |_, _, _| Ok(0))).expect("a sync");
        assert_eq!((synced.changes, synced.contested), (ROWS as u64, contested));
    }
}
