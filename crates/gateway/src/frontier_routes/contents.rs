//! What a payload holds: the rows of a statement, or a file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use headwater_protocol::Value;

use super::Frontier;
use crate::cache::Key;
use crate::client_sql;
use crate::fault::Fault;
use crate::frontier::{Asked as Payload, Field, Fields, Kind, Rows, Statement, Ttl};
use crate::query::Freshness;
use crate::run::{Form, Job, Running, Told};
use crate::service::{Answer, Asked};
use crate::watches::Looking;

/// A payload's bytes.
pub(super) enum Content {
    /// Whole.
    Held(Held),
    /// As they come: the first, and what follows.
    Coming(Bytes, Running),
}

/// A payload that is there.
pub(super) struct Held {
    pub(super) body: Bytes,
    /// How many there are.
    pub(super) records: u64,
    pub(super) modified: SystemTime,
}

impl Frontier {
    /// The bytes of a payload; otherwise why there are none, which the payload's error says.
    pub(super) async fn content(&self, payload: &Payload, ttl: Ttl) -> Result<Content, Fault> {
        match payload.kind {
            Kind::Query => self.rows(payload, ttl).await,
            Kind::File => self.file(payload).await.map_err(Fault::arguments),
            Kind::Certificate => Err(Fault::arguments("a certificate is asked for alone")),
            Kind::Meta => Err(Fault::arguments("meta is not served")),
        }
    }

    async fn rows(&self, payload: &Payload, ttl: Ttl) -> Result<Content, Fault> {
        let statement = payload.statement_in(self.sql.pool().syntax());
        let statement = statement.map_err(|error| Fault::arguments(error.to_string()))?;
        let Statement { sql, values } = statement;
        if let Some(fault) = client_sql::nul_fault(&sql, &values) {
            return Err(fault);
        }
        let (sql, number) = self.sql.numbered(&sql);
        if number != values.len() {
            let expected = "expected a value for each behind the statement: where id = ? and name = ?:5:alpha";
            return Err(Fault::arguments(format!(
                "the statement has {number} ? and {} values, {expected}",
                values.len()
            )));
        }
        let job = Job {
            name: "frontier_request".to_owned(),
            parameters: values.iter().map(Value::text).collect(),
            types: BTreeMap::new(),
            limits: self.settings.limits,
            form: Form::Frontier,
            page: None,
            freshness: Told::Tables(Arc::clone(&self.service.watches), Looking::TheSecondTime),
            known: None,
            client_sql: Some(self.sql.clone()),
            sql,
        };
        let key = key_of(&job.sql, &values);
        let freshness = Freshness { max_age_s: self.settings.kept_s, ..Freshness::default() };
        match self.service.answer(&Asked { key, job, freshness }, || None).await? {
            Answer::Kept(kept, _) => {
                let body = self.service.in_one(&kept.body);
                let records = records(&body).saturating_sub(1); // the header
                if ttl == Ttl::Forever && records == 0 {
                    return Err(Fault::arguments("an empty result can't be kept for ever"));
                }
                Ok(Content::Held(Held { body, records, modified: kept.modified }))
            }
            Answer::Streamed(first, running) => Ok(Content::Coming(first, running)),
            Answer::Unchanged(_) => Err(Fault::internal("a payload has no tag")),
        }
    }

    async fn file(&self, payload: &Payload) -> Result<Content, String> {
        let path = payload.path().map_err(|error| error.to_string())?;
        let folder = self.settings.files.as_ref().ok_or("files are not served here")?;
        let (place, limit) = (folder.join(&path), self.settings.limits.bytes_max);
        let missing = || format!("there is no file {path:?}");
        let real = tokio::fs::canonicalize(&place).await.map_err(|_| missing())?;
        let root = tokio::fs::canonicalize(folder).await.map_err(|_| missing())?;
        let about = tokio::fs::metadata(&real).await.map_err(|_| missing())?;
        // A link may lead out.
        if !real.starts_with(&root) || !about.is_file() {
            return Err(missing());
        }
        if about.len() > limit {
            return Err(format!("the file {path:?} has {} bytes, at most {limit} are served", about.len()));
        }
        let content = tokio::fs::read(&real).await.map_err(|_| missing())?;
        let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Content::Held(Held { body: Rows::of_bytes(&content).take().into(), records: 1, modified }))
    }
}

/// Like questions have one, and no other has it: no name of a query begins so, and in the values' line every one has its ends.
fn key_of(sql: &str, values: &[String]) -> Key {
    Key::from(format!("\n{sql}\n{values:?}"))
}

/// Records of whole ones, the header's among them.
pub(super) fn records(bytes: &[u8]) -> u64 {
    Fields::new(bytes).filter(|field| matches!(field, Ok(Field::EndOfRecord))).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_questions_have_one_key() {
        let of = |sql: &str, values: &[&str]| {
            key_of(sql, &values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
        };
        let same = of("select ?1, ?2", &["a\nb", "c"]);
        assert_eq!(same, of("select ?1, ?2", &["a\nb", "c"]));
        for (sql, values) in [
            ("select ?1, ?2", &["a", "b\nc"][..]),
            ("select ?1, ?2", &["a", "b", "c"]),
            ("select ?1, ?2\na", &["b", "c"]),
            ("select ?1, ?2", &["a\nb\", \"c"]),
            ("select ?1, ?2\n[\"a\\nb\", \"c\"]", &[]),
        ] {
            assert_ne!(of(sql, values), same, "{sql} {values:?}");
        }
    }
}
