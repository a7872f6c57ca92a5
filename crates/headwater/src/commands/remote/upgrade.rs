//! `headwater remote upgrade`.

use std::path::{Path, PathBuf};

use clap::Args;
use headwater_remote::http::{Server, fetch_model};
use headwater_remote::{LargeDownload, Remote, Setback, SyncOptions};
use serde_json::json;

use super::{Login, sync};
use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater remote upgrade anna.db
  HEADWATER_TOKEN=$(headwater token van-7) headwater remote upgrade van.db --to 3

Syncs under the version that the remote has, has the tables that differ come down under the new one, and changes the file in one
step: until then it is as it was. Close programs that know the old tables first. Pending changes stay pending.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct UpgradeArgs {
    /// The remote's SQLite file.
    file: PathBuf,
    /// The version; the newest that the server has, unless given.
    #[arg(long, value_name = "VERSION")]
    to: Option<u32>,
    #[command(flatten)]
    login: Login,
}

impl UpgradeArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Changes the version.
pub(super) fn run(args: &UpgradeArgs, output: &Output) -> Done {
    let mut remote = Remote::open(&args.file)?;
    let status = remote.status()?;
    let (name, version) = &status.model;
    let credentials = args.login.credentials(&status.user)?;
    let server =
        Server { url: status.server.clone(), credentials: credentials.clone(), ca_file: args.login.ca.clone() };
    let model = fetch_model(&server, &status.user, Some((name, args.to)))?;
    if model.version == *version {
        output.answer(&json!({ "from": version, "to": version }), |output| {
            output.line(format!("{} is at version {version} of {name} already", args.file.display()))
        })?;
        return Ok(Exit::Done);
    }
    let mut options = SyncOptions::new(credentials);
    options.ca_file.clone_from(&args.login.ca);
    let mut large = |large: &LargeDownload| sync::announce(large, &args.file, output);
    options.large = Some(&mut large);
    let mut waiting = sync::Waiting::default();
    let mut setback = |setback: &Setback| waiting.tell(setback, output);
    options.setback = Some(&mut setback);
    let done = remote.upgrade(&model, &mut options)?;
    let answer = json!({
        "from": done.from, "to": done.to, "whole": done.whole, "gone": done.gone,
        "before": done.before.as_ref().map(sync::as_json), "sync": sync::as_json(&done.sync),
    });
    output.answer(&answer, |output| {
        let (file, gone) = (args.file.display(), counted(done.gone.len(), "table"));
        output.line(format!("{file} goes on under version {} of {name}; it was {}", done.to, done.from))?;
        output.line(format!("      {} came whole, {gone} went", counted(done.whole.len(), "table")))?;
        match &done.before {
            None => output.line(format!("      no server has version {} any more", done.from))?,
            Some(before) => {
                output.line(format!("The sync under version {}:", done.from))?;
                sync::show(before, output)?;
                output.line(format!("The sync under version {}:", done.to))?;
            }
        }
        sync::show(&done.sync, output)
    })?;
    Ok(Exit::Done)
}
