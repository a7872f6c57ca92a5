//! What tells, before a query is run, whether its answer may have changed.

use std::time::Duration;

use headwater_consolidated::results::{ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, Pooled, QueryConnection, QueryPool};
use headwater_model::sql::is_moment;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::{Value, ValueRef};

use super::{Told, read};
use crate::tag;

/// What tells whether the answer may have changed, before the query is run; and whether it is what is known.
pub(super) fn told(
    connection: &mut Pooled<dyn QueryConnection>,
    sql: &str,
    freshness: &Told,
    known: Option<&str>,
    options: &ReadOptions,
) -> Result<Option<(String, bool)>, Error> {
    match freshness {
        Told::Query(sql, parameters) => {
            let mut said = Said(sql.clone().into_bytes());
            read(connection, sql, parameters, options, &mut said)?;
            let mark = tag::digest(&said.0);
            let is_known = known == Some(&mark);
            Ok(Some((mark, is_known)))
        }
        Told::Tables(watches, looking) => {
            let marked = watches.mark(&mut **connection, (sql, *looking), known);
            connection.note(marked)
        }
    }
}

/// The same of SQL of a client's, which reads by another role than change tracking is asked by: where both see the same.
pub(super) fn told_of_clients(
    connection: &mut Pooled<dyn QueryConnection>,
    (own, patience): (&QueryPool, Duration),
    (sql, parameters, freshness): (&str, &[Value], &Told),
    known: Option<&str>,
) -> Result<Option<(String, bool)>, Error> {
    let Told::Tables(watches, looking) = freshness else { return Ok(None) };
    // Its values are texts, which the database may read as dates: what a query depends on is told without them.
    let is_of_now = |value: &Value| matches!(value, Value::Text(text) if is_moment(&String::from_utf8_lossy(text)));
    if parameters.iter().any(is_of_now) {
        return Ok(None);
    }
    let mut own = own.checkout(patience)?;
    let (known, known_rights) = known.and_then(|known| known.rsplit_once('/')).unzip();
    let marked = watches.mark(&mut *own, (sql, *looking), known);
    let Some((mark, is_known)) = own.note(marked)? else { return Ok(None) };
    let Some(looked) = watches.known(sql) else { return Ok(None) };
    let outlook = connection.outlook(&looked);
    let Some(outlook) = connection.note(outlook)?.filter(|outlook| looked.is_read_alike(outlook)) else {
        return Ok(None);
    };
    // The mark is the server's; who may read is the client's.
    let rights = tag::digest(&outlook.rights);
    let is_known = is_known && known_rights == Some(&*rights);
    Ok(Some((format!("{mark}/{rights}"), is_known)))
}

/// The query of the freshness and what it says, byte for byte: each value as it is stored, behind its kind and its length.
struct Said(Vec<u8>);

impl ResultSink for Said {
    fn begin(&mut self, _: &[ResultColumn]) -> Result<(), Error> {
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        const BYTES_MAX: usize = 4_096;
        let mut scratch = Scratch::default();
        for value in values {
            let (kind, bytes) = match encode(*value, &mut scratch) {
                Stored::Null => (b'0', Vec::new()),
                Stored::Integer(number) => (b'1', number.to_be_bytes().to_vec()),
                Stored::Real(real) => (b'2', real.to_bits().to_be_bytes().to_vec()),
                Stored::Text(bytes) => (b'3', bytes.to_vec()),
                Stored::Blob(bytes) => (b'4', bytes.to_vec()),
            };
            self.0.push(kind);
            self.0.extend(bytes.len().to_be_bytes());
            self.0.extend(bytes);
        }
        if self.0.len() > BYTES_MAX {
            let detail = format!("the query of the freshness gives more than {BYTES_MAX} bytes, expected a row of few");
            return Err(Error::Sql { detail, line: None, is_statement: true });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are no text, values that have each other's ends, and NULL are all told apart.
    #[test]
    fn what_a_freshness_says_is_told_apart_byte_by_byte() {
        let rows: [&[ValueRef<'_>]; 9] = [
            &[ValueRef::Bytes(b"\x80")],
            &[ValueRef::Bytes(b"\x81")],
            &[ValueRef::Text(b"\x80")],
            &[ValueRef::Text(b"a\x1f"), ValueRef::Text(b"b")],
            &[ValueRef::Text(b"a"), ValueRef::Text(b"\x1fb")],
            &[ValueRef::Null],
            &[ValueRef::Text(b"")],
            &[ValueRef::Int(1)],
            &[ValueRef::Text(b"1")],
        ];
        let said = rows.map(|row| {
            let mut said = Said(Vec::new());
            said.row(row).expect("few bytes");
            said.0
        });
        for (place, one) in said.iter().enumerate() {
            assert!(!said[..place].contains(one), "{:?}", rows[place]);
        }
    }
}
