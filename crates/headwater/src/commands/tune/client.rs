//! Requests to the administration listener of a server on this machine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use headwater_access::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::admin::TokenFile;
use crate::commands::serve::named;
use crate::config::Config;
use crate::exit::{OrUsage as _, unreachable, usage};

/// How long an answer may take: a smaller pool writes what is in memory to a file first.
const ANSWER_MAX: Duration = Duration::from_mins(5);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A server's administration listener.
pub(super) struct Client {
    agent: Agent,
    address: SocketAddr,
    token: Secret,
    /// The file by which the server was started, as it names it.
    config: String,
}

/// A knob, as the server tells it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) value: Value,
    pub(super) at_start: Value,
    pub(super) default: Value,
    pub(super) range: String,
    pub(super) effect: String,
    pub(super) is_option: bool,
}

/// All of them.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Told {
    config: String,
    process: u32,
    version: String,
    pub(super) knobs: Vec<Shown>,
}

/// What has changed.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) from: Value,
    pub(super) to: Value,
}

impl Shown {
    /// Whether it is the one of this name, or in the section.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl Told {
    /// The names of all sections, those within others too, and of all knobs.
    pub(super) fn names(&self) -> Vec<&str> {
        let knobs = self.knobs.iter().map(|knob| knob.name.as_str());
        let sections = knobs.clone().flat_map(|name| name.match_indices('.').map(move |(at, _)| &name[..at]));
        sections.collect::<BTreeSet<_>>().into_iter().chain(knobs).collect()
    }
}

impl Client {
    /// Of the server that this configuration's token file names.
    pub(super) fn of(config: &Config, token_file: Option<&Path>) -> Result<Client> {
        let Some(admin) = config.admin(&[])? else {
            return Err(usage(format!(
                "{} has no [admin]: a server started by it can't be tuned while it runs; add the section (docs/tuning.md) and start it again",
                config.file().display()
            )));
        };
        let (address, token) = match admin.token {
            Some(token) => (admin.listen, token),
            None => TokenFile::read(token_file.unwrap_or(&admin.token_file))?,
        };
        // A token goes to no proxy: whatever HTTP_PROXY says.
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(ANSWER_MAX))
            .build();
        Ok(Client { agent: agent.into(), address, token, config: named(config.file()) })
    }

    /// All knobs as they are. An error where the server was started by another configuration: it is not the one that was meant.
    pub(super) fn knobs(&self) -> Result<Told> {
        let asked = self.agent.get(self.url()).header("authorization", self.shown()).call();
        let told: Told = self.answer(asked)?;
        if told.config != self.config {
            return Err(usage(format!(
                "the server at {} was started by {}, not by {}; --config names its file",
                self.address, told.config, self.config
            )));
        }
        Ok(told)
    }

    /// Sets them, all or none.
    pub(super) fn change(&self, wanted: &[(&str, &str)]) -> Result<Vec<Change>> {
        // Whether it is the right one.
        self.knobs()?;
        let body = json!({ "who": who(), "set": wanted });
        let asked = self.agent.post(self.url()).header("authorization", self.shown()).send(body.to_string());
        #[derive(Deserialize)]
        struct Changed {
            changed: Vec<Change>,
        }
        Ok(self.answer::<Changed>(asked)?.changed)
    }

    fn url(&self) -> String {
        format!("http://{}/v1/knobs", self.address)
    }

    fn shown(&self) -> String {
        format!("Bearer {}", self.token.expose())
    }

    fn answer<T: for<'a> Deserialize<'a>>(&self, asked: Result<Response<Body>, ureq::Error>) -> Result<T> {
        let address = self.address;
        let mut answer = asked.map_err(|error| {
            unreachable(format!(
                "no server listens for administration at {address} ({error}): it does not run, or has no [admin]; `headwater serve` starts it"
            ))
        })?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let text = text.map_err(|error| unreachable(format!("the answer from {address} broke off: {error}")))?;
        if status == 200 {
            return serde_json::from_slice(&text)
                .or_usage(|| format!("at {address} something else answers than this version of headwater"));
        }
        let said: Value = serde_json::from_slice(&text).unwrap_or_default();
        match (status, said["error"].as_str()) {
            (400 | 422, Some(said)) => Err(usage(said)),
            (401, Some(said)) => Err(usage(format!(
                "{said}: {address} is another server's, or the token is an old one ([admin] token_file, HEADWATER_ADMIN_TOKEN)"
            ))),
            (_, Some(said)) => Err(unreachable(said)),
            (_, None) => Err(usage(format!(
                "at {address} something else answers (status {status}): choose another [admin] listen"
            ))),
        }
    }
}

/// Who calls, for the server's log: by the environment, or by the number that the process has.
fn who() -> String {
    let told = ["SUDO_USER", "USER", "LOGNAME"].map(|name| std::env::var(name).ok());
    let known = whoami::username().ok();
    named_or_numbered(told.into_iter().chain([known]), rustix::process::geteuid().as_raw())
}

fn named_or_numbered(names: impl Iterator<Item = Option<String>>, number: u32) -> String {
    names.flatten().find(|name| !name.is_empty()).unwrap_or_else(|| format!("uid {number}"))
}

#[cfg(test)]
mod tests {
    use super::named_or_numbered;

    #[test]
    fn whoever_has_no_name_has_a_number() {
        let who =
            |names: &[Option<&str>]| named_or_numbered(names.iter().map(|name| name.map(ToOwned::to_owned)), 1234);
        assert_eq!(who(&[None, Some("olga"), Some("root")]), "olga");
        assert_eq!(who(&[Some(""), Some(""), None, Some("root")]), "root");
        assert_eq!(who(&[None, Some("")]), "uid 1234");
    }
}
