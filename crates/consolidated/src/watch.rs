//! Whether what a query reads has changed, without running it.
//!
//! [`Connection::watch`](crate::results::QueryConnection::watch) finds what a query's result depends on: tracked tables, by themselves or through views. A
//! query that depends on anything else (another table, the time, a function of somebody's) can't be watched. What
//! [`Connection::marked`](crate::results::QueryConnection::marked) says of a watched one before it is run, its mark, tells later whether a transaction that
//! was not visible then has changed one of the tables. One that was open then and commits late is found like any other: marks name what
//! was visible, and no largest number.

use sha2::{Digest as _, Sha256};

/// A query that can be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// What asks for the state of the tables, and whether they have changed.
    pub(crate) sql: String,
    /// The definitions of what the query reads, when it was looked at.
    pub(crate) state: String,
    /// What asks a connection for its [`Outlook`].
    pub(crate) outlook_sql: String,
    /// [`Outlook::names`] of the connection that looked, of which the state is a part; `None`: that can't be told.
    pub(crate) names: Option<String>,
}

/// How a connection finds what a watched query reads, and what it may read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// The database and its life, and what the query's names mean: two connections that have this alike read the same tables.
    pub names: String,
    /// What the connection's role may read.
    pub rights: String,
}

impl Watched {
    /// Whether a connection with this outlook reads what the connection does that looked into the query, as long as the state is the same.
    pub fn is_read_alike(&self, outlook: &Outlook) -> bool {
        self.names.as_ref() == Some(&outlook.names)
    }

    /// A mark with the definitions under which it was made: under others it is good for nothing. Both in hexadecimal digits, a slash between.
    pub(crate) fn mark(&self, seen: &[u8]) -> String {
        format!("{}/{}", hex::encode(seen), self.definitions())
    }

    /// What a mark had seen, if it was made under these definitions.
    pub(crate) fn seen(&self, mark: &str) -> Option<Vec<u8>> {
        let (seen, definitions) = mark.split_once('/')?;
        hex::decode(seen).ok().filter(|_| definitions == self.definitions())
    }

    fn definitions(&self) -> String {
        hex::encode(&Sha256::digest(&self.state)[..16])
    }
}

/// What is known of a watched query's tables now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Nothing has changed since the mark that was given. This one says the same, and is younger.
    Unchanged(String),
    /// Something has, or no mark was given: the mark of what is read from now on.
    Changed(String),
    /// A table, a view or a trigger was altered: the query is to be looked at again.
    Altered,
}
