//! Two transactions, one of which moves or deletes a row from which others take their partition, while the other one writes below it: in
//! every order of their beginnings, statements and commits, with a sync after each step (PostgreSQL).

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use headwater_consolidated::{Error, Plan, track};

use super::database::{Database, plan};
use super::kin::{MODEL, tables};
use super::replica::Replica;

const STOCK: &str = "SET session_replication_role = origin; TRUNCATE line; DELETE FROM orders; DELETE FROM shop; \
    INSERT INTO shop VALUES (1, 'north', 'n'), (2, 'south', 's'), (3, 'east', 'e'); \
    INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'); INSERT INTO line VALUES (1, 1, 'x'), (1, 2, 'x'), (2, 1, 'y')";

/// What moves or deletes rows from which others take their partition, one and two levels above the lines.
const MOVES: [&str; 4] = [
    "UPDATE orders SET shop = 2 WHERE id = 1",
    "UPDATE shop SET region = 'south' WHERE id = 1",
    "UPDATE orders SET shop = 3 WHERE id = 1",
    "DELETE FROM orders WHERE id = 1",
];

const WRITES: [&str; 8] = [
    "DELETE FROM line WHERE orders = 1",
    "UPDATE line SET orders = 2, no = no + 5 WHERE orders = 1",
    "UPDATE line SET note = 'w' WHERE orders = 1",
    "INSERT INTO line VALUES (1, 9, 'new')",
    "UPDATE line SET orders = 1, no = 7 WHERE orders = 2",
    "SET LOCAL session_replication_role = replica; DELETE FROM line WHERE orders = 1",
    "TRUNCATE line",
    "DELETE FROM line WHERE orders = 1; DELETE FROM orders WHERE id = 1",
];

/// One of the two.
struct Transaction {
    sql: Sender<String>,
    done: Receiver<bool>,
    /// What is left of it, the last first.
    steps: Vec<String>,
    is_running: bool,
}

/// Runs each statement that comes. The first that fails rolls back, and nothing is done any more until the next BEGIN.
fn work(database: &Database, statements: &Receiver<String>, done: &Sender<bool>) {
    let mut connection = database.connect();
    while let Ok(sql) = statements.recv() {
        let ended = connection.batch(&sql);
        if ended.is_err() {
            connection.batch("ROLLBACK").expect("rolled back");
        }
        if done.send(ended.is_ok()).is_err() {
            return;
        }
    }
}

impl Transaction {
    /// Sends the next step, unless the one before still waits; then waits until it is over, or waits for the other transaction itself.
    fn step(&mut self, database: &mut dyn headwater_consolidated::Connection) {
        if let Some(sql) = (!self.is_running).then(|| self.steps.pop()).flatten() {
            self.sql.send(sql).expect("it works");
            self.is_running = true;
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while self.is_running {
            match self.done.recv_timeout(Duration::from_millis(1)) {
                Ok(is_well) => self.end(is_well),
                Err(_) => {
                    assert!(Instant::now() < deadline, "it neither waits nor ends");
                    let rows = database.query(waits, &[]).expect("asked");
                    if rows[0][0] != headwater_protocol::Value::Int(0) {
                        return;
                    }
                }
            }
        }
    }

    fn end(&mut self, is_well: bool) {
        self.is_running = false;
        if !is_well {
            self.steps.clear();
        }
    }

    /// Waits for what is running.
    fn finish(&mut self) {
        while self.is_running || !self.steps.is_empty() {
            if let Some(sql) = (!self.is_running).then(|| self.steps.pop()).flatten() {
                self.sql.send(sql).expect("it works");
            }
            let is_well = self.done.recv_timeout(Duration::from_secs(30)).expect("it ends");
            self.end(is_well);
        }
    }
}

/// The orders of two transactions with so many steps each: whose step is next.
fn orders(steps: usize) -> Vec<Vec<usize>> {
    (0..1_u32 << (2 * steps))
        .filter(|bits| bits.count_ones() as usize == steps)
        .map(|bits| (0..2 * steps).map(|place| (bits >> place & 1) as usize).collect())
        .collect()
}

struct Race<'d> {
    database: &'d Database,
    plan: Plan,
    remotes: [Replica; 2],
}

impl<'d> Race<'d> {
    fn new(database: &'d Database, action: Option<&str>) -> Race<'d> {
        let sql = match action {
            Some(action) => tables(action),
            None => tables("").replace(" REFERENCES shop (id)", "").replace(" REFERENCES orders (id)", ""),
        };
        database.application(&sql);
        database.application("DELETE FROM member; INSERT INTO member VALUES ('anna', 'north'), ('ben', 'south')");
        let plan = plan(MODEL);
        track::track(&mut *database.connect(), &plan).expect("tracked");
        database.application(STOCK);
        let remotes = ["anna", "ben"].map(|user| Replica::synced(database, &plan, user));
        Race { database, plan, remotes }
    }

    fn sync(&mut self, connection: &mut dyn headwater_consolidated::Connection) {
        for remote in &mut self.remotes {
            match remote.try_sync(connection, &self.plan) {
                // A table that is being emptied can't be read.
                Ok(_) | Err(Error::Retry { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn run(&mut self, isolation: &str, statements: [&str; 2], orders: &[Vec<usize>]) {
        let mut connection = self.database.connect();
        connection.batch("SET lock_timeout = '20ms'").expect("set");
        for order in orders {
            self.database.application(STOCK);
            self.sync(&mut *connection);
            let database = self.database;
            std::thread::scope(|scope| {
                let mut both = statements.map(|statement| {
                    let ((sql, received), (told, done)) = (channel(), channel());
                    scope.spawn(move || work(database, &received, &told));
                    // A transaction that reads a snapshot takes it when it begins.
                    let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM shop");
                    let mut steps = vec!["COMMIT".to_owned(), statement.to_owned(), begin];
                    if order.len() == 4 {
                        let begin = steps.pop().unwrap_or_default();
                        steps[1] = format!("{begin}; {}", steps[1]);
                    }
                    Transaction { sql, done, steps, is_running: false }
                });
                for whose in order {
                    both[*whose].step(&mut *connection);
                    self.sync(&mut *connection);
                }
                // Whichever waits for the other one ends after it.
                for one in both.iter_mut().filter(|one| !one.is_running) {
                    one.finish();
                }
                both.iter_mut().for_each(Transaction::finish);
            });
            self.sync(&mut *connection);
            for remote in &self.remotes {
                let fresh = Replica::synced(self.database, &self.plan, &remote.user);
                for table in ["shop", "orders", "line"] {
                    let (held, there) = (remote.table(&self.plan, table), fresh.table(&self.plan, table));
                    assert_eq!(held, there, "{table} of {}: {isolation} {statements:?} {order:?}", remote.user);
                }
            }
        }
    }
}

pub(crate) fn whatever_the_order_of_two_transactions(database: &Database) {
    let mut race = Race::new(database, Some(" ON DELETE CASCADE ON UPDATE CASCADE"));
    for write in WRITES {
        for moving in &MOVES[..2] {
            race.run("READ COMMITTED", [moving, write], &orders(2));
        }
    }
    for write in &WRITES[..2] {
        for moving in &MOVES[2..] {
            race.run("READ COMMITTED", [moving, write], &orders(2));
        }
    }
}

/// No foreign key of the head holds a parent.
pub(crate) fn whatever_the_order_without_foreign_keys(database: &Database) {
    let mut race = Race::new(database, None);
    for moving in [MOVES[1], MOVES[3]] {
        for write in [WRITES[1], WRITES[3]] {
            race.run("READ COMMITTED", [moving, write], &orders(2));
            race.run("REPEATABLE READ", [moving, write], &orders(3));
        }
    }
}
