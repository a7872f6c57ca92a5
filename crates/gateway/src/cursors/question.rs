//! What a cursor is asked for: by whom, which SQL that is, and where it is run.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};
use headwater_consolidated::results::ReadOptions;
use headwater_protocol::Value;
use headwater_protocol::cursor::Question;

use super::Cursors;
use crate::client_sql::{ClientSql, nul_fault};
use crate::fault::{Fault, Whose};
use crate::frontier_routes::is_admitted;
use crate::query::{QueryLimits, Who};
use crate::service::Service;

/// Who asks on a connection, by the head of its request. What it shows is looked at again for each cursor, as for a request: a user may have
/// been disabled meanwhile, and a token may be over.
#[derive(Clone)]
pub(super) struct Asker {
    authorization: Option<HeaderValue>,
    peer: Option<IpAddr>,
}

/// A statement to be run, and what its rows may come to.
pub(super) struct Statement {
    /// For the log.
    pub(super) name: String,
    pub(super) sql: String,
    pub(super) parameters: Vec<Value>,
    pub(super) options: ReadOptions,
    pub(super) limits: QueryLimits,
    /// Where it is run, if the SQL is the client's.
    pub(super) client_sql: Option<ClientSql>,
}

impl Statement {
    pub(super) fn whose(&self) -> Whose {
        Whose::of(self.client_sql.as_ref(), &self.parameters)
    }
}

impl Asker {
    pub(super) fn new(headers: &HeaderMap, peer: Option<IpAddr>) -> Asker {
        Asker { authorization: headers.get(header::AUTHORIZATION).cloned(), peer }
    }

    /// Who it is; `None`: it shows nothing.
    pub(super) async fn user(&self, service: &Service) -> Result<Option<String>, Fault> {
        match &self.authorization {
            Some(shown) => service.user(shown).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Cursors {
    /// The statement of a question, if whoever asks may ask it.
    pub(super) async fn statement(&self, asker: &Asker, question: &Question) -> Result<Statement, Fault> {
        match question {
            Question::Named(name, arguments) => self.named(asker, name, arguments).await,
            Question::Sql(sql, values) => self.sql(asker, sql, values).await,
        }
    }

    async fn named(&self, asker: &Asker, name: &str, given: &[(String, String)]) -> Result<Statement, Fault> {
        let query = self.service.queries.get(name).ok_or_else(|| Fault::unknown("there is no such query"))?;
        let user = match &query.who {
            Who::Public if !query.is_personal() => None,
            _ => asker.user(&self.service).await?,
        };
        match (&query.who, &user) {
            (Who::Known | Who::Users(_), None) => return Err(headwater_access::Error::Unauthenticated.into()),
            (Who::Users(users), Some(user)) if !users.contains(user) => return Err(Fault::forbidden()),
            _ => {}
        }
        let pairs = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let arguments = query.arguments(pairs).map_err(|error| Fault::arguments(error.to_string()))?;
        // As over HTTP: a public query is answered for nobody.
        let user = user.filter(|_| query.who != Who::Public).unwrap_or_default();
        let (sql, parameters) = query.whole_statement(&arguments, &user, self.pool.placeholder());
        let options = ReadOptions { time_out: self.settings.time_out, types: query.types.clone() };
        let limits = query.limits;
        Ok(Statement { name: query.name.clone(), sql, parameters, options, limits, client_sql: None })
    }

    async fn sql(&self, asker: &Asker, sql: &str, values: &[String]) -> Result<Statement, Fault> {
        let Some((settings, client_sql)) = &self.sql else {
            return Err(Fault::refused("SQL of clients is not run here: ask a named query"));
        };
        is_admitted(settings, &self.service, asker.authorization.as_ref(), asker.peer).await?;
        if let Some(fault) = nul_fault(sql, values) {
            return Err(fault);
        }
        let (sql, number) = client_sql.numbered(sql);
        if number != values.len() {
            return Err(Fault::arguments(format!("the SQL has {number} ?, and {} values were given", values.len())));
        }
        Ok(Statement {
            name: "cursor".to_owned(),
            sql,
            parameters: values.iter().map(Value::text).collect(),
            options: ReadOptions { time_out: self.settings.time_out, types: BTreeMap::new() },
            limits: settings.limits,
            client_sql: Some(client_sql.clone()),
        })
    }
}
