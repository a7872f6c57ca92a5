//! `headwater remote create`.

use std::path::{Path, PathBuf};

use clap::Args;
use headwater_model::Model;
use headwater_remote::http::{Server, fetch_model};
use headwater_remote::ready::Taken;
use headwater_remote::{CreateOptions, Error, Remote, SyncOptions};
use serde_json::json;

use super::Login;
use crate::Done;
use crate::config::read_model;
use crate::exit::Exit;
use crate::output::{Output, counted, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater remote create anna.db --server https://sync.example.com --user anna
  headwater remote create anna.db --server http://127.0.0.1:7340 --user anna --model models/shop-1.toml

  headwater remote create anna.db --server https://sync.example.com --user anna --at 1
  headwater remote create till.db --server https://sync.example.com --user till-3 --adopt

The model comes from the server, unless a file is given. The file may exist and have other tables. Where it does not exist and the server
has a ready file of what the user may hold (because other remotes hold the same), the remote begins with its rows, which is faster than a
first sync.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CreateArgs {
    /// The SQLite file.
    file: PathBuf,
    /// The server's address.
    #[arg(long, value_name = "URL", env = "HEADWATER_SERVER")]
    server: String,
    /// The user who synchronizes it.
    #[arg(long, env = "HEADWATER_USER")]
    user: String,
    /// Take the model from this file; the server is not asked.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "at"])]
    model: Option<PathBuf>,
    /// The model's name, where the server has several.
    #[arg(long)]
    name: Option<String>,
    /// The model's version, if it is not to be the newest.
    #[arg(long, value_name = "VERSION")]
    at: Option<u32>,
    /// Take tables of the model that the file has already, with their rows: what the consolidated database has too counts as
    /// synchronized, the rest goes up.
    #[arg(long)]
    adopt: bool,
    #[command(flatten)]
    login: Login,
}

impl CreateArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Makes the remote.
pub(super) fn run(args: &CreateArgs, output: &Output) -> Done {
    let options = CreateOptions { adopt: args.adopt, ..CreateOptions::new(&args.server, &args.user) };
    let (model, remote, taken) = match &args.model {
        Some(file) => {
            let model = read_model(file)?;
            let remote = Remote::create(&args.file, &model, &options)?;
            (model, remote, None)
        }
        None => {
            let credentials = args.login.credentials(&args.user)?;
            let server = Server { url: args.server.clone(), credentials, ca_file: args.login.ca.clone() };
            // The password is checked once.
            let server = server.with_token()?;
            let model = model(&server, args)?;
            let (mut remote, taken) = Remote::create_from(&args.file, &model, &options, &server)?;
            if let Some(taken) = &taken {
                top_up(&mut remote, &server, taken, output);
            }
            (model, remote, taken)
        }
    };
    let tables: Vec<_> = remote.model().tables.iter().map(|table| &table.name).collect();
    let rows = taken.map(|taken| taken.rows);
    let answer = json!({
        "file": args.file, "model": model.name, "version": model.version, "tables": tables, "ready_file_rows": rows,
    });
    output.answer(&answer, |output| {
        let (file, name, version) = (args.file.display(), &model.name, model.version);
        let tables = counted(tables.len(), "table");
        let (rows, next) = match rows {
            Some(rows) => (format!(" and {} rows of a ready file", thousands(rows)), "From now on"),
            None => (String::new(), "Next"),
        };
        output.line(format!("{file} is a remote of {name} version {version}, with {tables}{rows}"))?;
        output.line(format!("{next}: headwater remote sync {file}"))
    })?;
    Ok(Exit::Done)
}

/// The model that is asked for. A version without a name is one of the only model that the server has.
fn model(server: &Server, args: &CreateArgs) -> Result<Model, Error> {
    if let Some(name) = &args.name {
        return fetch_model(server, &args.user, Some((name, args.at)));
    }
    let newest = fetch_model(server, &args.user, None)?;
    match args.at.filter(|version| *version != newest.version) {
        Some(version) => fetch_model(server, &args.user, Some((&newest.name, Some(version)))),
        None => Ok(newest),
    }
}

/// Brings what has changed since the file was made. Where that can't be done now, the next sync does it.
fn top_up(remote: &mut Remote, server: &Server, taken: &Taken, output: &Output) {
    let mut options = SyncOptions::new(server.credentials.clone());
    options.ca_file.clone_from(&server.ca_file);
    options.config.attempts_max = 1;
    match remote.sync(&mut options) {
        Ok(report) => tracing::info!(rows = taken.rows, since = report.rows_down, "a ready file was taken"),
        Err(error) => {
            output.note(format!("what has changed since the file was made comes with the next sync ({error})"));
        }
    }
}
