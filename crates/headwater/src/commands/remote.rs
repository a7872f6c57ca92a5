//! `headwater remote`: SQLite files as remotes.

mod aside;
mod create;
mod log;
mod status;
mod sync;
mod upgrade;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use headwater_remote::http::Credentials;
use headwater_remote::{Leftover, leftovers};
use serde_json::json;

use super::user::read_line;
use crate::Done;
use crate::exit::usage;
use crate::output::{Output, about_bytes};

/// The arguments.
#[derive(Debug, Args)]
pub struct RemoteArgs {
    #[command(subcommand)]
    command: RemoteCommand,
}

#[derive(Debug, Subcommand)]
enum RemoteCommand {
    /// Make a SQLite file a remote, with the tables of a model
    Create(create::CreateArgs),
    /// Synchronize: changes go up, what others changed comes down
    Sync(sync::SyncArgs),
    /// Go on under a newer version of the model, with what is pending kept
    Upgrade(upgrade::UpgradeArgs),
    /// How a remote stands
    Status(status::StatusArgs),
    /// Changes that wait, changes set aside, conflicts
    Log(log::LogArgs),
    /// Send changes set aside again, as they are
    Retry(aside::AsideArgs),
    /// Give changes up, set aside or waiting: the consolidated rows come back
    Drop(aside::DropArgs),
    /// Have everything come down again at the next sync
    Reset(aside::ResetArgs),
    /// Have the next sync compare the tables with the consolidated database
    Compare(aside::CompareArgs),
}

impl RemoteCommand {
    /// The remote's file.
    fn file(&self) -> &Path {
        match self {
            RemoteCommand::Create(args) => args.file(),
            RemoteCommand::Sync(args) => args.file(),
            RemoteCommand::Upgrade(args) => args.file(),
            RemoteCommand::Status(args) => args.file(),
            RemoteCommand::Log(args) => args.file(),
            RemoteCommand::Retry(args) => args.file(),
            RemoteCommand::Drop(args) => args.file(),
            RemoteCommand::Reset(args) => args.file(),
            RemoteCommand::Compare(args) => args.file(),
        }
    }
}

/// Does what is asked. Where that fails, files are named that interrupted commands have left beside the remote's.
pub fn run(args: &RemoteArgs, output: &Output) -> Done {
    let done = run_command(args, output);
    if done.is_err() {
        for left in leftovers(args.command.file()) {
            let about = json!({ "leftover": left.path, "bytes": left.bytes, "mend": left.advice });
            output.announce(&leftover_text(&left), &about);
        }
    }
    done
}

/// A leftover for people.
pub(super) fn leftover_text(left: &Leftover) -> String {
    format!("left beside it: {} ({}): {}", left.path.display(), about_bytes(left.bytes), left.advice)
}

fn run_command(args: &RemoteArgs, output: &Output) -> Done {
    match &args.command {
        RemoteCommand::Create(args) => create::run(args, output),
        RemoteCommand::Sync(args) => sync::run(args, output),
        RemoteCommand::Upgrade(args) => upgrade::run(args, output),
        RemoteCommand::Status(args) => status::run(args, output),
        RemoteCommand::Log(args) => log::run(args, output),
        RemoteCommand::Retry(args) => aside::retry(args, output),
        RemoteCommand::Drop(args) => aside::give_up(args, output),
        RemoteCommand::Reset(args) => aside::reset(args, output),
        RemoteCommand::Compare(args) => aside::compare(args, output),
    }
}

/// How to be let in at the server.
#[derive(Debug, Args)]
pub(super) struct Login {
    /// A token, from `headwater token`; better in the environment than here.
    #[arg(long, env = "HEADWATER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Read the password from standard input. (It is also taken from HEADWATER_PASSWORD, or asked for at a terminal.)
    #[arg(long, conflicts_with = "token")]
    password_stdin: bool,
    /// PEM file with the certificates to trust instead of the system's.
    #[arg(long, value_name = "FILE", env = "HEADWATER_CA")]
    ca: Option<PathBuf>,
}

impl Login {
    /// The certificates to trust instead of the system's.
    pub(super) fn ca(&self) -> Option<&PathBuf> {
        self.ca.as_ref()
    }

    /// What to show where nothing may do: a token, or what is needed to be this user if there is one.
    pub(super) fn credentials_if_any(&self, user: &str) -> Result<Option<Credentials>> {
        match (&self.token, user) {
            (None, "") => Ok(None),
            (Some(token), "") => Ok(Some(Credentials::Token(token.trim().to_owned()))),
            (_, user) => self.credentials(user).map(Some),
        }
    }

    /// What to show to the server as this user.
    fn credentials(&self, user: &str) -> Result<Credentials> {
        if let Some(token) = &self.token {
            let token = token.trim();
            if let Some(odd) = token.chars().find(|character| !character.is_ascii_graphic()) {
                return Err(usage(format!(
                    "the token has {odd:?} in it, which no token has: copy it whole, as one line"
                )));
            }
            if let Some(other) = headwater_access::claimed_user(token).filter(|other| other != user) {
                return Err(usage(format!(
                    "the token belongs to user {other:?}, this remote to user {user:?}: use a token of {user:?} (`headwater token {user}`)"
                )));
            }
            return Ok(Credentials::Token(token.to_owned()));
        }
        let password = if self.password_stdin {
            read_line()?.expose().to_owned()
        } else if let Ok(password) = std::env::var("HEADWATER_PASSWORD") {
            password
        } else if std::io::stdin().is_terminal() {
            rpassword::prompt_password(format!("Password for {user}: "))
                .context("the password could not be asked for")?
        } else {
            return Err(usage(format!(
                "no password for {user:?}: set HEADWATER_PASSWORD or HEADWATER_TOKEN, or give it by --password-stdin"
            )));
        };
        Ok(Credentials::Password { user: user.to_owned(), password })
    }
}
