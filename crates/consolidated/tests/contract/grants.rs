//! What the server's role may not do, and versions that others serve.

use headwater_consolidated::check::{self, Finding, Severity, privileges};
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::{Backend as _, Connection, Error, Plan, track};
use headwater_protocol::Value;
use headwater_protocol::message::Outcome;

use super::database::{Database, MODEL, plan};
use super::kin::stocked;
use super::replica::Replica;
use super::values::{customer, int, order, text};

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

/// A server's connection of another role's, and a remote that has synced by it.
fn synced_by(backend: &Postgres, plan: &Plan) -> (Box<dyn Connection>, Replica) {
    let mut connection = backend.connect().expect("connected");
    let mut anna = Replica::new("anna");
    anna.try_sync(&mut *connection, plan).expect("synced");
    (connection, anna)
}

/// The standard tables, with an order and a customer.
fn ordered(database: &Database) -> Plan {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'); INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    plan
}

pub(crate) fn a_missing_grant_holds_up_its_table_alone(database: &Database) {
    let plan = ordered(database);
    let (role, backend) = by_role(database);
    let (mut connection, mut anna) = synced_by(&backend, &plan);
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
    let why = new_customers_alone_are_refused(database, &mut *connection, &plan, &mut anna);
    assert!(why.starts_with("privilege:") && why.contains("customer"), "{why}");
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

/// Sends two customers that are new, one that is changed and an order: the two are refused, all else is stored. Gives what the first is told.
fn new_customers_alone_are_refused(
    database: &Database,
    connection: &mut dyn Connection,
    plan: &Plan,
    anna: &mut Replica,
) -> String {
    anna.insert(plan, "customer", customer(2, "b", "x", 1));
    anna.insert(plan, "customer", customer(3, "c", "x", 1));
    anna.update(plan, "customer", customer(1, "a", "changed", 1));
    anna.insert(plan, "orders", order(2, "north", "x"));
    let synced = anna.try_sync(connection, plan).expect("synced");
    assert_eq!(synced.refusals(), [(0, "policy"), (1, "policy")]);
    let Outcome::Refused(refusal) = &synced.outcomes()[0].1 else { panic!("{:?}", synced.outcomes()) };
    assert_eq!(database.number("SELECT count(*) FROM orders"), 2);
    assert_eq!(database.number("SELECT count(*) FROM customer WHERE name = 'changed'"), 1);
    refusal.message.clone()
}

const SCHEMAS: &str = r#"
    name = "schemas"
    version = 1
    [tables.plain]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.other]
    schema = "app"
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.more]
    schema = "app"
    key = ["id"]
    columns = { id = "int not null", note = "text" }
"#;

/// Without USAGE on a schema its tables alone are withheld, whatever the role may do with the tables themselves.
pub(crate) fn a_schema_that_may_not_be_used_holds_up_its_tables_alone(database: &Database) {
    let table = |name: &str| {
        format!("CREATE TABLE {name} (id bigint PRIMARY KEY, note text); INSERT INTO {name} VALUES (1, 'old');")
    };
    database.application(&format!("CREATE SCHEMA app; {}", ["plain", "app.other", "app.more"].map(table).concat()));
    let plan = plan(SCHEMAS);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let (role, backend) = by_role(database);
    database
        .application(&format!("GRANT USAGE ON SCHEMA app TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA app TO {role}"));
    let (mut connection, mut anna) = synced_by(&backend, &plan);
    assert_eq!(missing(database, &mut *connection, &plan, "SELECT 1"), []);
    let revoked = format!(
        "REVOKE USAGE ON SCHEMA app FROM {role}; INSERT INTO plain VALUES (2, 'new'); INSERT INTO app.other VALUES (2, 'late')"
    );
    let found = missing(database, &mut *connection, &plan, &revoked);
    assert_eq!(grants(&found), format!("GRANT USAGE ON SCHEMA app TO {role};\n"));
    assert!(found[0].message.contains("may not use schema app"), "{found:?}");
    let named = check::check(&mut *connection, &plan).expect("the rest is checked");
    assert!(named.iter().all(|finding| finding.severity == Severity::Warning), "{named:?}");
    // What others change goes up and comes down; the tables of the schema stay as they are.
    let mut carl = Replica::synced(database, &plan, "carl");
    carl.update(&plan, "plain", vec![int(1), text("changed")]);
    carl.update(&plan, "other", vec![int(1), text("refused")]);
    let uploaded = carl.upload(&mut *connection, &plan).expect("uploaded");
    assert_eq!(uploaded.counts.refused, 1, "{:?}", uploaded.receipt);
    assert_eq!(database.number("SELECT count(*) FROM plain WHERE note = 'changed'"), 1);
    let first = anna.try_sync(&mut *connection, &plan);
    assert!(matches!(first, Err(Error::Retry { broken: false, .. })), "{first:?}");
    for connection in [&mut connection, &mut backend.connect().expect("connected")] {
        let synced = anna.try_sync(&mut **connection, &plan).expect("synced");
        assert!(synced.marks.is_empty(), "{:?}", synced.marks);
        assert_eq!((anna.table(&plan, "plain").len(), anna.table(&plan, "other").len()), (2, 1));
    }
    let mut ben = Replica::new("ben");
    ben.try_sync(&mut *connection, &plan).expect("a new remote has the rest");
    assert_eq!((ben.table(&plan, "plain").len(), ben.table(&plan, "more").len()), (2, 0));
    database.application(&grants(&found));
    for remote in [&mut anna, &mut ben] {
        remote.try_sync(&mut *connection, &plan).expect("synced");
        remote.try_sync(&mut *connection, &plan).expect("synced");
        remote.assert_equals_fresh(database, &plan);
    }
}

pub(crate) fn a_table_that_does_not_fit_holds_up_itself_alone(database: &Database) {
    let plan = ordered(database);
    database.application("INSERT INTO customer VALUES (5, 'e', 'x', 1), (6, 'f', 'x', 1)");
    let mut connection = database.connect();
    let mut anna = Replica::synced(database, &plan, "anna");
    // The key has lost its index: only inserts need it.
    database.application("ALTER TABLE customer DROP CONSTRAINT customer_pkey");
    let why = new_customers_alone_are_refused(database, &mut *connection, &plan, &mut anna);
    assert!(why.starts_with("setup: table customer"), "{why}");
    // A column is gone: no change of the table can be made, whatever waits to be untangled, and nothing of it comes down.
    database.application(
        "ALTER TABLE customer ADD PRIMARY KEY (id), DROP name; INSERT INTO orders VALUES (3, 'north', 'late'); \
         INSERT INTO customer VALUES (4, 'd', 1)",
    );
    anna.update(&plan, "customer", customer(1, "a", "lost", 1));
    anna.delete(&plan, "customer", &customer(5, "e", "x", 1));
    for id in 100..160 {
        anna.insert(&plan, "customer", customer(id, &format!("c{id}"), "x", 1));
    }
    anna.insert(&plan, "node", vec![int(1), int(2)]);
    anna.insert(&plan, "node", vec![int(2), Value::Null]);
    anna.insert(&plan, "node", vec![int(3), int(99)]);
    anna.insert(&plan, "orders", order(4, "north", "x"));
    let uploaded = anna.upload(&mut *connection, &plan).expect("uploaded");
    assert_eq!(uploaded.counts.refused, 63, "{:?}", uploaded.receipt);
    let first = anna.try_sync(&mut *connection, &plan);
    assert!(matches!(first, Err(Error::Retry { broken: false, .. })), "{first:?}");
    anna.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(database.number("SELECT (SELECT count(*) FROM orders) * 10 + (SELECT count(*) FROM node)"), 42);
    assert_eq!((anna.table(&plan, "orders").len(), anna.table(&plan, "node").len()), (4, 3));
    assert_eq!(anna.table(&plan, "customer").len(), 64);
    // A new remote has the rest.
    let mut ben = Replica::new("ben");
    ben.try_sync(&mut *database.connect(), &plan).expect("synced");
    assert_eq!((ben.table(&plan, "orders").len(), ben.table(&plan, "customer").len()), (4, 0));
    // It fits again.
    database.application("ALTER TABLE customer ADD name text; UPDATE customer SET name = 'new'");
    for remote in [&mut anna, &mut ben] {
        remote.try_sync(&mut *connection, &plan).expect("synced");
    }
    assert!(anna.table(&plan, "customer").contains(&customer(4, "d", "new", 1)), "what was kept back comes");
    assert_eq!(ben.table(&plan, "customer").len(), 4);
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

/// What is missing in schema `headwater`, each with its grant; `sql` is carried out before.
fn missing(database: &Database, connection: &mut dyn Connection, plan: &Plan, sql: &str) -> Vec<Finding> {
    database.application(sql);
    let found = privileges(connection, plan).expect("looked");
    assert!(found.iter().all(|finding| finding.severity == Severity::Error && finding.code == "privilege"));
    found
}

fn grants(findings: &[Finding]) -> String {
    findings.iter().map(|finding| finding.mend.trim_matches('`').to_owned() + ";\n").collect()
}

/// The side table of a table of the model.
fn side_table(database: &Database, table: &str) -> String {
    let sql = format!(
        "SELECT format('headwater.%I', relname)::text FROM pg_class WHERE relname ~ '^side_{table}' AND relkind = 'r' \
         AND relnamespace = 'headwater'::regnamespace"
    );
    let rows = database.rows(&sql);
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    let Value::Text(name) = &row[0] else { panic!("{rows:?}") };
    String::from_utf8_lossy(name).into_owned()
}

/// Each finding has the statement that mends it, and syncs go on after them.
pub(crate) fn grants_that_are_missing_on_own_tables_are_named(database: &Database) {
    let plan = ordered(database);
    let (role, backend) = by_role(database);
    let (mut connection, mut anna) = synced_by(&backend, &plan);
    let side = side_table(database, "orders");
    let found = missing(
        database,
        &mut *connection,
        &plan,
        &format!(
            "REVOKE ALL ON headwater.refresh, headwater.refresh_event FROM {role}; \
             REVOKE SELECT, INSERT ON {side} FROM {role}"
        ),
    );
    let names = ["refresh", "refresh_event", "refresh_event", "refresh_event"].map(|name| format!("headwater.{name}"));
    let names = names.into_iter().chain([side.clone(), side]);
    let expected = ["SELECT", "SELECT", "INSERT", "DELETE", "SELECT", "INSERT"].into_iter().zip(names);
    let expected = expected
        .fold(String::new(), |all, (privilege, name)| all + &format!("GRANT {privilege} ON {name} TO {role};\n"));
    assert_eq!(grants(&found), expected);
    assert_eq!(found[0].message, "the server's role lacks SELECT on headwater.refresh");
    anna.try_sync(&mut *connection, &plan).map(drop).expect_err("nothing can be read");
    database.application(&grants(&found));
    assert_eq!(missing(database, &mut *connection, &plan, "SELECT 1"), []);
    anna.insert(&plan, "orders", order(2, "north", "y"));
    assert_eq!(anna.try_sync(&mut *connection, &plan).expect("synced").refusals(), []);
    // Without any right there the grants are found all the same.
    let all = format!(
        "REVOKE ALL ON ALL TABLES IN SCHEMA headwater FROM {role}; REVOKE USAGE ON SCHEMA headwater FROM {role}"
    );
    let found = missing(database, &mut *connection, &plan, &all);
    assert!(grants(&found).starts_with(&format!("GRANT USAGE ON SCHEMA headwater TO {role};\n")), "{found:?}");
    database.application(&grants(&found));
    anna.insert(&plan, "orders", order(3, "north", "z"));
    assert_eq!(anna.try_sync(&mut *connection, &plan).expect("synced").refusals(), []);
    assert_eq!(anna.table(&plan, "orders").len(), 3);
    let mut ben = Replica::new("ben");
    ben.try_sync(&mut *connection, &plan).expect("a new remote");
}

/// Changes are noted with the rights of the functions' owner. Where it lacks one the table comes whole, and `check` names the grant until
/// it is there. Where it can't say that either, the application's statement fails: no change goes by without a note.
pub(crate) fn grants_that_the_functions_owner_lacks_are_named(database: &Database) {
    let plan = stocked(database);
    let tracker = format!("tracker_of_{}", by_role(database).0);
    let mut anna = Replica::synced(database, &plan, "anna");
    let found = missing(
        database,
        &mut *database.connect(),
        &plan,
        &format!(
            "CREATE ROLE {tracker}; GRANT ALL ON SCHEMA headwater TO {tracker}; \
             DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'headwater'::regnamespace LOOP \
             EXECUTE format('ALTER FUNCTION %s OWNER TO {tracker}', f); END LOOP; END $$"
        ),
    );
    let named = format!(
        "role {tracker}, with whose rights changes of the table are noted, lacks INSERT on headwater.table_change"
    );
    assert!(found.iter().any(|finding| finding.message == named), "{found:?}");
    database.application(&grants(&found));
    assert_eq!(missing(database, &mut *database.connect(), &plan, "SELECT 1"), []);
    anna.sync(database, &plan); // Another owner is another function: the tables come whole.
    database.application("INSERT INTO shop VALUES (71, 'north')");
    assert_eq!(anna.sync(database, &plan).marks.len(), 0, "these grants are enough");
    anna.assert_equals_fresh(database, &plan);
    let side = side_table(database, "shop");
    let afresh = || {
        let found = check::check(&mut *database.connect(), &plan).expect("checked");
        found
            .into_iter()
            .filter(|finding| finding.code == "comes_afresh")
            .map(|finding| finding.mend)
            .collect::<Vec<_>>()
    };
    assert_eq!(afresh(), Vec::<String>::new());
    database.application(&format!("REVOKE INSERT ON {side} FROM {tracker}; INSERT INTO shop VALUES (72, 'north')"));
    let synced = anna.sync(database, &plan);
    assert!(!synced.marks.is_empty(), "it comes whole");
    anna.assert_equals_fresh(database, &plan);
    let mend = format!("`GRANT INSERT ON {side} TO {tracker}`; this warning ends with the grant");
    assert!(afresh().contains(&mend), "{:?}", afresh());
    let mut application = database.connect();
    application.batch(&format!("REVOKE INSERT ON headwater.refresh_event FROM {tracker}")).expect("revoked");
    let failed =
        application.batch("INSERT INTO shop VALUES (73, 'north')").map(drop).expect_err("no note can be written");
    assert!(failed.to_string().contains("refresh_event"), "{failed}");
    assert_eq!(database.number("SELECT count(*) FROM shop WHERE id = 73"), 0);
    let found = missing(database, &mut *database.connect(), &plan, "SELECT 1");
    assert_eq!(found.len(), 2, "{found:?}");
    database.application(&grants(&found));
    assert_eq!(afresh(), Vec::<String>::new(), "the grant is there");
    // Another cause is still told.
    let other = "UPDATE headwater.refresh_event SET cause = 'a change could not be noted (42501): of another kind'";
    database.application(&format!("{other} WHERE starts_with(cause, 'a change could not be noted')"));
    assert!(afresh().concat().contains("this warning ends 7 days after"), "{:?}", afresh());
}
