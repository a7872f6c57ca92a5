//! A consolidated database in PostgreSQL: every column cast to text, rows streamed.

use std::error::Error;

use anyhow::{Context as _, Result, ensure};
use futures_util::TryStreamExt as _;
use headwater_model::sql::{literal, quote, with_parameters};
use headwater_model::{Column, Model, Partition, Table};
use headwater_protocol::Type;
use tokio::runtime::Runtime;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, to_sql_checked};
use tokio_postgres::{Client, Config};

use super::value::Value;
use super::{CURSOR, LeftOut, MEMBERS, Source, cursor, holder, left_out};

/// A consolidated database in PostgreSQL, in one snapshot.
pub struct Postgres {
    runtime: Runtime,
    client: Client,
    model: Model,
    user: String,
    remote_id: String,
}

/// A parameter as text, whatever type the query makes of it. A text of a SQL_ASCII database may be no UTF-8.
#[derive(Debug)]
struct AsText<'a>(&'a [u8]);

/// A column as the database has it.
struct Declared {
    name: String,
    /// Its type, as PostgreSQL names it.
    kind: String,
    /// What a value has to be followed by to be compared by the column's collation; empty where it has none.
    collate: String,
}

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

    /// The columns of a table.
    fn declared(&self, name: &str) -> Result<Vec<Declared>> {
        let sql = "SELECT a.attname::text, format_type(a.atttypid, -1), coalesce((SELECT ' COLLATE ' || quote_ident(n.nspname) || '.' || \
                   quote_ident(c.collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation), '') \
                   FROM pg_attribute a WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped";
        let rows = self.runtime.block_on(self.client.query(sql, &[&name]))?;
        ensure!(!rows.is_empty(), "the consolidated database has no table {name}; `headwater check` tells more");
        rows.iter()
            .map(|row| Ok(Declared { name: row.try_get(0)?, kind: row.try_get(1)?, collate: row.try_get(2)? }))
            .collect()
    }

    /// The user's memberships that no download brings, each once, as texts.
    fn members_left_out(&self, partition: &Partition) -> Result<Vec<(Vec<Vec<u8>>, LeftOut)>> {
        let mut parameters: Vec<&str> = Vec::new();
        let members = with_parameters(&partition.members, |name| {
            let value = if name == ":s.user" { self.user.as_str() } else { self.remote_id.as_str() };
            let place = parameters.iter().position(|known| *known == value).unwrap_or_else(|| {
                parameters.push(value);
                parameters.len() - 1
            });
            format!("${}", place + 1)
        });
        let names = member_columns(partition);
        let texts: Vec<String> = names.iter().map(|name| format!("{name}::text")).collect();
        let sql = format!(
            "WITH {MEMBERS}({}) AS ({members}\n) SELECT DISTINCT {} FROM {MEMBERS}",
            names.join(", "),
            texts.iter().map(|text| format!("{text} COLLATE \"C\"")).collect::<Vec<_>>().join(", ")
        );
        let parameters: Vec<AsText<'_>> = parameters.iter().map(|text| AsText(text.as_bytes())).collect();
        let kinds: Vec<Type> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
        let mut found = Vec::new();
        self.runtime.block_on(async {
            let reading = || format!("reading the memberships of partition {:?}", partition.name);
            let rows = self.client.query_raw(&sql, &parameters).await.with_context(reading)?;
            let mut rows = std::pin::pin!(rows);
            while let Some(row) = rows.try_next().await? {
                let values = values(&row, &kinds)?;
                if !values.contains(&Value::Null)
                    && let Some(left_out) = left_out(partition, &values)
                {
                    let text = |place| row.try_get::<_, Bytes<'_>>(place).map(|bytes| bytes.0.to_vec());
                    found.push(((0..kinds.len()).map(text).collect::<Result<_, _>>()?, left_out));
                }
            }
            Ok(found)
        })
    }
}

/// What the columns of the user's memberships are called in a query.
fn member_columns(partition: &Partition) -> Vec<String> {
    (0..partition.columns.len()).map(|place| format!("p{place}")).collect()
}

/// The values of a row of texts.
fn values(row: &tokio_postgres::Row, kinds: &[Type]) -> Result<Vec<Value>, tokio_postgres::Error> {
    let value = |(place, kind): (usize, &Type)| {
        let bytes = row.try_get::<_, Option<Bytes<'_>>>(place)?.map(|bytes| bytes.0);
        Ok(match (bytes.map(std::str::from_utf8).transpose(), bytes) {
            (Ok(text), _) => Value::from_postgres(text, *kind),
            (Err(_), bytes) => Value::Text(bytes.unwrap_or_default().to_vec()),
        })
    };
    kinds.iter().enumerate().map(value).collect()
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
        let select = format!("SELECT {}", texts("t", table.columns.iter(), &declared)?);
        let mut raw_texts: Vec<Vec<u8>> = Vec::new();
        let sql = match partition {
            None => {
                let with = given.map_or_else(String::new, |given| format!("WITH {given} "));
                format!("{with}{select} FROM {rows} AS t")
            }
            Some(partition) => {
                let members = with_parameters(&partition.members, |name| {
                    spell(if name == ":s.user" { &self.user } else { &self.remote_id }, "")
                });
                let (joins, holder, alias) = holder(&self.model, table, &named);
                let declared = self.declared(&named(holder))?;
                let mut matches = matches(partition, holder, &alias, &declared)?;
                let names = member_columns(partition);
                for (texts, _) in self.members_left_out(partition)? {
                    let equal = names.iter().zip(texts).map(|(name, text)| {
                        raw_texts.push(text);
                        let place = parameters.len() + raw_texts.len();
                        format!("{MEMBERS}.{name}::text COLLATE \"C\" = CAST(${place} AS text)")
                    });
                    matches.extend([" AND NOT (", &equal.collect::<Vec<_>>().join(" AND "), ")"]);
                }
                format!(
                    "WITH {MEMBERS}({}) AS ({members}\n){} {select}, {} FROM {rows} AS t{joins} WHERE EXISTS (SELECT 1 FROM {MEMBERS} WHERE {matches})",
                    names.join(", "),
                    given.map_or_else(String::new, |given| format!(", {given}")),
                    texts(&alias, holder.partition_columns().take(names.len()), &declared)?
                )
            }
        };
        let kinds = table.columns.iter().map(|column| column.kind.base);
        let of_partition = partition.into_iter().flat_map(|partition| &partition.columns);
        let kinds: Vec<Type> = kinds.chain(of_partition.map(|(_, kind)| kind.base)).collect();
        let client = &self.client;
        self.runtime.block_on(async {
            let parameters = parameters.iter().map(|(text, _)| text.as_bytes());
            let parameters: Vec<_> = parameters.chain(raw_texts.iter().map(Vec::as_slice)).map(AsText).collect();
            let rows = client.query_raw(&sql, &parameters).await.with_context(|| format!("reading {name} by {sql}"))?;
            let mut rows = std::pin::pin!(rows);
            while let Some(row) = rows.try_next().await? {
                let mut row = values(&row, &kinds)?;
                let spelled = row.split_off(table.columns.len());
                if partition.is_none_or(|partition| left_out(partition, &spelled).is_none()) {
                    each(row)?;
                }
            }
            Ok(())
        })
    }

    fn left_out(&mut self, partition: &Partition) -> Result<Vec<LeftOut>> {
        Ok(self.members_left_out(partition)?.into_iter().map(|(_, left_out)| left_out).collect())
    }
}

fn named(table: &Table) -> String {
    format!("{}.{}", quote(table.schema.as_deref().unwrap_or("public")), quote(&table.name))
}

/// That a row lies in a partition of the user's, compared in the types and by the collations of the table that has the partition's columns:
/// a collation of the membership query's own would otherwise decide.
fn matches(partition: &Partition, holder: &Table, alias: &str, declared: &[Declared]) -> Result<String> {
    let one = |(place, column): (usize, &Column)| {
        let Declared { kind, collate, .. } = find(&column.name, declared)?;
        Ok(format!("{MEMBERS}.p{place}::{kind}{collate} = {alias}.{}", quote(&column.name)))
    };
    let columns = holder.partition_columns().take(partition.columns.len()).enumerate();
    Ok(columns.map(one).collect::<Result<Vec<_>>>()?.join(" AND "))
}

/// Columns of the table that the query calls `alias`, as texts.
fn texts<'c>(alias: &str, columns: impl Iterator<Item = &'c Column>, declared: &[Declared]) -> Result<String> {
    let text = |column: &Column| {
        let name = format!("{alias}.{}", quote(&column.name));
        Ok(match (column.kind.base, find(&column.name, declared)?.kind.as_str()) {
            // A float4's shortest text is not that of the double it becomes.
            (Type::Real, _) => format!("{name}::float8::text"),
            // A cast would drop the blanks that fill a char(n).
            (_, "bpchar" | "character") => {
                format!("CASE WHEN {name} IS NOT NULL THEN format({}, {name}) END", literal("%s"))
            }
            _ => format!("{name}::text"),
        })
    };
    Ok(columns.map(text).collect::<Result<Vec<_>>>()?.join(", "))
}

fn find<'d>(column: &str, declared: &'d [Declared]) -> Result<&'d Declared> {
    declared.iter().find(|known| known.name == column).with_context(|| {
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
        out.extend_from_slice(self.0);
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
