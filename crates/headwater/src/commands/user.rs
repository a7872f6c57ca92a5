//! `headwater user`: who may sync.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use headwater_access::{Secret, USER_BYTES_MAX, hash_password};
use headwater_consolidated::system;
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::Output;

const ADD_EXAMPLES: &str = "\
Examples:
  headwater user add anna                                    asks for a password
  printf %s \"$SECRET\" | headwater user add van-7 --password-stdin";
const PASSWORD_EXAMPLES: &str = "\
Examples:
  headwater user password anna                               asks for the new password
  printf %s \"$SECRET\" | headwater user password van-7 --password-stdin

Tokens that were made before are good until they expire; `headwater user disable` refuses them at once.";
const LIST_EXAMPLES: &str = "Example:\n  headwater user list --json";
const DISABLE_EXAMPLES: &str = "\
Examples:
  headwater user disable anna
  headwater user enable anna

A running server takes a few seconds to notice ([server] account_cache_ms). Tokens of a disabled user are refused too.";

/// The arguments.
#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a user with a password
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The user's name.
        user: String,
        /// Read the password from standard input. (It is also taken from HEADWATER_PASSWORD, or asked for at a terminal.)
        #[arg(long)]
        password_stdin: bool,
    },
    /// Change a user's password
    #[command(after_help = PASSWORD_EXAMPLES)]
    Password {
        /// The user's name.
        user: String,
        /// Read the password from standard input. (It is also taken from HEADWATER_PASSWORD, or asked for at a terminal.)
        #[arg(long)]
        password_stdin: bool,
    },
    /// Remove a user; what the user's remotes have uploaded stays
    #[command(after_help = "Example:\n  headwater user remove anna")]
    Remove {
        /// The user's name.
        user: String,
    },
    /// List the users
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Let a user sync no longer
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        /// The user's name.
        user: String,
    },
    /// Let a user sync again
    #[command(after_help = DISABLE_EXAMPLES)]
    Enable {
        /// The user's name.
        user: String,
    },
}

/// Does what is asked.
pub fn run(args: &UserArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    match &args.command {
        UserCommand::Add { user, password_stdin } => add(&config, user, *password_stdin, output),
        UserCommand::Password { user, password_stdin } => change_password(&config, user, *password_stdin, output),
        UserCommand::Remove { user } => remove(&config, user, output),
        UserCommand::List => list(&config, output),
        UserCommand::Disable { user } => set_disabled(&config, user, true, output),
        UserCommand::Enable { user } => set_disabled(&config, user, false, output),
    }
}

fn add(config: &Config, user: &str, password_stdin: bool, output: &Output) -> Done {
    check_name(user)?;
    let mut connection = config.database.connect()?;
    // The accounts' table may not be there yet; it does no harm to make it before there is tracking.
    system::install(&mut *connection)?;
    if system::find_account(&mut *connection, user)?.is_some() {
        return Err(taken(user));
    }
    let hash = hash_password(&new_password(user, password_stdin)?).or_usage(|| "the password can't be used".into())?;
    if !system::add_account(&mut *connection, user, &hash)? {
        return Err(taken(user));
    }
    output.answer(&json!({ "user": user }), |output| output.line(format!("{user} may sync")))?;
    Ok(Exit::Done)
}

fn change_password(config: &Config, user: &str, password_stdin: bool, output: &Output) -> Done {
    let mut connection = config.connect_installed()?;
    if system::find_account(&mut *connection, user)?.is_none() {
        return Err(unknown(user));
    }
    let hash = hash_password(&new_password(user, password_stdin)?).or_usage(|| "the password can't be used".into())?;
    if !system::set_account_password(&mut *connection, user, &hash)? {
        return Err(unknown(user));
    }
    output.answer(&json!({ "user": user }), |output| output.line(format!("{user} has a new password")))?;
    Ok(Exit::Done)
}

fn remove(config: &Config, user: &str, output: &Output) -> Done {
    let mut connection = config.connect_installed()?;
    if !system::remove_account(&mut *connection, user)? {
        return Err(unknown(user));
    }
    output.answer(&json!({ "removed": user }), |output| output.line(format!("{user} is removed")))?;
    Ok(Exit::Done)
}

fn unknown(user: &str) -> anyhow::Error {
    usage(format!("there is no user {user:?}; `headwater user list` lists them"))
}

fn taken(user: &str) -> anyhow::Error {
    usage(format!("there is a user {user:?} already; `headwater user list` lists them"))
}

fn check_name(user: &str) -> Result<()> {
    let fault = if user.is_empty() {
        "is empty"
    } else if user.len() > USER_BYTES_MAX {
        "is too long"
    } else if user.contains(':') || user.chars().any(char::is_control) {
        "has a colon or a control character, which HTTP does not allow"
    } else {
        return Ok(());
    };
    Err(usage(format!("the user name {user:?} {fault}, expected 1 to {USER_BYTES_MAX} bytes")))
}

/// One line of standard input, or what the environment has; otherwise asks twice at a terminal.
fn new_password(user: &str, from_stdin: bool) -> Result<Secret> {
    if from_stdin {
        return read_line();
    }
    if let Ok(password) = std::env::var("HEADWATER_PASSWORD") {
        return Ok(Secret::new(password));
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            "standard input is no terminal to ask for the password at; set HEADWATER_PASSWORD, or give it by --password-stdin",
        ));
    }
    let ask = |prompt: String| rpassword::prompt_password(prompt).context("the password could not be asked for");
    let first = ask(format!("Password for {user}: "))?;
    if first != ask("Again: ".to_owned())? {
        return Err(usage("the two passwords differ; try again"));
    }
    Ok(Secret::new(first))
}

/// The first line of standard input, without its end.
pub(crate) fn read_line() -> Result<Secret> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("standard input could not be read")?;
    Ok(Secret::new(line.trim_end_matches(['\r', '\n'])))
}

fn list(config: &Config, output: &Output) -> Done {
    let mut connection = config.connect_installed()?;
    let accounts = system::accounts(&mut *connection)?;
    let answer: Vec<_> = accounts
        .iter()
        .map(|account| json!({ "user": account.user, "disabled": account.disabled, "created_at": account.created_at }))
        .collect();
    output.answer(&answer, |output| {
        if accounts.is_empty() {
            return output.line("there are no users yet; `headwater user add NAME` adds one");
        }
        let state = |is_disabled: bool| if is_disabled { "disabled" } else { "enabled" }.to_owned();
        let rows = accounts.iter().map(|a| vec![a.user.clone(), state(a.disabled), a.created_at.clone()]);
        output.table(&["user", "state", "since"], rows)
    })?;
    Ok(Exit::Done)
}

fn set_disabled(config: &Config, user: &str, is_disabled: bool, output: &Output) -> Done {
    let mut connection = config.connect_installed()?;
    if !system::set_account_disabled(&mut *connection, user, is_disabled)? {
        return Err(unknown(user));
    }
    let word = if is_disabled { "disabled" } else { "enabled" };
    let answer = json!({ "user": user, "disabled": is_disabled });
    output.answer(&answer, |output| output.line(format!("{user} is {word}")))?;
    Ok(Exit::Done)
}
