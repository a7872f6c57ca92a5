//! Tables that are made where each CREATE commits by itself: a table of the run's ID is made first and dropped last, so that whoever comes
//! after a crash knows what is the lab's.
//!
//! ```text
//! look: none of them is there | get the run's lock | CREATE marker | the script | ... | DROP tables | DROP marker
//! ```
//!
//! The lock goes with the session, so that a script whose end nobody saw is known to have ended.

use super::Session;
use crate::harness::Failure;

/// The markers' names begin so; the run's ID follows.
const MARKER: &str = "headwater_lab_";
/// What a marker's comment says before the names of the tables.
const TELLS: &str = "made first by a run of Headwater's lab, to be dropped last: ";
/// The most letters of a comment.
const COMMENT_MAX: usize = 2048;
/// How many seconds a session that is killed may take to end.
const END: u32 = 60;
/// A table that is there already.
const EXISTS: &str = "42S01/1050";

/// The runs that have left something: the marker's name, and which tables it is for.
pub(crate) const LEFT: &str = "SELECT table_name, substring_index(table_comment, ': ', -1) FROM information_schema.tables \
    WHERE table_schema = database() AND left(table_name, 14) = 'headwater_lab_'";

impl Session {
    /// Runs the script, which makes these tables. `note` is told the run's ID, by which [`Session::has_made`] knows later what became of
    /// it, and none once nothing of it is left for certain. After a failure what was made is dropped again.
    pub(crate) async fn make(
        &mut self,
        tables: &[String],
        script: &str,
        note: &mut dyn FnMut(Option<String>),
    ) -> Result<(), Failure> {
        let id: String = self.value("SELECT left(replace(uuid(), '-', ''), 16)").await?;
        note(Some(id.clone()));
        self.value(&format!("SELECT get_lock({}, 0)", lock(&id))).await?;
        let comment: String = format!("{TELLS}{}", tables.join(", ")).chars().take(COMMENT_MAX).collect();
        let comment = headwater_model::sql::literal(&comment);
        self.script(&format!("CREATE TABLE {MARKER}{id} (nothing INTEGER) COMMENT {comment}")).await?;
        let Err(failure) = self.script(script).await else { return Ok(()) };
        // Who has made one of them meanwhile keeps it, and what comes after it was not made.
        let is_anothers =
            |table: &String| failure.class.to_string() == EXISTS && failure.detail.contains(&format!("'{table}'"));
        let anothers = tables.iter().position(is_anothers);
        if self.unmake(&tables[..anothers.unwrap_or(tables.len())], &id).await.is_ok() {
            note(None);
        }
        let Some(place) = anothers else { return Err(failure) };
        Err(Failure { detail: format!("{}; {} stays as it is", failure.detail, tables[place]), ..failure })
    }

    /// Drops these tables, and then the marker.
    pub(crate) async fn unmake(&mut self, tables: &[String], id: &str) -> Result<(), Failure> {
        for table in tables.iter().rev() {
            self.script(&format!("DROP TABLE IF EXISTS {}", headwater_model::sql::quote(table))).await?;
        }
        self.script(&format!("DROP TABLE IF EXISTS {MARKER}{id}")).await
    }

    /// Whether a script whose end nobody saw has made something. It has ended then.
    pub(crate) async fn has_made(&mut self, id: &str) -> Result<bool, Failure> {
        let holder = self.value(&format!("SELECT is_used_lock({})", lock(id))).await?;
        if holder != "NULL" {
            // It may have ended meanwhile.
            let _ = self.script(&format!("KILL {holder}")).await;
        }
        if self.value(&format!("SELECT get_lock({}, {END})", lock(id))).await? != "1" {
            return Err(Failure::usage(format!("the session {holder} that makes them does not end")));
        }
        let marker = format!("SELECT 1 FROM ({LEFT}) markers WHERE table_name = '{MARKER}{id}'");
        Ok(!self.rows(&marker, 1).await?.is_empty())
    }

    async fn value(&mut self, sql: &str) -> Result<String, Failure> {
        Ok(self.rows(sql, 1).await?.into_iter().flatten().map(|(_, value)| value).collect())
    }
}

/// The run's lock, as a literal.
fn lock(id: &str) -> String {
    format!("'{MARKER}{id}'")
}
