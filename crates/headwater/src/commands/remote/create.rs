//! `headwater remote create`.

use std::path::PathBuf;

use clap::Args;
use headwater_remote::http::{Server, fetch_model};
use headwater_remote::{CreateOptions, Remote};
use serde_json::json;

use super::Login;
use crate::Done;
use crate::config::read_model;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater remote create anna.db --server https://sync.example.com --user anna
  headwater remote create anna.db --server http://127.0.0.1:7340 --user anna --model models/shop-1.toml

  headwater remote create anna.db --server https://sync.example.com --user anna --name shop --at 1
  headwater remote create till.db --server https://sync.example.com --user till-3 --adopt

The model comes from the server, unless a file is given. The file may exist and have other tables.";

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
    #[arg(long, value_name = "VERSION", requires = "name")]
    at: Option<u32>,
    /// Take tables of the model that the file has already, with their rows: what the consolidated database has too counts as
    /// synchronized, the rest goes up.
    #[arg(long)]
    adopt: bool,
    #[command(flatten)]
    login: Login,
}

/// Makes the remote.
pub(super) fn run(args: &CreateArgs, output: &Output) -> Done {
    let model = match &args.model {
        Some(file) => read_model(file)?,
        None => {
            let credentials = args.login.credentials(&args.user)?;
            let server = Server { url: args.server.clone(), credentials, ca_file: args.login.ca.clone() };
            fetch_model(&server, &args.user, args.name.as_deref().map(|name| (name, args.at)))?
        }
    };
    let options = CreateOptions { adopt: args.adopt, ..CreateOptions::new(&args.server, &args.user) };
    let remote = Remote::create(&args.file, &model, &options)?;
    let tables: Vec<_> = remote.model().tables.iter().map(|table| &table.name).collect();
    let answer = json!({ "file": args.file, "model": model.name, "version": model.version, "tables": tables });
    output.answer(&answer, |output| {
        let (file, name, version) = (args.file.display(), &model.name, model.version);
        output
            .line(format!("{file} is a remote of {name} version {version}, with {}", counted(tables.len(), "table")))?;
        output.line(format!("Next: headwater remote sync {file}"))
    })?;
    Ok(Exit::Done)
}
