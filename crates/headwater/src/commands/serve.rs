//! `headwater serve`: the server, until it is asked to stop.

mod administration;
mod client_sql;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use futures_util::future::OptionFuture;
use headwater_access::{Access, Jwt, Settings as AccessSettings};
use headwater_bufferpool::{Class, Pool as BufferPool, Pools};
use headwater_consolidated::Plan;
use headwater_consolidated::check::{Severity, unenforced};
use headwater_consolidated::{Backend, Connection, Pool, QueryBackend, QueryPool};
use headwater_gateway::query::Who;
use headwater_gateway::{ClientSql, CursorSettings, Gateway, Settings};
use headwater_knobs::{Knob, Live};
use headwater_server::{Config as ServerConfig, Handle, Joined, Line, Server, StartError, Stopping, raise_open_files};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use self::administration::administrate;
pub(crate) use self::administration::named;
use self::client_sql::client_sql;
use super::check::{Found, check_all, place, title};
use super::query::checked;
use crate::Done;
use crate::cli::Global;
use crate::config::{Config, GatewayConfig, without};
use crate::exit::{Exit, OrUsage as _, usage};
use crate::logging::Logging;
use crate::output::Output;
use crate::pool::Known;
use crate::ready;

const EXAMPLES: &str = "\
Examples:
  headwater serve
  headwater serve --listen 0.0.0.0:7340 --workers 16 --set tls_certificate=server.pem --set tls_key=server.key
  HEADWATER_SERVER_WORKERS=16 HEADWATER_LOG=debug headwater serve --log-json
  headwater serve --set gateway.compression=5

Ctrl-C or SIGTERM: no new sync is let in, those that run may end ([server] shutdown_ms_max); again: stops at once.
GET /health says that the server lives, GET /ready whether it can serve, with its load.";

/// Options of the gateway begin with it.
const GATEWAY: &str = "gateway.";
/// Those of the administration listener.
const ADMIN: &str = "admin.";
/// And those of the pool.
const POOL: &str = "pool.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct ServeArgs {
    /// Where to listen; port 0: any free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Syncs that use the consolidated database at a time.
    #[arg(long)]
    workers: Option<usize>,
    /// Of them, those that may apply an upload.
    #[arg(long)]
    uploaders: Option<usize>,
    /// Syncs that may wait for a worker; 0: none waits.
    #[arg(long)]
    backlog: Option<usize>,
    /// Any option of [server], of [gateway] as gateway.OPTION, or of [pool] and [admin] likewise; may be given several times.
    #[arg(long = "set", value_name = "OPTION=VALUE", value_parser = option)]
    options: Vec<(String, String)>,
    /// Start without holding the model against the database first.
    #[arg(long)]
    no_check: bool,
    /// Stop once standard input ends: whoever has started it is gone.
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no =, expected OPTION=VALUE"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl ServeArgs {
    /// Those that begin so, without it.
    fn options_of(&self, section: &str) -> Vec<(String, String)> {
        let own = |(name, value): &(String, String)| Some((name.strip_prefix(section)?.to_owned(), value.clone()));
        self.options.iter().filter_map(own).collect()
    }

    fn server_options(&self) -> Vec<(String, String)> {
        let named = [
            ("listen", self.listen.map(|address| address.to_string())),
            ("workers", self.workers.map(|count| count.to_string())),
            ("uploaders", self.uploaders.map(|count| count.to_string())),
            ("backlog", self.backlog.map(|count| count.to_string())),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let is_others = |name: &str| [GATEWAY, POOL, ADMIN].iter().any(|section| name.starts_with(section));
        let own = self.options.iter().filter(|(name, _)| !is_others(name)).cloned();
        own.chain(named).collect()
    }
}

/// The database, as what syncs and as what runs queries.
struct Backends {
    /// `None`: it can't be synced, and has no accounts.
    syncs: Option<Arc<dyn Backend>>,
    queries: Arc<dyn QueryBackend>,
}

impl Backends {
    fn of(config: &Config, plans: &[Plan]) -> Result<Backends> {
        if plans.is_empty() && !config.database.can_sync() {
            return Ok(Backends { syncs: None, queries: config.database.query_backend()? });
        }
        // One for both: its connections go by one name.
        let syncs = config.database.backend()?;
        Ok(Backends { queries: Arc::clone(&syncs) as _, syncs: Some(syncs) })
    }
}

/// What of the gateway can be changed while it runs.
struct Tunable {
    knobs: Vec<Knob>,
    settings: Live<Settings>,
}

/// An answer that is held and can't be kept is none that anybody means.
pub(crate) fn check_held(settings: &Settings, pool: &BufferPool) -> Result<()> {
    let (held, room) = (settings.held_bytes_max, pool.room_bytes(Class::Answer));
    if settings.cache && held as u64 > room {
        let why = "an answer that is held has no room to be kept then; or set [gateway] cache = false: nothing is kept";
        return Err(usage(format!(
            "[gateway] held_bytes_max is {held}, and [pool] memory_bytes leaves {room} to answers, beside the floors of others: {why}"
        )));
    }
    Ok(())
}

/// What can be assigned to the alternate pool.
fn known<'a>(gateway: Option<&'a GatewayConfig>, plans: &'a [Plan]) -> Known<'a> {
    let queries = gateway.iter().flat_map(|gateway| &gateway.queries).map(|query| query.name.as_str()).collect();
    let tables = plans.iter().flat_map(|plan| &plan.model.tables).filter(|table| table.shared);
    Known { queries, tables: tables.map(|table| table.name.as_str()).collect() }
}

/// Cursors that run SQL of clients.
fn raw_cursors(cursors: Option<&CursorSettings>) -> usize {
    cursors.filter(|cursors| cursors.sql).map_or(0, |cursors| cursors.cursors_max)
}

/// Connections of the database beside those of syncs: of queries, of SQL of clients, of cursors, and the one by which users are known.
pub(crate) fn connections_of(gateway: &GatewayConfig) -> usize {
    let GatewayConfig { settings, frontier, cursors, .. } = gateway;
    let of_clients = frontier.as_ref().map_or(0, |_| settings.connections() + raw_cursors(cursors.as_ref()));
    settings.connections() + of_clients + cursors.as_ref().map_or(0, |cursors| cursors.cursors_max) + 1
}

/// The pools, if whatever is to lie in them has room there.
pub(crate) fn pools(
    config: &Config,
    arguments: &[(String, String)],
    options: &ServerConfig,
    gateway: Option<&GatewayConfig>,
    plans: &[Plan],
) -> Result<Pools> {
    let pools = config.pools(arguments, options, Some(&known(gateway, plans)))?;
    if let Some(GatewayConfig { settings, .. }) = gateway {
        check_held(settings, pools.main())?;
    }
    Ok(pools)
}

/// What is served beside syncs: ready files, and the named queries; with what of those can be changed.
fn join(
    gateway: Option<GatewayConfig>,
    sql: Option<ClientSql>,
    backends: &Backends,
    options: &ServerConfig,
    pools: Arc<Pools>,
) -> Result<(Joined, Option<Tunable>)> {
    let ready = Some(ready::builder());
    let Some(gateway) = gateway else {
        return Ok((Joined { ready, pools: Some(pools), ..Joined::default() }, None));
    };
    let connections = connections_of(&gateway);
    let GatewayConfig { queries, settings, packing, frontier, cursors } = gateway;
    let pool = QueryPool::for_queries(Arc::clone(&backends.queries), settings.connections());
    let settings_of_access = AccessSettings {
        password_checks: options.password_checks,
        password_checks_waiting: options.password_checks_waiting,
        account_cache: Duration::from_millis(options.account_cache_ms),
        patience: settings.patience,
    };
    // Who asks is looked up on a connection of its own: no query keeps it waiting.
    let access = match &backends.syncs {
        Some(backend) => Access::new(Pool::new(Arc::clone(backend), 1), settings_of_access),
        None => Access::without_accounts(settings_of_access),
    };
    let jwt = options.jwt().map(Jwt::new).transpose().or_usage(|| "the server could not be started".into())?;
    if backends.syncs.is_none() && jwt.is_none() && queries.iter().any(|query| query.who != Who::Public) {
        tracing::warn!(
            "MariaDB has no accounts: nobody can ask queries that are not public; let an identity provider's users in (jwt_*)"
        );
    }
    let access = match jwt {
        Some(jwt) => access.with_jwt(jwt),
        None => access,
    };
    tracing::info!(queries = queries.len(), "named queries are served at /q/NAME");
    let gateway = Gateway::new(queries, pool, access, settings, Arc::clone(&pools));
    gateway.packing().set(packing).or_usage(|| "[gateway.packing] can't be used".into())?;
    let gateway = match frontier.zip(sql) {
        Some((frontier, sql)) => {
            tracing::info!(name = frontier.settings.name, "the Frontier protocol is served at /NAME/Frontier");
            gateway.with_frontier(frontier.settings, sql)
        }
        None => gateway,
    };
    let gateway = match cursors {
        Some(cursors) => {
            tracing::info!("remote cursors are served at /cursor");
            let pool = QueryPool::for_queries(Arc::clone(&backends.queries), cursors.cursors_max);
            gateway.with_cursors(cursors, pool, Some(|extensions| Some(extensions.get::<Stopping>()?.0.clone())))
        }
        None => gateway,
    };
    // What the server has measured of the client's connection.
    let gateway = gateway.with_links(|extensions| extensions.get::<Arc<Line>>()?.bytes_per_s());
    let tunable = Tunable { knobs: gateway.knobs(), settings: gateway.settings() };
    let joined = Joined { ready, routes: Some(gateway.router()), connections, pools: Some(pools) };
    Ok((joined, Some(tunable)))
}

/// Serves until a signal comes.
pub fn run(args: &ServeArgs, global: &Global, output: &Output, logging: &Logging) -> Done {
    let config = Config::read(global)?;
    let options = config.server(&args.server_options())?;
    let mut plans = config.served_plans()?;
    let backends = Backends::of(&config, &plans)?;
    if let Some(backend) = backends.syncs.as_ref().filter(|_| !plans.is_empty()) {
        leave_out_references(&**backend, &mut plans);
    }
    if !args.no_check {
        if !plans.is_empty() {
            check_first(&config, &plans, output)?;
        }
        if config.has_gateway() {
            without(&checked(&config)?.1)?;
        }
    }
    let is_tls = options.tls_certificate.is_some();
    raise_open_files();
    let gateway = config.gateway(&args.options_of(GATEWAY))?;
    let admin = config.admin(&args.options_of(ADMIN))?;
    // Here, where blocking is allowed.
    let sql = gateway.as_ref().map(|gateway| client_sql(gateway, &backends.queries)).transpose()?.flatten();
    let pools = Arc::new(pools(&config, &args.options_of(POOL), &options, gateway.as_ref(), &plans)?);
    if gateway.is_some() {
        warn_of_grants(&backends);
    }
    let runtime = tokio::runtime::Runtime::new().context("the threads of the server could not be started")?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (joined, of_gateway) = join(gateway, sql, &backends, &options, Arc::clone(&pools))?;
        let handle = match backends.syncs {
            Some(backend) if !plans.is_empty() => Server::start_with(options, backend, plans, joined).await,
            _ => Server::start_without_syncs(options, backends.queries, joined).await,
        };
        let handle = handle.map_err(|error| match error {
            StartError::Listen { .. } => anyhow::Error::new(error).context("choose another address by --listen"),
            error => anyhow::Error::new(error),
        });
        let mut handle = handle.or_usage(|| "the server could not be started".into())?;
        let knobs = (handle.take_knobs(), of_gateway, pools, logging);
        let _administration = match admin {
            Some(admin) => Some(administrate(admin, config.file(), knobs).await?),
            None => None,
        };
        announce(&handle, is_tls, output)?;
        let input = args.until_input_ends.then(end_of_input);
        tokio::select! {
            () = signals.next() => {}
            Some(_) = OptionFuture::from(input) => {}
        }
        tracing::info!("stopping; a second signal stops at once");
        tokio::select! {
            stopped = handle.shutdown() => tracing::info!(syncs_cut = stopped.syncs_cut, "stopped"),
            () = signals.next() => tracing::warn!("stopped at once"),
        }
        Ok(Exit::Done)
    })
}

/// Beside the start: the database may not be there yet.
fn warn_of_grants(backends: &Backends) {
    let backend = Arc::clone(&backends.queries);
    std::thread::spawn(move || {
        let lacks = backend.connect_for_queries().and_then(|mut connection| connection.lacks_for_watching());
        match lacks {
            Ok(lacks) if !lacks.is_empty() => tracing::warn!(
                missing = lacks.join("; "),
                "tables are tracked, and the database's role may not ask change tracking: each request runs its query"
            ),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "whether change tracking may be asked is not known"),
        }
    });
}

/// New remotes do not enforce references whose columns this database compares in another way than by bytes.
fn leave_out_references(backend: &dyn Backend, plans: &mut [Plan]) {
    let catalogue = match backend.connect().and_then(|mut connection| connection.catalogue()) {
        Ok(catalogue) => catalogue,
        // Without --no-check the start fails of it. With it, remotes made now enforce all of them.
        Err(error) => return tracing::warn!(%error, "the catalogue can't be read: new remotes enforce all references"),
    };
    for plan in plans {
        plan.model.unenforced = unenforced(&plan.model, &catalogue);
    }
}

/// What is found once triggers of change tracking that a plain `ENABLE TRIGGER` left behind are enabled as they were made.
fn check_enabled<'p>(connection: &mut dyn Connection, plans: &'p [Plan]) -> Result<Vec<Found<'p>>> {
    let found = check_all(connection, plans)?;
    if found.iter().all(|(_, finding)| finding.severity != Severity::Error) {
        return Ok(found);
    }
    let mut is_altered = false;
    for plan in plans {
        is_altered |= connection.enable_triggers(plan)?;
    }
    Ok(if is_altered { check_all(connection, plans)? } else { found })
}

/// A server on a database that is not as its model says would lose rows: it does not start.
fn check_first(config: &Config, plans: &[Plan], output: &Output) -> Result<()> {
    let mut connection = config.connect_installed()?;
    let mut lines = Vec::new();
    for (found_in, finding) in check_enabled(&mut *connection, plans)? {
        let title = title(&found_in, plans);
        match finding.severity {
            Severity::Warning => output.note(format!("warning: {title}{}{}", place(&finding), finding.message)),
            Severity::Error => {
                lines.push(format!("  {title}{}{}: {}", place(&finding), finding.message, finding.mend));
            }
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    Err(usage(format!(
        "the database is not as the model says (`headwater check`; --no-check starts all the same):\n{}",
        lines.join("\n")
    )))
}

fn announce(handle: &Handle, is_tls: bool, output: &Output) -> Result<()> {
    let url = format!("{}://{}", if is_tls { "https" } else { "http" }, handle.local_addr());
    if output.is_json() {
        return output.line(json!({ "listening": url }));
    }
    output.line(format!("listening on {url}"))
}

/// Told when standard input has ended, or can't be read.
fn end_of_input() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tell.send(())
    });
    told
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let listen = |kind| signal(kind).context("signals could not be listened to");
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
