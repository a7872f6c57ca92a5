//! What the server's role may not do, and versions that others serve.

use headwater_consolidated::check::privileges;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::{Backend as _, Connection, Error, track};
use headwater_protocol::Value;
use headwater_protocol::message::Outcome;

use super::database::{Database, MODEL, plan};
use super::replica::Replica;
use super::values::{customer, order, text};

/// The database by a role that has the usual grants.
pub(crate) fn by_role(database: &Database) -> (String, Postgres) {
    let rows = database.rows("SELECT current_database()::text");
    let Value::Text(name) = &rows[0][0] else { panic!("{rows:?}") };
    let name = String::from_utf8_lossy(name).into_owned();
    let role = format!("role_{name}");
    database.application(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public, headwater TO {role}; GRANT TEMPORARY ON DATABASE {name} TO {role}; \
         GRANT ALL ON ALL TABLES IN SCHEMA public, headwater TO {role}"
    ));
    let cluster = headwater_testkit::Postgres::shared().expect("a cluster");
    let url = cluster.url(&name).replace("postgres@", &format!("{role}@"));
    (role, Postgres::new(&url, Settings::default()).expect("an address"))
}

pub(crate) fn a_missing_grant_holds_up_its_table_alone(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'); INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    let (role, backend) = by_role(database);
    let mut connection = backend.connect().expect("connected");
    let mut anna = Replica::new("anna");
    anna.try_sync(&mut *connection, &plan).expect("synced");
    let lacking = |connection: &mut dyn Connection| {
        let found = privileges(connection, &plan).expect("looked");
        found
            .iter()
            .map(|finding| (finding.table.clone().expect("a table"), finding.message.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lacking(&mut *connection), []);
    // Rights on each column are as good as one on the table.
    database.application(&format!(
        "REVOKE SELECT, UPDATE ON orders FROM {role}; GRANT SELECT (id, region, note), UPDATE (region, note) ON orders TO {role}"
    ));
    assert_eq!(lacking(&mut *connection), []);
    database.application(&format!("REVOKE SELECT (note) ON orders FROM {role}; REVOKE DELETE ON customer FROM {role}"));
    let named = |table: &str, privilege: &str| (table.to_owned(), format!("the server's role may not {privilege}"));
    assert_eq!(lacking(&mut *connection), [named("customer", "DELETE"), named("orders", "SELECT")]);
    database.application(&format!("GRANT ALL ON customer, orders TO {role}"));
    // Nothing may be inserted into one table.
    database.application(&format!("REVOKE INSERT ON customer FROM {role}"));
    anna.insert(&plan, "customer", customer(2, "b", "x", 1));
    anna.insert(&plan, "customer", customer(3, "c", "x", 1));
    anna.update(&plan, "customer", customer(1, "a", "changed", 1));
    anna.insert(&plan, "orders", order(2, "north", "x"));
    let synced = anna.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(synced.refusals(), [(0, "policy"), (1, "policy")]);
    let Outcome::Refused(refusal) = &synced.outcomes()[0].1 else { panic!("{:?}", synced.outcomes()) };
    assert!(refusal.message.starts_with("privilege:") && refusal.message.contains("customer"), "{}", refusal.message);
    assert_eq!(database.number("SELECT count(*) FROM orders"), 2);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'changed'"), 1);
    // One can't be read: it is left out, and stays at the remote as it was.
    database.application(&format!(
        "GRANT INSERT ON customer TO {role}; REVOKE SELECT ON orders FROM {role}; \
         INSERT INTO orders VALUES (3, 'north', 'late'); INSERT INTO customer VALUES (4, 'd', 'x', 1)"
    ));
    let first = anna.try_sync(&mut *connection, &plan);
    assert!(matches!(first, Err(Error::Retry { broken: false, .. })), "{first:?}");
    for connection in [&mut connection, &mut backend.connect().expect("connected")] {
        let synced = anna.try_sync(&mut **connection, &plan).expect("synced");
        assert!(synced.marks.is_empty(), "{:?}", synced.marks);
        assert_eq!(anna.table(&plan, "orders"), [order(1, "north", "x"), order(2, "north", "x")]);
    }
    assert!(anna.table(&plan, "customer").iter().any(|row| row[1] == text("d")));
    // A new remote has the rest.
    let mut ben = Replica::new("ben");
    ben.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!((ben.table(&plan, "orders").len(), ben.table(&plan, "customer").len()), (0, 2));
    database.application(&format!("GRANT SELECT ON orders TO {role}"));
    let synced = anna.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(
        (synced.marks.len(), synced.upserts.len()),
        (0, 1),
        "only what is new: what was seen before is known still"
    );
    ben.try_sync(&mut *connection, &plan).expect("synced");
    for remote in [&anna, &ben] {
        assert_eq!(remote.table(&plan, "orders").len(), 3);
    }
    // A grant that a policy lacks is named: to try again for ever would hold up all tables.
    database.application(&format!(
        "CREATE TABLE secret (region text); ALTER TABLE orders ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY reading ON orders TO {role} USING (region IN (SELECT s.region FROM secret s))"
    ));
    let attempts: Vec<_> = (0..4).map(|_| anna.try_sync(&mut *connection, &plan).map(|_| ())).collect();
    assert!(matches!(attempts.last(), Some(Err(Error::Setup { .. }))), "{attempts:?}");
    drop((connection, backend));
}

pub(crate) fn a_version_that_remotes_use_is_seen(database: &Database) {
    let old = database.standard();
    let new = plan(&MODEL.replace("version = 1", "version = 2"));
    let mut connection = database.connect();
    assert_eq!(track::used_lately(&mut *connection, &[]).expect("asked"), [] as [String; 0]);
    let _anna = Replica::synced(database, &old, "anna");
    let used = track::used_lately(&mut *connection, std::slice::from_ref(&new)).expect("asked");
    assert!(used.len() == 1 && used[0].contains("\"contract\" version 1: 1 remotes"), "{used:?}");
    assert_eq!(track::used_lately(&mut *connection, &[old, new]).expect("asked"), [] as [String; 0]);
    let (recorded, ago) = match database.dialect() {
        headwater_consolidated::Dialect::Sqlite => {
            ("headwater_remote", "strftime('%Y-%m-%d %H:%M:%f', 'now', '-31 days') || 'Z'")
        }
        headwater_consolidated::Dialect::Postgres => ("headwater.remote", "clock_timestamp() - interval '31 days'"),
    };
    database.application(&format!("UPDATE {recorded} SET last_sync_at = {ago}"));
    assert_eq!(track::used_lately(&mut *connection, &[]).expect("asked"), [] as [String; 0]);
}
