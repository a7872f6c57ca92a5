//! Where SQL of the Frontier protocol is run: never where it could read the accounts, unless that is wanted.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use headwater_consolidated::{QueryBackend, QueryPool};
use headwater_gateway::ClientSql;

use crate::config::{FrontierConfig, GatewayConfig};
use crate::exit::usage;

/// Connections of the role that `[gateway.frontier]` names, or of the server's own, if the protocol is served. An error where it can read
/// Headwater's own tables of secrets, which says how a role is made that can't.
pub(super) fn client_sql(gateway: &GatewayConfig, own: &Arc<dyn QueryBackend>) -> Result<Option<ClientSql>> {
    let Some(config) = &gateway.frontier else { return Ok(None) };
    let backend = match &config.database {
        Some(address) => address.query_backend()?,
        None => Arc::clone(own),
    };
    let row_bytes_max = config.settings.limits.row_bytes_max;
    let mut connection = backend.connect_for_client_sql(row_bytes_max).with_context(|| {
        format!("the database {} of the Frontier protocol's SQL could not be opened", backend.address())
    })?;
    let mut readable =
        connection.readable_secrets().context("looking at what SQL of the Frontier protocol can read")?;
    if readable.is_empty() && config.database.is_none() && backend.address().starts_with("postgres") {
        readable.push(
            "Headwater's own tables of accounts as soon as it has made them (headwater track, headwater user)".into(),
        );
    }
    if !readable.is_empty() {
        if !config.reads_accounts {
            return Err(usage(refusal(config, &backend.address(), &readable.join(", "))));
        }
        tracing::warn!(
            readable = readable.join(", "),
            "whoever may send SQL by the Frontier protocol can read the accounts"
        );
    }
    let connections = gateway.settings.executions_max + super::raw_cursors(gateway.cursors.as_ref());
    let pool = QueryPool::for_client_sql(backend, connections, row_bytes_max);
    Ok(Some(ClientSql::new(pool, config.reads_accounts)))
}

fn refusal(config: &FrontierConfig, address: &str, readable: &str) -> String {
    let whose = if config.database.is_some() { "[gateway.frontier] url" } else { "[database] url" };
    let role = if address.starts_with("mariadb:") {
        "CREATE USER frontier IDENTIFIED BY '...'; GRANT SELECT ON shop.flight TO frontier;"
    } else {
        "CREATE ROLE frontier LOGIN PASSWORD '...'; GRANT SELECT ON flight, airport TO frontier;"
    };
    format!(
        "SQL of the Frontier protocol would be run by the role of {whose} ({address}), which can read {readable}: whoever may send SQL \
         could be any user.\nName a role that can't by url under [gateway.frontier] (HEADWATER_GATEWAY_FRONTIER_URL, --set \
         gateway.frontier.url=URL), and make it so, with the tables that are meant:\n  {role}\n\
         (reads_accounts = true there starts all the same)"
    )
}
