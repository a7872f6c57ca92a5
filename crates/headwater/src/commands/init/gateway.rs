//! `headwater init --gateway`: a configuration that serves named queries and syncs nothing, and a first query.

use std::path::Path;

use anyhow::Result;
use headwater_consolidated::results::{Placeholder, ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, QueryConnection};
use headwater_gateway::Settings;
use headwater_gateway::query::{Query, text_of};
use headwater_protocol::ValueRef;
use serde_json::json;

use super::{config_url, write};
use crate::Done;
use crate::cli::Global;
use crate::commands::query::prepared;
use crate::database::Address;
use crate::exit::{Exit, usage};
use crate::output::Output;

/// The folder of queries, and the first of them.
const FOLDER: &str = "queries";
const FIRST: &str = "first.sql";

/// Of a database without a table that can be read.
const GREETING: &str = "\
-- title = \"A greeting\"
-- # public = true      # anybody may ask; without it: whoever the server knows (headwater user add)
SELECT 'hello' AS greeting
";

/// Writes the configuration and the query, which the database has taken.
pub(super) fn run(url: &str, force: bool, global: &Global, output: &Output) -> Done {
    let address = Address::parse(url, Path::new(""))?;
    let folder = global.config.parent().unwrap_or(Path::new(""));
    let query_file = folder.join(FOLDER).join(FIRST);
    for file in [&global.config, &query_file] {
        if file.exists() && !force {
            return Err(usage(format!("{} is there already; --force writes over it", file.display())));
        }
    }
    let (mut connection, placeholder) = address.connect_for_queries()?;
    let query = first_query(&mut *connection, placeholder, &address)?;
    write(&query_file, &query)?;
    write(&global.config, &config_text(&config_url(url, &address, folder)?))?;
    let answer = json!({ "config": global.config, "query": query_file });
    output.answer(&answer, |output| {
        output.line(format!("{} and {} are written", global.config.display(), query_file.display()))?;
        output.line(
            "\nNext: add queries to the folder, then\n  headwater query check\n  headwater query run first\n  headwater serve",
        )
    })?;
    Ok(Exit::Done)
}

/// The rows of a table, if there is one whose columns can all be given.
fn first_query(connection: &mut dyn QueryConnection, placeholder: Placeholder, address: &Address) -> Result<String> {
    let Some(table) = first_table(connection, address)? else { return Ok(GREETING.to_owned()) };
    let text = format!(
        "-- title = {title}\n\
         -- # public = true      # anybody may ask; without it: whoever the server knows (headwater user add)\n\
         -- # max_age_s = 60     # caches may keep an answer for so long\n\
         -- [parameters]\n\
         -- rows = {{ type = \"int\", default = 20, min = 1, max = 1000 }}\n\
         SELECT * FROM \"{name}\" LIMIT :rows\n",
        title = toml::Value::String(format!("Rows of {table}")),
        name = table.replace('"', "\"\""),
    );
    let Ok(query) = Query::parse(FIRST, &text) else { return Ok(GREETING.to_owned()) };
    let fault = prepared(connection, placeholder, Path::new(FIRST), &query)?;
    Ok(if fault.is_none() { text } else { GREETING.to_owned() })
}

/// The name of the first of the application's tables.
fn first_table(connection: &mut dyn QueryConnection, address: &Address) -> Result<Option<String>> {
    let sql = match address {
        Address::Sqlite(_) => {
            r"SELECT name FROM sqlite_schema
              WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE 'headwater\_%' ESCAPE '\'
              ORDER BY name LIMIT 1"
        }
        Address::Postgres(_) => {
            "SELECT table_name::text FROM information_schema.tables
             WHERE table_type = 'BASE TABLE' AND table_schema = current_schema() ORDER BY 1 LIMIT 1"
        }
        Address::MariaDb(_) => {
            "SELECT table_name FROM information_schema.tables
             WHERE table_type = 'BASE TABLE' AND table_schema = database() ORDER BY 1 LIMIT 1"
        }
    };
    let mut name = Name(None);
    connection.read(sql, &[], &ReadOptions::default(), &mut name)?;
    connection.rollback()?;
    Ok(name.0)
}

/// The one value of one row.
struct Name(Option<String>);

impl ResultSink for Name {
    fn begin(&mut self, _: &[ResultColumn]) -> Result<(), Error> {
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        self.0 = values.first().map(|value| text_of(&value.to_value()));
        Ok(())
    }
}

fn config_text(url: &str) -> String {
    let (server, gateway) = (headwater_server::Config::default(), Settings::default());
    format!(
        "# Named queries over HTTP; nothing is synced. Paths are relative to this file.\n\
         [database]\n\
         # sqlite:FILE, postgres://user@host/database?sslmode=verify-full, or mariadb://user@host/database. A password is better\n\
         # kept out of this file: HEADWATER_DATABASE may hold the whole address.\n\
         url = {url}\n\n\
         [gateway]\n\
         # A folder of .sql files; docs/gateway.md says what their heads say. These are the defaults of what else there is:\n\
         queries = \"{FOLDER}\"\n\
         # executions_max = {executions}\n\
         # waiting_max = {waiting}\n\
         # waiting_s_max = {patience}\n\
         # cache = {cache}\n\
         # held_bytes_max = {held}\n\
         # sending_bytes_max = {sending}\n\
         # compression = \"auto\"\n\
         # reader_bytes_per_s_min = {reader}\n\n\
         [server]\n\
         # listen = \"{listen}\"\n\
         # tls_certificate = \"certificate.pem\"\n\
         # tls_key = \"key.pem\"\n",
        url = toml::Value::String(url.to_owned()),
        executions = gateway.executions_max,
        waiting = gateway.waiting_max,
        patience = gateway.patience.as_secs_f64(),
        cache = gateway.cache,
        held = gateway.held_bytes_max,
        sending = gateway.sending_bytes_max,
        reader = gateway.reader_bytes_per_s_min,
        listen = server.listen,
    )
}
