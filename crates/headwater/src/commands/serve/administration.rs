//! The administration listener of a server: all knobs of the process, behind a token.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use headwater_bufferpool::Pools;
use headwater_knobs::{Knob, Knobs, Rule};
use headwater_server::{Admin, Handle, TokenDigest};

use super::{Tunable, check_held};
use crate::admin::{TokenFile, make_token};
use crate::config::{AdminConfig, check_sending};
use crate::exit::OrUsage as _;
use crate::logging::Logging;
use crate::pool;

/// Listens until it is dropped; then the token file goes too.
pub(super) struct Administration {
    _token_file: Option<TokenFile>,
    _handle: Handle,
}

/// Starts it. `parts`: the server's own knobs, the gateway, the pools, the log.
pub(super) async fn administrate(
    config: AdminConfig,
    file: &Path,
    parts: (Vec<Knob>, Option<Tunable>, Arc<Pools>, &Logging),
) -> Result<Administration> {
    let AdminConfig { listen, token_file, token } = config;
    let is_chosen = token.is_some();
    let token = token.unwrap_or_else(make_token);
    let (digest, knobs) = (TokenDigest::of(token.expose()), knobs(parts));
    let admin = Admin { listen, token: digest, knobs, config: named(file) };
    let handle = admin.start().await.or_usage(|| "the administration listener could not be started".into())?;
    let token_file = if is_chosen { None } else { Some(TokenFile::write(&token_file, handle.local_addr(), &token)?) };
    Ok(Administration { _token_file: token_file, _handle: handle })
}

/// A configuration file, as whoever asks may name it too.
pub(crate) fn named(file: &Path) -> String {
    file.canonicalize().unwrap_or_else(|_| file.to_owned()).display().to_string()
}

fn knobs((own, gateway, pools, logging): (Vec<Knob>, Option<Tunable>, Arc<Pools>, &Logging)) -> Knobs {
    let mut all = own;
    all.extend(pool::knobs(&pools));
    let rules: Vec<Rule> = gateway.map_or_else(Vec::new, |Tunable { knobs, settings }| {
        all.extend(knobs);
        let for_sending = settings.clone();
        let kept: Rule = Box::new(move || check_held(&settings.now(), pools.main()).map_err(|error| error.to_string()));
        let sent: Rule = Box::new(move || check_sending(&for_sending.now()).map_err(|error| error.to_string()));
        vec![kept, sent]
    });
    all.push(logging.knob());
    rules.into_iter().fold(Knobs::new(all), Knobs::with_rule)
}
