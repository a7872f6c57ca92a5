//! The table of MLBench: Purchase, with the values of its published description.

/// The model of the table, partitioned by employee.
pub(crate) const MODEL: &str = r#"
name = "purchase"
version = 1
[partitions.employee]
columns = { emp_id = "int" }
members = "SELECT emp_id FROM member WHERE user_name = :s.user"
[tables.purchase]
direction = "both"
conflict = "consolidated_wins"
key = ["emp_id", "purch_id"]
partition = "employee"
[tables.purchase.columns]
emp_id = "int not null"
purch_id = "int not null"
cust_id = "int not null"
cost = "decimal(30,6) not null"
order_date = "timestamp not null"
notes = "text not null"
"#;

/// The table, as PostgreSQL creates it.
pub(crate) const TABLES: &str = "
CREATE TABLE purchase (
    emp_id integer NOT NULL, purch_id integer NOT NULL, cust_id integer NOT NULL, cost numeric(30,6) NOT NULL,
    order_date timestamp NOT NULL, notes varchar(64) NOT NULL, PRIMARY KEY (emp_id, purch_id));
CREATE TABLE member (user_name text NOT NULL, emp_id integer NOT NULL, PRIMARY KEY (user_name, emp_id));
";

/// The table as one would write it for a plain SQLite file.
pub(crate) const SQLITE_TABLE: &str = "
CREATE TABLE purchase (
    emp_id INTEGER NOT NULL, purch_id INTEGER NOT NULL, cust_id INTEGER NOT NULL, cost TEXT NOT NULL,
    order_date TEXT NOT NULL, notes TEXT NOT NULL, PRIMARY KEY (emp_id, purch_id));
";

/// SQL whose rows are `count` purchases of one employee, from number `first` on. Notes are 64 different characters a row, which
/// don't compress to nothing.
pub(crate) fn rows_sql(employee: u32, first: u64, count: u64) -> String {
    format!(
        "SELECT {employee}, n::int, (n % 1000)::int, 123456789.12 + n, \
         timestamp '2005-01-01' + n * interval '1.000001 second', md5(n::text) || md5((n + 1)::text) \
         FROM generate_series({first}, {last}) AS n",
        last = first + count - 1
    )
}
