//! Users and the hashes of their passwords.

use headwater_protocol::{Row, Value};

use super::horizon::seconds;
use super::sql::{dialect_sql, integer, text};
use crate::{Connection, Dialect, Error};

/// A user who signs in with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// The user's name.
    pub user: String,
    /// The password's hash in PHC form.
    pub password_hash: String,
    /// Whether signing in is refused.
    pub disabled: bool,
    /// When the account was made: a removed account and one of the same name made later differ by it.
    pub created_at: String,
    /// The same in seconds since 1970.
    pub created_s: u64,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("user", &self.user).field("disabled", &self.disabled).finish_non_exhaustive()
    }
}

/// Whether the table of accounts has been made. It is looked for in the catalogue, which every role may read.
pub fn has_accounts(connection: &mut dyn Connection) -> Result<bool, Error> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'headwater_account'",
        Dialect::Postgres => {
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'headwater' AND c.relname = 'account'"
        }
    };
    let rows = connection.query(sql, &[])?;
    Ok(integer(rows.first().and_then(|row| row.first()), "count")? != 0)
}

fn columns(dialect: Dialect) -> String {
    let seconds = seconds(dialect, "created_at");
    format!("SELECT user_name, password_hash, disabled, created_at, {seconds} FROM {{hw}}account")
}

/// Adds an account; `false` if the name is taken, and then nothing has changed.
pub fn add_account(connection: &mut dyn Connection, user: &str, password_hash: &str) -> Result<bool, Error> {
    let sql = "INSERT INTO {hw}account (user_name, password_hash, disabled) VALUES (?1, ?2, ?3) \
               ON CONFLICT (user_name) DO NOTHING";
    let values = [Value::text(user), Value::text(password_hash), Value::Bool(false)];
    Ok(connection.execute(&dialect_sql(connection.dialect(), sql), &values)? == 1)
}

/// Changes an account's password; `false` if there is none of this name.
pub fn set_account_password(connection: &mut dyn Connection, user: &str, password_hash: &str) -> Result<bool, Error> {
    let sql = dialect_sql(connection.dialect(), "UPDATE {hw}account SET password_hash = ?2 WHERE user_name = ?1");
    Ok(connection.execute(&sql, &[Value::text(user), Value::text(password_hash)])? == 1)
}

/// Removes an account; `false` if there is none of this name. What is known of the user's remotes stays.
pub fn remove_account(connection: &mut dyn Connection, user: &str) -> Result<bool, Error> {
    let sql = dialect_sql(connection.dialect(), "DELETE FROM {hw}account WHERE user_name = ?1");
    Ok(connection.execute(&sql, &[Value::text(user)])? == 1)
}

/// Every account, by name.
pub fn accounts(connection: &mut dyn Connection) -> Result<Vec<Account>, Error> {
    let dialect = connection.dialect();
    let sql = dialect_sql(dialect, &format!("{} ORDER BY user_name", columns(dialect)));
    connection.query(&sql, &[])?.iter().map(account).collect()
}

/// The account of a name.
pub fn find_account(connection: &mut dyn Connection, user: &str) -> Result<Option<Account>, Error> {
    let dialect = connection.dialect();
    let sql = dialect_sql(dialect, &format!("{} WHERE user_name = ?1", columns(dialect)));
    connection.query(&sql, &[Value::text(user)])?.first().map(account).transpose()
}

/// Disables or enables an account; `false` if there is none of this name.
pub fn set_account_disabled(connection: &mut dyn Connection, user: &str, disabled: bool) -> Result<bool, Error> {
    let sql = dialect_sql(connection.dialect(), "UPDATE {hw}account SET disabled = ?2 WHERE user_name = ?1");
    Ok(connection.execute(&sql, &[Value::text(user), Value::Bool(disabled)])? == 1)
}

fn account(row: &Row) -> Result<Account, Error> {
    Ok(Account {
        user: text(row.first(), "user_name")?,
        password_hash: text(row.get(1), "password_hash")?,
        disabled: integer(row.get(2), "disabled")? != 0,
        created_at: text(row.get(3), "created_at")?,
        created_s: u64::try_from(integer(row.get(4), "created_at")?).unwrap_or_default(),
    })
}
