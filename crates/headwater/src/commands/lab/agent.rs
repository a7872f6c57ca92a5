//! `headwater lab agent`: clients of somebody else's run.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_lab::agents::{self, Agents, Gathering, Join, Joined, Told};
use headwater_lab::campaign::Campaign;
use tokio::sync::watch;

use super::run::interrupt;
use crate::Done;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater lab run crowd.toml --agents 2 --listen 10.0.0.1:7411 --key-file lab.key    # here
  headwater lab agent --join 10.0.0.1:7411 --key-file lab.key                         # on each of two other machines
  headwater lab agent --join 10.0.0.1:7411 --key-file lab.key --target postgres://me:secret@10.0.0.5/scratch

An agent has clients of the run, connects them to the target and measures; who conducts prepares, verifies and keeps the results. The key
lets agents in; nothing is encrypted, and no password is sent: where the target's address has one, say it to each agent by --target or
HEADWATER_LAB_TARGET. Both sides must be the same version. Ends when the campaign does; Ctrl-C leaves it, which fails the run that is on.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AgentArgs {
    /// Where headwater lab run --agents listens.
    #[arg(long, value_name = "HOST:PORT", env = "HEADWATER_LAB_JOIN")]
    join: String,
    #[command(flatten)]
    key: KeyArgs,
    /// How this agent is called in the results; otherwise by its machine's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The target's address as it is from here.
    #[arg(long, value_name = "URL", env = "HEADWATER_LAB_TARGET", hide_env_values = true)]
    target: Option<String>,
    /// How long to wait for somebody who conducts, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

/// What lets agents in.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// What agents and who conducts both know; better in a file or the environment, where others don't see it.
    #[arg(long, value_name = "KEY", env = "HEADWATER_LAB_KEY", hide_env_values = true)]
    key: Option<String>,
    /// A file with it.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<std::path::PathBuf>,
}

impl KeyArgs {
    fn read(&self) -> Result<Option<String>> {
        let key = match &self.key_file {
            None => self.key.clone(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| usage(format!("{}: {error}", path.display())))?;
                Some(text.trim().to_owned())
            }
        };
        match key {
            Some(key) if key.len() < 8 => {
                Err(usage("the key is too short to keep anybody out; take 8 letters or more"))
            }
            key => Ok(key),
        }
    }
}

/// Who has the clients of a campaign.
#[derive(Debug, Args)]
pub(super) struct CrewArgs {
    /// Have so many agents drive the clients (headwater lab agent), rather than this process.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    agents: Option<u16>,
    /// Where agents can join; :0 for a port that is free.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "HEADWATER_LAB_LISTEN",
        default_value = "127.0.0.1:7411",
        requires = "agents"
    )]
    listen: std::net::SocketAddr,
    #[command(flatten)]
    key: KeyArgs,
}

impl CrewArgs {
    /// Waits for the agents, if there are to be some; says where they can join.
    pub(super) async fn gather(
        &self,
        campaign: &Campaign<'_>,
        interrupt: &watch::Receiver<bool>,
        output: &Output,
    ) -> Result<Option<Agents>> {
        let Some(count) = self.agents.map(usize::from) else { return Ok(None) };
        campaign.look_over(count)?;
        let given = self.key.read()?;
        let key = given.clone().unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let gathering = Gathering::listen(self.listen, &key).await?;
        let said = if given.is_some() { String::new() } else { format!(" --key {key}") };
        output.note(format!("waiting for {count} agents: headwater lab agent --join {}{said}", gathering.place()));
        let mut tell = |joined: &Joined| {
            let Joined { number, name, place, round_trip, wall_off } = joined;
            let known = *round_trip / 2;
            output.note(format!(
                "agent {number} of {count}: {name}, from {place}; its clock is {wall_off:?} off, known to {known:?}"
            ));
        };
        Ok(Some(gathering.gather(count, interrupt, &mut tell).await?))
    }
}

/// Joins, and takes part until there are no more runs.
pub(super) fn run(args: &AgentArgs, output: &Output) -> Done {
    let Some(key) = args.key.read()? else {
        return Err(usage("who conducts lets nobody in without its key: --key-file FILE, or HEADWATER_LAB_KEY"));
    };
    let machine = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let join = Join {
        place: args.join.clone(),
        key,
        name: args.name.clone().unwrap_or_else(machine),
        target: args.target.clone(),
        patience: Duration::from_secs(args.patience),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the agent could not be started")?;
    let mut runs = 0_u32;
    let mut tell = |told: &Told| match told {
        Told::Joined(number) => output.note(format!("joined {} as agent {number}", join.place)),
        Told::Begun { clients, varied } => {
            let varied: Vec<_> = varied.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let clients = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
            output.note(format!("{clients}  {}", varied.join(", ")).trim_end().to_owned());
        }
        Told::Ended => runs += 1,
    };
    let interrupt = interrupt()?;
    runtime.block_on(agents::join(&join, &interrupt, &mut tell))?;
    let is_interrupted = *interrupt.borrow();
    let runs = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
    output.note(format!("{runs}, and {}", if is_interrupted { "interrupted" } else { "no more to come" }));
    Ok(if is_interrupted { Exit::Found } else { Exit::Done })
}
