//! A system of one's own, as `headwater lab run` and `pilot` have clients sync with it.

use anyhow::Result;
use clap::Args;
use headwater_lab::peer::Peer;
use headwater_lab::sync::Own;

use crate::cli::Global;
use crate::config::Config;
use crate::database::{Address, never_synced};
use crate::exit::usage;

/// Which of its users, model and server.
#[derive(Debug, Args)]
pub(super) struct SystemArgs {
    /// Of a system of your own: whose remotes clients are, in turns; otherwise those of all accounts.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    users: Vec<String>,
    /// Of a system of your own: the model, where there are several; its newest version is taken.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Of a system of your own: its server, which runs already, on this machine or another; otherwise one is started here.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

impl SystemArgs {
    pub(super) fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// Complains of what is given for nothing; `of` is what it would belong to.
    pub(super) fn refuse(&self, of: &str) -> Result<()> {
        let given =
            [("--users", !self.users.is_empty()), ("--model", self.model.is_some()), ("--server", self.has_server())];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(usage(format!("{name} is of a system of one's own: give it with {of}"))),
            None => Ok(()),
        }
    }

    /// The system, as its configuration has it.
    pub(super) fn read(&self, global: &Global) -> Result<Own> {
        let server = self.server.as_deref().map(Peer::of).transpose();
        let server = server.map_err(|failure| usage(failure.to_string()))?;
        let config = Config::read(global)?;
        drop(config.connect_installed()?);
        let plans = config.plans()?;
        let mut names: Vec<&str> = plans.iter().map(|plan| plan.model.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let name = match (&self.model, &names[..]) {
            (Some(name), _) => name.as_str(),
            (None, [name]) => name,
            (None, _) => {
                return Err(usage(format!("there are several models: choose one by --model, of {}", names.join(", "))));
            }
        };
        let newest = plans.iter().filter(|plan| plan.model.name == name).max_by_key(|plan| plan.model.version);
        let Some(plan) = newest else {
            return Err(usage(format!("--model: there is no model {name:?}, only {}", names.join(", "))));
        };
        let address = match &config.database {
            Address::Sqlite(path) => format!("sqlite:{}", std::path::absolute(path)?.display()),
            Address::Postgres(text) => text.clone(),
            Address::MariaDb(_) => return Err(never_synced()),
        };
        let (config, backend) = (global.config.clone(), config.database.backend()?);
        Ok(Own { config, backend, address, plan: plan.clone(), users: self.users.clone(), server })
    }
}
