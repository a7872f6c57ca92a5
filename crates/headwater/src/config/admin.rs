//! `[admin]` of `headwater.toml`: the administration listener, by which `headwater tune` reaches a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use headwater_access::Secret;
use headwater_server::Admin;
use serde::Deserialize;

use crate::exit::{OrUsage as _, usage};

/// The token, where it is not made at the start.
pub(super) const TOKEN_VARIABLE: &str = "HEADWATER_ADMIN_TOKEN";
/// The shortest token that somebody may choose.
const TOKEN_BYTES_MIN: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AdminSection {
    listen: SocketAddr,
    token_file: Option<PathBuf>,
}

impl Default for AdminSection {
    fn default() -> AdminSection {
        AdminSection { listen: SocketAddr::from(([127, 0, 0, 1], 7341)), token_file: None }
    }
}

/// The administration listener.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Where it listens: an address of this machine alone.
    pub listen: SocketAddr,
    /// Where the server leaves a token that it makes, with its address.
    pub token_file: PathBuf,
    /// The token, where somebody has chosen one: then there is no file.
    pub token: Option<Secret>,
}

impl AdminSection {
    /// All of it, of this configuration file.
    pub(super) fn config(self, file: &Path) -> Result<AdminConfig> {
        let AdminSection { listen, token_file } = self;
        Admin::check(listen).or_usage(|| "the administration listener can't be used".into())?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let token_file = token_file.map_or_else(|| file.with_extension("admin"), |own| folder.join(own));
        // What is no text is none that can be used, and no reason to make another in silence.
        let token = std::env::var_os(TOKEN_VARIABLE).map(|token| Secret::new(token.to_string_lossy().into_owned()));
        if token.as_ref().is_some_and(|token| token.expose().len() < TOKEN_BYTES_MIN || !is_header(token.expose())) {
            return Err(usage(format!(
                "{TOKEN_VARIABLE} can't be used, expected {TOKEN_BYTES_MIN} letters or more without blanks (`openssl rand -hex 32`)"
            )));
        }
        Ok(AdminConfig { listen, token_file, token })
    }
}

/// Whether a text can stand in a header as it is.
fn is_header(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
