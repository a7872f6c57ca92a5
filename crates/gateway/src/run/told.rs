//! What tells, before a query is run, whether its answer may have changed.

use std::time::Duration;

use headwater_consolidated::results::{ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, Pooled, QueryConnection, QueryPool};
use headwater_protocol::ValueRef;

use super::{Told, read};
use crate::query::text_of;
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
            let mut said = Said(sql.clone());
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
    (sql, freshness): (&str, &Told),
    known: Option<&str>,
) -> Result<Option<(String, bool)>, Error> {
    let Told::Tables(watches, looking) = freshness else { return Ok(None) };
    let outlook = connection.outlook();
    let Some(outlook) = connection.note(outlook)? else { return Ok(None) };
    let mut own = own.checkout(patience)?;
    let owns = own.outlook();
    if own.note(owns)? != Some(outlook) {
        return Ok(None);
    }
    let marked = watches.mark(&mut *own, (sql, *looking), known);
    own.note(marked)
}

/// The query of the freshness and what it says, as one text.
struct Said(String);

impl ResultSink for Said {
    fn begin(&mut self, _: &[ResultColumn]) -> Result<(), Error> {
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        const BYTES_MAX: usize = 4_096;
        for value in values {
            self.0 += &text_of(&value.to_value());
            self.0.push('\u{1f}');
        }
        self.0.push('\u{1e}');
        if self.0.len() > BYTES_MAX {
            let detail = format!("the query of the freshness gives more than {BYTES_MAX} bytes, expected a row of few");
            return Err(Error::Sql { detail, line: None, is_statement: true });
        }
        Ok(())
    }
}
