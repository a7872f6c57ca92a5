//! Rows that remotes are to have, or to lose, without being written: row security, unlogged tables.

use headwater_consolidated::check::{Severity, check};
use headwater_consolidated::{Connection, Error, Plan, track};
use headwater_protocol::Row;

use super::database::Database;
use super::logged::{logged, only};
use super::replica::Replica;
use super::values::{order, text};

/// A role that is held to row security.
struct Role<'d> {
    database: &'d Database,
    name: String,
}

impl Role<'_> {
    fn new(database: &Database) -> Role<'_> {
        let name = format!("app_{}", uuid::Uuid::new_v4().simple());
        database.application(&format!(
            "CREATE TABLE allowed (user_name text, note text); CREATE ROLE {name}; \
             GRANT ALL ON SCHEMA public, headwater TO {name}; GRANT ALL ON ALL TABLES IN SCHEMA public, headwater TO {name}; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA headwater TO {name}"
        ));
        Role { database, name }
    }

    fn connect(&self) -> Box<dyn Connection> {
        let mut connection = self.database.connect();
        connection.batch(&format!("SET ROLE {}", self.name)).expect("the role");
        connection
    }

    /// The notes of the orders that a sync leaves, and how many rows it brought.
    fn sync(&self, connection: &mut dyn Connection, remote: &mut Replica, plan: &Plan) -> (Vec<Row>, usize) {
        let synced = remote.try_sync(connection, plan).expect("synced");
        let mut fresh = Replica::new("ben");
        fresh.try_sync(&mut *self.connect(), plan).expect("synced");
        assert_eq!(remote.table(plan, "orders"), fresh.table(plan, "orders"));
        (remote.table(plan, "orders"), synced.count())
    }

    /// A sync leaves the orders with these notes, and the next one brings nothing.
    fn sees(&self, connection: &mut dyn Connection, remote: &mut Replica, plan: &Plan, notes: &[&str], after: &str) {
        let (rows, _) = self.sync(connection, remote, plan);
        let found: Vec<_> = rows.iter().map(|row| row[2].clone()).collect();
        assert_eq!(found, notes.iter().map(|note| text(note)).collect::<Vec<_>>(), "{after}");
        assert_eq!(self.sync(connection, remote, plan).1, 0, "{after}: nothing comes twice");
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        self.database.application(&format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name));
    }
}

/// Policies come, change and go: what is visible is what remotes have.
pub(crate) fn policies_that_change_bring_a_table_afresh(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'anna'), (2, 'north', 'ben'), (3, 'north', 'all')");
    let role = Role::new(database);
    let (mut connection, mut ben) = (role.connect(), Replica::new("ben"));
    assert_eq!(role.sync(&mut *connection, &mut ben, &plan).0.len(), 3);
    let own = "note = current_setting('headwater.user', true)";
    for (change, notes) in [
        (
            format!("ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON orders USING ({own})"),
            &["ben"][..],
        ),
        (format!("ALTER POLICY own ON orders USING ({own} OR note = 'all')"), &["ben", "all"]),
        ("CREATE POLICY more ON orders USING (note = 'anna')".to_owned(), &["anna", "ben", "all"]),
        ("DROP POLICY more ON orders".to_owned(), &["ben", "all"]),
        ("ALTER TABLE orders DISABLE ROW LEVEL SECURITY".to_owned(), &["anna", "ben", "all"]),
        ("ALTER TABLE orders ENABLE ROW LEVEL SECURITY".to_owned(), &["ben", "all"]),
    ] {
        database.application(&change);
        role.sees(&mut *connection, &mut ben, &plan, notes, &change);
    }
}

/// A policy may read other tables: then rows come and go without being written.
pub(crate) fn a_policy_that_reads_grants_holds_at_each_sync(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'red'), (2, 'north', 'blue')");
    let role = Role::new(database);
    database.application(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY granted ON orders USING (EXISTS (SELECT FROM allowed a \
         WHERE a.user_name = current_setting('headwater.user', true) AND a.note = orders.note)); \
         INSERT INTO allowed VALUES ('ben', 'red')",
    );
    let (mut connection, mut ben) = (role.connect(), Replica::new("ben"));
    assert_eq!(role.sync(&mut *connection, &mut ben, &plan).0, [order(1, "north", "red")]);
    database.application("UPDATE allowed SET note = 'blue'");
    let (lines, synced) = logged(|| role.sync(&mut *connection, &mut ben, &plan));
    assert_eq!(synced.0, [order(2, "north", "blue")]);
    only(&lines, &["a policy on this table", "comes whole at each sync", "table=orders"]);
    database.application("DELETE FROM allowed");
    assert!(role.sync(&mut *connection, &mut ben, &plan).0.is_empty());
    let findings = check(&mut *role.connect(), &plan).expect("checked");
    let named = findings.iter().find(|finding| finding.code == "policy_reads_more").expect("named");
    assert_eq!((named.severity, named.table.as_deref()), (Severity::Warning, Some("orders")));
}

/// A policy may be for a role: it applies as long as the server's role is a member of that one.
pub(crate) fn a_policy_for_a_role_comes_and_goes_with_the_membership(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'anna'), (2, 'north', 'ben'), (3, 'north', 'all')");
    let role = Role::new(database);
    let (mut connection, mut ben) = (role.connect(), Replica::new("ben"));
    let (server, group) = (&role.name, format!("group_{}", role.name));
    let own = "note = current_setting('headwater.user', true)";
    for (change, notes) in [
        (
            format!(
                "CREATE ROLE {group}; CREATE ROLE {group}_2; GRANT {group}_2 TO {group}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY; \
                 CREATE POLICY own ON orders USING ({own}); CREATE POLICY anna ON orders TO {group}_2 USING (note = 'anna'); \
                 CREATE POLICY less ON orders AS RESTRICTIVE TO {group}_2 USING (note <> 'ben')"
            ),
            &["ben"][..],
        ),
        (format!("GRANT {group} TO {server}"), &["anna"]),
        (format!("REVOKE {group}_2 FROM {group}"), &["ben"]),
        (format!("GRANT {group}_2 TO {server}"), &["anna"]),
        (format!("REVOKE {group} FROM {server}"), &["anna"]),
        (format!("REVOKE {group}_2 FROM {server}"), &["ben"]),
        (format!("DROP POLICY anna ON orders; DROP POLICY less ON orders; DROP ROLE {group}, {group}_2"), &["ben"]),
    ] {
        database.application(&change);
        role.sees(&mut *connection, &mut ben, &plan, notes, &change);
    }
}

/// A setting of the role or the database may change without a write; those of who syncs are the server's own.
pub(crate) fn a_policy_that_reads_a_setting_holds_at_each_sync(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'red'), (2, 'north', 'blue'), (3, 'north', 'ben')");
    let role = Role::new(database);
    let set = |tenant: &str| {
        database.application(&format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET app.tenant = {tenant}', current_database()); END $$"
        ));
    };
    let named = || {
        let findings = check(&mut *role.connect(), &plan).expect("checked");
        findings.iter().any(|finding| finding.code == "policy_reads_more")
    };
    let user = "note = current_setting('headwater.user', true)";
    set("red");
    database.application(&format!(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON orders USING ({user} \
         AND current_setting('headwater.remote_id') <> 'current_setting(''app.tenant'')')"
    ));
    assert!(!named());
    let mut ben = Replica::new("ben");
    assert_eq!(role.sync(&mut *role.connect(), &mut ben, &plan).0, [order(3, "north", "ben")]);
    assert_eq!(role.sync(&mut *role.connect(), &mut ben, &plan).1, 0);
    for (place, policy) in [
        format!("note = current_setting('app.tenant', true) OR {user}"),
        format!("note = current_setting('app.' || 'tenant') OR {user}"),
        format!(
            "note = (SELECT current_setting('app.tenant')) OR {user} OR note = 'current_setting(''headwater.user'''"
        ),
    ]
    .iter()
    .enumerate()
    {
        database.application(&format!("ALTER POLICY own ON orders USING ({policy})"));
        assert!(named(), "{policy}");
        for (tenant, id) in [("red", 1), ("blue", 2)] {
            set(tenant);
            let rows = role.sync(&mut *role.connect(), &mut ben, &plan).0;
            assert_eq!(rows, [order(id, "north", tenant), order(3, "north", "ben")], "{place}");
        }
    }
}

/// A crash empties an unlogged table without a trace.
pub(crate) fn an_unlogged_table_is_refused(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    let (mut connection, mut ben) = (database.connect(), Replica::new("ben"));
    ben.try_sync(&mut *connection, &plan).expect("synced");
    database.application("ALTER TABLE customer SET UNLOGGED");
    let findings = check(&mut *database.connect(), &plan).expect("checked");
    assert!(findings.iter().any(|finding| finding.code == "unlogged_table" && finding.severity == Severity::Error));
    let refused = ben.try_sync(&mut *connection, &plan).map(|_| ()).expect_err("an unlogged table");
    assert!(matches!(&refused, Error::Untracked { what, .. } if what.contains("unlogged")), "{refused:?}");
    // Somebody looked at it while it was unlogged: it may have been emptied.
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("ALTER TABLE customer SET LOGGED");
    let synced = ben.try_sync(&mut *connection, &plan).expect("synced");
    let customer = super::replica::find(&plan, "customer").number;
    assert_eq!(synced.marks.iter().map(|mark| mark.table).collect::<Vec<_>>(), [customer]);
    ben.assert_equals_fresh(database, &plan);
}
