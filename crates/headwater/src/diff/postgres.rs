//! A consolidated database in PostgreSQL: every column cast to text, rows streamed.

use std::error::Error;

use anyhow::{Context as _, Result, ensure};
use futures_util::TryStreamExt as _;
use headwater_model::sql::{literal, quote, with_parameters};
use headwater_model::{Model, Partition, Table};
use headwater_protocol::Type;
use tokio::runtime::Runtime;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, to_sql_checked};
use tokio_postgres::{Client, Config};

use super::value::Value;
use super::{CURSOR, MEMBERS, Source, cursor, holder};

/// A consolidated database in PostgreSQL, in one snapshot.
pub struct Postgres {
    runtime: Runtime,
    client: Client,
    model: Model,
    user: String,
    remote_id: String,
}

/// A parameter as text, whatever type the query makes of it.
#[derive(Debug)]
struct AsText<'a>(&'a str);

impl Postgres {
    /// Connects to see what this user's remote should hold; `remote_id` is what the membership query gets.
    pub fn connect<T>(config: &Config, tls: T, model: &Model, user: &str, remote_id: &str) -> Result<Postgres>
    where
        T: tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>,
        T::Stream: Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let (client, connection) = config.connect(tls).await?;
            // To a client that asks for UTF-8 such a database refuses the whole answer where one text is not.
            let is_sql_ascii = connection.parameter("server_encoding") == Some("SQL_ASCII");
            tokio::spawn(connection);
            if is_sql_ascii {
                client.batch_execute("SET client_encoding = 'SQL_ASCII'").await?;
            }
            client
                .batch_execute(
                    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET bytea_output = 'hex';
                     SET extra_float_digits = 1; SET lc_monetary = 'C'; SET standard_conforming_strings = on;
                     BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                )
                .await?;
            // As in a download: the application's row security asks who it is.
            let who = "SELECT set_config('headwater.user', $1, true), set_config('headwater.remote_id', $2, true)";
            client.execute(who, &[&user, &remote_id]).await?;
            Ok::<_, tokio_postgres::Error>(client)
        })?;
        let (user, remote_id) = (user.to_owned(), remote_id.to_owned());
        Ok(Postgres { runtime, client, model: model.clone(), user, remote_id })
    }

    /// The columns of a table and their types, as PostgreSQL names them.
    fn declared(&self, name: &str) -> Result<Vec<(String, String)>> {
        let sql = "SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
                   WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped";
        let rows = self.runtime.block_on(self.client.query(sql, &[&name]))?;
        ensure!(!rows.is_empty(), "the consolidated database has no table {name}; `headwater check` tells more");
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }
}

impl Source for Postgres {
    fn rows(&mut self, table: &Table, each: &mut dyn FnMut(Vec<Value>) -> Result<()>) -> Result<()> {
        let name = named(table);
        let declared = self.declared(&name)?;
        let partition = table.partition.as_ref().and_then(|place| self.model.partitions.get(place.partition));
        // A script's parameters have a type; a membership query's take the one that is asked of them, by all of their uses.
        let mut parameters: Vec<(String, String)> = Vec::new();
        let mut spell = |value: &str, kind: &str| {
            let place = parameters.iter().position(|(known, its)| known == value && its == kind).unwrap_or_else(|| {
                parameters.push((value.to_owned(), kind.to_owned()));
                parameters.len() - 1
            });
            if kind.is_empty() { format!("${}", place + 1) } else { format!("CAST(${} AS {kind})", place + 1) }
        };
        let given = cursor(table, [&self.user, &self.remote_id], &mut spell);
        let rows = if given.is_some() { CURSOR } else { &name };
        let select = format!("SELECT {} FROM {rows} AS t", texts(table, &declared)?);
        let sql = match partition {
            None => given.map_or_else(|| select.clone(), |given| format!("WITH {given} {select}")),
            Some(partition) => {
                let members = with_parameters(&partition.members, |name| {
                    spell(if name == ":s.user" { &self.user } else { &self.remote_id }, "")
                });
                let (joins, holder, alias) = holder(&self.model, table, &named);
                let matches = matches(partition, holder, &alias, &self.declared(&named(holder))?)?;
                let names: Vec<String> = (0..partition.columns.len()).map(|place| format!("p{place}")).collect();
                format!(
                    "WITH {MEMBERS}({}) AS ({members}\n){} {select}{joins} WHERE EXISTS (SELECT 1 FROM {MEMBERS} WHERE {matches})",
                    names.join(", "),
                    given.map_or_else(String::new, |given| format!(", {given}")),
                )
            }
        };
        let client = &self.client;
        self.runtime.block_on(async {
            let parameters: Vec<AsText<'_>> = parameters.iter().map(|(text, _)| AsText(text)).collect();
            let rows = client.query_raw(&sql, &parameters).await.with_context(|| format!("reading {name} by {sql}"))?;
            let mut rows = std::pin::pin!(rows);
            while let Some(row) = rows.try_next().await? {
                let value = |(place, column): (usize, &headwater_model::Column)| {
                    let bytes = row.try_get::<_, Option<Bytes<'_>>>(place)?.map(|bytes| bytes.0);
                    let text = bytes.map(std::str::from_utf8).transpose();
                    Ok::<_, tokio_postgres::Error>(match (text, bytes) {
                        (Ok(text), _) => Value::from_postgres(text, column.kind.base),
                        (Err(_), bytes) => Value::Text(bytes.unwrap_or_default().to_vec()),
                    })
                };
                each(table.columns.iter().enumerate().map(value).collect::<Result<_, _>>()?)?;
            }
            Ok(())
        })
    }
}

fn named(table: &Table) -> String {
    format!("{}.{}", quote(table.schema.as_deref().unwrap_or("public")), quote(&table.name))
}

/// That a row lies in a partition of the user's, compared in the types of the table that has the partition's columns.
fn matches(partition: &Partition, holder: &Table, alias: &str, declared: &[(String, String)]) -> Result<String> {
    let one = |(place, column): (usize, &headwater_model::Column)| {
        Ok(format!("{MEMBERS}.p{place}::{} = {alias}.{}", type_of(&column.name, declared)?, quote(&column.name)))
    };
    let columns = holder.partition_columns().take(partition.columns.len()).enumerate();
    Ok(columns.map(one).collect::<Result<Vec<_>>>()?.join(" AND "))
}

/// The table's columns as texts.
fn texts(table: &Table, declared: &[(String, String)]) -> Result<String> {
    let text = |column: &headwater_model::Column| {
        let name = quote(&column.name);
        Ok(match (column.kind.base, type_of(&column.name, declared)?) {
            // A float4's shortest text is not that of the double it becomes.
            (Type::Real, _) => format!("t.{name}::float8::text"),
            // A cast would drop the blanks that fill a char(n).
            (_, "bpchar" | "character") => {
                format!("CASE WHEN t.{name} IS NOT NULL THEN format({}, t.{name}) END", literal("%s"))
            }
            _ => format!("t.{name}::text"),
        })
    };
    Ok(table.columns.iter().map(text).collect::<Result<Vec<_>>>()?.join(", "))
}

fn type_of<'d>(column: &str, declared: &'d [(String, String)]) -> Result<&'d str> {
    let found = declared.iter().find(|(name, _)| name == column).map(|(_, kind)| kind.as_str());
    found.with_context(|| {
        format!("the consolidated database has no column {column:?} in this table; `headwater check` tells more")
    })
}

/// A text's bytes: a database of SQL_ASCII has others than UTF-8.
struct Bytes<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Bytes<'a> {
    fn from_sql(_: &tokio_postgres::types::Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Bytes(raw))
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }
}

impl ToSql for AsText<'_> {
    fn to_sql(
        &self,
        _: &tokio_postgres::types::Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }

    fn encode_format(&self, _: &tokio_postgres::types::Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
