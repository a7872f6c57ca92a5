//! Which privileges Headwater's own tables need, and the ones that a role lacks.
//!
//! The server's role reads and writes all of them. The functions of change tracking run with the rights of their owner, who is often the
//! same role; an application's role needs nothing.

use headwater_model::sql::literal;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::{function_name, side_name};
use headwater_model::{Lineage, Model, Table};
use headwater_protocol::{Row, Value};

use crate::catalogue::text;
use crate::{Connection, Error};

/// What a server does with the tables of schema `headwater`, the side tables aside.
const SERVER: &[(&str, &[&str])] = &[
    ("account", &["SELECT"]),
    ("conflict", &["SELECT", "INSERT", "DELETE"]),
    ("horizon", &["SELECT", "INSERT", "UPDATE"]),
    ("identity", &["SELECT", "UPDATE"]),
    ("key_range", &["SELECT", "INSERT", "DELETE"]),
    ("note", &["SELECT", "INSERT", "DELETE"]),
    ("part", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("refresh", &["SELECT"]),
    ("refresh_event", &["SELECT", "INSERT", "DELETE"]),
    ("remote", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("table_change", &["SELECT", "INSERT", "DELETE"]),
    ("table_identity", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("tracked", &["SELECT"]),
];

/// What a server does with a side table.
const SERVER_SIDE: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// What the function of each table does with the tables of schema `headwater`, the side tables aside.
const FUNCTION: &[(&str, &[&str])] =
    &[("identity", &["SELECT"]), ("refresh_event", &["SELECT", "INSERT"]), ("table_change", &["INSERT"])];

/// What a function does with the side tables that it writes.
const FUNCTION_SIDE: &[&str] = &["SELECT", "INSERT", "UPDATE"];

/// A privilege that a role lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    /// The role, quoted where it must be.
    pub(crate) role: String,
    pub(crate) privilege: String,
    /// `headwater.refresh_event`, or `SCHEMA headwater`.
    pub(crate) on: String,
}

impl Lack {
    /// The statement that mends it.
    pub(crate) fn grant(&self) -> String {
        format!("GRANT {} ON {} TO {}", self.privilege, self.on, self.role)
    }
}

/// The privileges in schema `headwater` that the connection's role lacks to serve a model.
pub(crate) fn lacked_by_server(connection: &mut dyn Connection, model: &Model) -> Result<Vec<Lack>, Error> {
    let mut needs = Needs::new(SERVER);
    for table in model.tables.iter().filter(|table| table.is_tracked()) {
        needs.own(&side_name(&Lineage::new(model, table)), SERVER_SIDE);
    }
    needs.lacked(connection, "SELECT r.oid, r.rolname FROM pg_catalog.pg_roles r WHERE r.rolname = current_user")
}

/// The privileges that the owner of a table's function lacks to note changes.
pub(crate) fn lacked_by_function(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<Lack>, Error> {
    let role = format!(
        "SELECT r.oid, r.rolname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace \
         JOIN pg_catalog.pg_roles r ON r.oid = p.proowner WHERE s.nspname = 'headwater' AND p.proname = {}",
        literal(&function_name(&kin.lineage))
    );
    needs_of_function(kin).lacked(connection, &role)
}

/// Whether a note that failed for want of a privilege (42501) would be written now: the owner of the function lacks none any more. The
/// cause has to name a table that the function uses, and none of them may have row security, which ends statements with the same code.
pub(crate) fn is_granted(connection: &mut dyn Connection, kin: &Kin<'_>, cause: &str) -> Result<bool, Error> {
    let needs = needs_of_function(kin);
    if !needs.0.iter().any(|need| cause.contains(&need.table)) {
        return Ok(false);
    }
    Ok(lacked_by_function(connection, kin)?.is_empty() && !needs.have_row_security(connection)?)
}

fn needs_of_function(kin: &Kin<'_>) -> Needs {
    let mut needs = Needs::new(FUNCTION);
    let moves: &[&str] = if kin.below.is_empty() { &["SELECT"] } else { &["SELECT", "UPDATE"] };
    needs.base(kin.table(), moves);
    for parent in kin.lineage.parents() {
        // A lock of a row (FOR KEY SHARE) takes the right to update it.
        needs.base(parent, &["SELECT", "UPDATE"]);
    }
    for below in &kin.below {
        needs.base(below.table(), &["SELECT"]);
    }
    for lineage in std::iter::once(&kin.lineage).chain(&kin.below) {
        needs.own(&side_name(lineage), FUNCTION_SIDE);
    }
    needs
}

/// The privileges that something needs on a table.
struct Need {
    schema: String,
    table: String,
    privileges: Vec<&'static str>,
    /// One on some column is enough.
    is_any_column: bool,
}

struct Needs(Vec<Need>);

impl Needs {
    fn new(own: &[(&str, &[&'static str])]) -> Needs {
        let mut needs = Needs(Vec::new());
        for (table, privileges) in own {
            needs.own(table, privileges);
        }
        needs
    }

    fn own(&mut self, table: &str, privileges: &[&'static str]) {
        let (schema, table) = ("headwater".to_owned(), table.to_owned());
        self.0.push(Need { schema, table, privileges: privileges.to_vec(), is_any_column: false });
    }

    fn base(&mut self, table: &Table, privileges: &[&'static str]) {
        let schema = table.schema.as_deref().unwrap_or("public").to_owned();
        let table = table.name.clone();
        self.0.push(Need { schema, table, privileges: privileges.to_vec(), is_any_column: true });
    }

    /// Rows of SQL: schema, table, privileges, whether one on some column is enough.
    fn rows(&self) -> String {
        let row = |need: &Need| {
            let privileges: Vec<String> = need.privileges.iter().map(|privilege| literal(privilege)).collect();
            let (schema, table) = (literal(&need.schema), literal(&need.table));
            format!("({schema}, {table}, ARRAY[{}], {})", privileges.join(", "), need.is_any_column)
        };
        self.0.iter().map(row).collect::<Vec<_>>().join(", ")
    }

    /// What the role, which is a query of its oid and name, lacks of these. A table that is not there is lacked by nobody.
    fn lacked(&self, connection: &mut dyn Connection, role: &str) -> Result<Vec<Lack>, Error> {
        let sql = format!(
            "WITH role(id, name) AS ({role}), need(schema, name, privileges, is_any) AS (VALUES {}) \
             SELECT quote_ident(r.name), 'USAGE', format('SCHEMA %I', s.nspname) FROM role r, pg_catalog.pg_namespace s \
             WHERE s.nspname IN (SELECT n.schema FROM need n) AND NOT has_schema_privilege(r.id, s.oid, 'USAGE') \
             UNION ALL (SELECT quote_ident(r.name), p.privilege, format('%I.%I', s.nspname, c.relname) \
             FROM role r CROSS JOIN need n JOIN pg_catalog.pg_namespace s ON s.nspname = n.schema \
             JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = n.name \
             CROSS JOIN LATERAL unnest(n.privileges) WITH ORDINALITY AS p(privilege, place) \
             WHERE NOT CASE WHEN n.is_any THEN has_any_column_privilege(r.id, c.oid, p.privilege) \
             ELSE has_table_privilege(r.id, c.oid, p.privilege) END ORDER BY c.relname, p.place)",
            self.rows()
        );
        let rows = connection.query(&sql, &[])?;
        let lack = |row: &Row| Lack { role: text(row, 0), privilege: text(row, 1), on: text(row, 2) };
        Ok(rows.iter().map(lack).collect())
    }

    fn have_row_security(&self, connection: &mut dyn Connection) -> Result<bool, Error> {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM (VALUES {}) AS n(schema, name, privileges, is_any) \
             JOIN pg_catalog.pg_namespace s ON s.nspname = n.schema \
             JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = n.name WHERE c.relrowsecurity)",
            self.rows()
        );
        let rows = connection.query(&sql, &[])?;
        Ok(rows.first().and_then(|row| row.first()) == Some(&Value::Bool(true)))
    }
}
