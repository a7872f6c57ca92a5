//! `headwater init`: looks at a database, and writes `headwater.toml` and a first model, or a first named query.

mod gateway;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_consolidated::init::{FirstModel, first_model};
use headwater_model::parse::parse;
use headwater_model::write::{Comments, to_toml};
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::database::Address;
use crate::exit::{Exit, usage};
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater init --database postgres://me@localhost/shop
  headwater init --database sqlite:central.db --name shop
  headwater --config shop/headwater.toml init --database sqlite:shop/central.db
  headwater init --gateway --database mariadb://reader@localhost/shop     named queries over HTTP alone, and a first one

The model has every table that can travel; edit it: throw out tables, choose partitions, directions and conflict rules.";

const MODEL_HEAD: &str = "\
What is synchronized, and how. `headwater check` holds it against the database.

direction: both | download (local edits are refused) | upload
conflict:  consolidated_wins | remote_wins | newer_wins(column) | merge(consolidated) | merge(remote) | off
           { merge = \"consolidated\", sum = [\"qty\"] } (qty is a counter: what each remote adds or takes is added up)
key:       what identifies a row; unique and never NULL
types:     bool, int, real, decimal, decimal(precision,scale), text, bytes, date, time, timestamp, timestamptz, uuid, json

Once remotes are made from this file, a change of it is a new version: a new file with the next number.";

const MODEL_TAIL: &str = "\
Every remote now gets every row. To give each user a part, say what names a partition and who is a member of which:

[partitions.region]
columns = { region = \"text\" }
members = \"SELECT region FROM member WHERE user_name = :s.user\"

and then, in each table that has these columns:

partition = \"region\"";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// The model's name; usually the database's.
    #[arg(long)]
    name: Option<String>,
    /// Named queries alone: a first query in the place of a model, and nothing is synced.
    #[arg(long, conflicts_with = "name")]
    gateway: bool,
    /// Write over files that are there.
    #[arg(long)]
    force: bool,
}

/// Connects, reads the catalogue and writes both files.
pub fn run(args: &InitArgs, global: &Global, output: &Output) -> Done {
    let url = global.database.as_deref().ok_or_else(|| {
        usage("init needs the database: --database sqlite:FILE or --database postgres://user@host/database")
    })?;
    if args.gateway {
        return gateway::run(url, args.force, global, output);
    }
    let address = Address::parse(url, Path::new(""))?;
    let name = args.name.clone().unwrap_or_else(|| address.name());
    let folder = global.config.parent().unwrap_or(Path::new(""));
    let model_name = PathBuf::from("models").join(format!("{}-1.toml", file_name(&name)));
    let model_file = folder.join(&model_name);
    for file in [&global.config, &model_file] {
        if file.exists() && !args.force {
            return Err(usage(format!("{} is there already; --force writes over it", file.display())));
        }
    }
    let catalogue = address.connect()?.catalogue()?;
    let first = first_model(&name, &catalogue);
    let text = model_text(&first, &model_file)?;
    write(&model_file, &text)?;
    write(&global.config, &config_text(&config_url(url, &address, folder)?, &model_name))?;
    let left_out: Vec<_> = left_out(&first).iter().map(|(table, why)| json!({ "table": table, "why": why })).collect();
    let answer = json!({
        "config": global.config, "model": model_file, "left_out": left_out,
        "tables": first.model.tables.iter().map(|table| &table.name).collect::<Vec<_>>(),
    });
    output.answer(&answer, |output| tell(&first, &global.config, &model_file, output))?;
    Ok(Exit::Done)
}

fn tell(first: &FirstModel, config: &Path, model: &Path, output: &Output) -> Result<()> {
    output.line(format!(
        "{} and {} with {} are written",
        config.display(),
        model.display(),
        counted(first.model.tables.len(), "table")
    ))?;
    for (table, why) in left_out(first) {
        output.line(format!("  left out of {table}: {why}"))?;
    }
    output.line("\nNext: edit the model, then\n  headwater track --dry-run\n  headwater track\n  headwater check")
}

/// What is not in the model, by table, and why.
fn left_out(first: &FirstModel) -> Vec<(String, String)> {
    let mut all = first.left_out.clone();
    let tables = first.doubtful.tables.iter();
    all.extend(
        tables
            .map(|(table, why)| (table.name.clone(), format!("the table {why}: it stands in the model as a comment"))),
    );
    let columns = first.doubtful.columns.iter();
    all.extend(columns.map(|(table, column, why)| {
        (table.clone(), format!("column `{}` {why}: it stands in the model as a comment", column.name))
    }));
    all
}

/// The model's text; what `parse` would not take is told now rather than at the next command.
fn model_text(first: &FirstModel, file: &Path) -> Result<String> {
    let mut tables: BTreeMap<String, String> = BTreeMap::new();
    let mut absent = String::new();
    for (table, why) in &first.left_out {
        let lines =
            if first.model.table(table).is_some() { tables.entry(table.clone()).or_default() } else { &mut absent };
        let _ = writeln!(lines, "Left out of {table}: {why}");
    }
    if first.model.tables.is_empty() {
        return Err(usage(format!("the database has no table that can travel:\n{absent}")));
    }
    let tail = if absent.is_empty() { MODEL_TAIL.to_owned() } else { format!("{absent}\n{MODEL_TAIL}") };
    let remove = "take the # away to sync it";
    let columns = first.doubtful.columns.iter();
    let columns_left_out =
        columns.map(|(table, column, why)| (table.clone(), column.clone(), format!("{} {why}; {remove}", column.name)));
    let doubtful = first.doubtful.tables.iter();
    let tables_left_out =
        doubtful.map(|(table, why)| (table.clone(), format!("The table {} {why}; {remove}:", table.name)));
    let comments = Comments {
        head: MODEL_HEAD.to_owned(),
        tables,
        tail,
        columns_left_out: columns_left_out.collect(),
        tables_left_out: tables_left_out.collect(),
        ..Comments::default()
    };
    let text = to_toml(&first.model, &comments);
    match parse(&file.display().to_string(), &text) {
        Ok(_) => Ok(text),
        Err(errors) => {
            let lines: Vec<_> = errors.iter().map(|error| format!("  {}", error.found)).collect();
            Err(usage(format!("the database's tables make no model:\n{}", lines.join("\n"))))
        }
    }
}

/// A name as a file may have it.
fn file_name(name: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let safe: String = name.chars().map(safe).collect();
    if safe.trim_matches('.').is_empty() { "model".to_owned() } else { safe }
}

/// The address as the file has it: a SQLite file relative to the configuration, where it lies below it.
fn config_url(url: &str, address: &Address, folder: &Path) -> Result<String> {
    let Address::Sqlite(path) = address else {
        return Ok(url.to_owned());
    };
    let absolute = |path: &Path| std::path::absolute(if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let (path, folder) = (absolute(path)?, absolute(folder)?);
    Ok(format!("sqlite:{}", path.strip_prefix(&folder).unwrap_or(&path).display()))
}

fn config_text(url: &str, model: &Path) -> String {
    let server = headwater_server::Config::default();
    format!(
        "# What is synchronized: one file for each version of the model. Paths are relative to this file.\n\
         models = [{model}]\n\n\
         [database]\n\
         # sqlite:FILE, or postgres://user@host/database?sslmode=verify-full. A password is better kept out of this file:\n\
         # HEADWATER_DATABASE may hold the whole address.\n\
         url = {url}\n\n\
         [server]\n\
         # These are the defaults; docs/server.md says what each does and which others there are.\n\
         # HEADWATER_SERVER_WORKERS=16 or --set workers=16 go before this file.\n\
         # listen = \"{listen}\"\n\
         # tls_certificate = \"certificate.pem\"\n\
         # tls_key = \"key.pem\"\n\
         # workers = {workers}      # syncs that use the database at a time; 0: as many as it is found to take\n\
         # uploaders = {uploaders}    # of them, those that may apply an upload; 0: likewise\n\
         # backlog = {backlog}    # syncs that may wait for a worker; more are told when to come back\n\n\
         # [admin]      # lets `headwater tune` change options while the server runs: docs/tuning.md\n",
        model = toml::Value::String(model.display().to_string()),
        url = toml::Value::String(url.to_owned()),
        listen = server.listen,
        workers = server.workers,
        uploaders = server.uploaders,
        backlog = server.backlog,
    )
}

/// Writes a file whole or not at all.
fn write(file: &Path, text: &str) -> Result<()> {
    let doing = || format!("{} could not be written", file.display());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(doing)?;
    let mut draft = file.as_os_str().to_owned();
    draft.push(".new");
    std::fs::write(&draft, text).with_context(doing)?;
    std::fs::rename(&draft, file).with_context(doing)
}
