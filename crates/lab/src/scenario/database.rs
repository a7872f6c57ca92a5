//! What differs between databases in one scenario.

/// A kind of database, by the SQL that it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL.
    Postgresql,
    /// MariaDB.
    Mariadb,
    /// SQLite.
    Sqlite,
}

/// One for each kind of database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByDatabase<T> {
    /// For PostgreSQL.
    pub postgresql: T,
    /// For MariaDB.
    pub mariadb: T,
    /// For SQLite.
    pub sqlite: T,
}

impl<T> ByDatabase<T> {
    /// The one for this database.
    pub fn of(&self, database: Database) -> &T {
        match database {
            Database::Postgresql => &self.postgresql,
            Database::Mariadb => &self.mariadb,
            Database::Sqlite => &self.sqlite,
        }
    }

    /// Each of them.
    pub(crate) fn all(&self) -> [&T; 3] {
        [&self.postgresql, &self.mariadb, &self.sqlite]
    }

    pub(super) fn map<U>(self, change: impl Fn(T) -> U) -> ByDatabase<U> {
        ByDatabase { postgresql: change(self.postgresql), mariadb: change(self.mariadb), sqlite: change(self.sqlite) }
    }
}

impl<T: Clone> ByDatabase<T> {
    /// The same for all.
    pub(super) fn same(one: T) -> ByDatabase<T> {
        ByDatabase { postgresql: one.clone(), mariadb: one.clone(), sqlite: one }
    }
}
