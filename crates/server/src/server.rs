//! The server as a whole: started, asked to stop, stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::OptionFuture;
use headwater_access::{Access, Jwt, JwtError, Settings};
use headwater_bufferpool::{Config as PoolConfig, Pools};
use headwater_consolidated::{Backend, Plan, Pool, QueryBackend, QueryPool};
use headwater_knobs::{Knob, Live};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admission::{Admission, Counted, Gauge};
use crate::chunks::Chunks;
use crate::connection::Service;
use crate::counts::Counts;
use crate::descriptors::{CONNECTION_FILES_MAX, Descriptors, TURNED_AWAY_MAX, database_files, open_files_limit};
use crate::downloads::Downloads;
use crate::files::Files;
use crate::front::Front;
use crate::ready::{BuildReady, ReadyFiles};
use crate::routes::{router, turning_away};
use crate::spool::Spools;
use crate::state::{Remotes, Shared, Tasks};
use crate::tickets::Tickets;
use crate::upkeep::{self, take_notes};
use crate::without_syncs::{self, Alone};
use crate::{Config, ConfigError, TlsError, tls, tuning};

/// How long accepting pauses when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that is turned away may take to hear it.
const TURNING_AWAY: Duration = Duration::from_secs(5);

/// Why a server could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// An option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys of an identity provider.
    #[error(transparent)]
    Jwt(#[from] JwtError),
    /// The buffer pool.
    #[error(transparent)]
    Pool(#[from] headwater_bufferpool::Error),
    /// The limit of open files.
    #[error(
        "the limit of open files is {limit}, expected at least {least} for the server and its database connections: raise it \
         (`ulimit -n {least}`, `LimitNOFILE={least}` in the systemd unit), or lower workers_max (or workers, where it is fixed)"
    )]
    OpenFiles {
        /// How many the process may open.
        limit: usize,
        /// How many it needs.
        least: usize,
    },
    /// The address.
    #[error("can't listen on {address}: expected a free local address in `listen`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What other parts of the program a server is joined to.
#[derive(Clone, Default)]
pub struct Joined {
    /// Makes ready files for new remotes: the remote's own code. `None`: there are none.
    pub ready: Option<BuildReady>,
    /// Routes that are served beside the server's own: the gateway's.
    pub routes: Option<axum::Router>,
    /// Connections to the database that those use.
    pub connections: usize,
    /// Where uploads, downloads and chunks lie in memory, with what else the program has there. `None`: pools of this server's own.
    pub pools: Option<Arc<Pools>>,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("ready", &self.ready.is_some())
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

/// A running server. Dropped, it stops at once; [`Handle::shutdown`] lets running syncs end.
#[derive(Debug)]
pub struct Handle {
    local_addr: SocketAddr,
    front: Arc<Front>,
    syncs: Tasks,
    estimates: Tasks,
    /// Turns true when what still runs is to be cut.
    cutting: watch::Sender<bool>,
    connections: Tasks,
    accepting: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
    knobs: Vec<Knob>,
}

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Syncs that had not ended within the limit and were cut.
    pub syncs_cut: usize,
}

impl Server {
    /// Whether a server could start with these options, as far as can be told without listening: their values, and the files that
    /// they name.
    pub fn check(config: &Config) -> Result<(), StartError> {
        config.validate()?;
        if let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) {
            tls::load(certificate, key)?;
        }
        config.jwt().map(Jwt::new).transpose()?;
        Ok(())
    }

    /// Starts a server of these models on this database, on the runtime that calls. It listens when this returns; whether the database
    /// can be reached is not asked (`/ready` tells).
    ///
    /// ```no_run
    /// # async fn example(backend: std::sync::Arc<dyn headwater_consolidated::Backend>, plan: headwater_consolidated::Plan)
    /// # -> Result<(), headwater_server::StartError> {
    /// let handle = headwater_server::Server::start(headwater_server::Config::default(), backend, vec![plan]).await?;
    /// println!("listening on {}", handle.local_addr());
    /// handle.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(config: Config, backend: Arc<dyn Backend>, plans: Vec<Plan>) -> Result<Handle, StartError> {
        Server::start_with(config, backend, plans, Joined::default()).await
    }

    /// The same of a server to which other parts are joined.
    #[expect(clippy::unused_async, reason = "it has to be called where tasks can be started")]
    pub async fn start_with(
        config: Config,
        backend: Arc<dyn Backend>,
        plans: Vec<Plan>,
        joined: Joined,
    ) -> Result<Handle, StartError> {
        config.validate()?;
        let tls = tls_of(&config)?;
        let jwt = config.jwt().map(Jwt::new).transpose()?;
        let Joined { ready, routes, connections, pools } = joined;
        let pools = match pools {
            Some(pools) => pools,
            None => Arc::new(own_pools(&config)?),
        };
        let dialect = backend.dialect();
        let files = database_files(dialect, config.database_connections() + connections);
        let (descriptors, listener) = take_places(&config, files)?;
        let shared = share(&config, &descriptors, backend, plans, jwt, (ready, pools));
        let router = router(Arc::clone(&shared)).merge(routes.unwrap_or_default());
        let service = Service::new(router, tls.clone(), &shared.config);
        let turning_away = Service::new(turning_away(Arc::clone(&shared)), tls, &shared.config);
        let mut handle = accept(listener, Arc::clone(&shared.front), service, turning_away);
        let background = vec![
            tokio::spawn(take_notes(Arc::clone(&shared))),
            tokio::spawn(upkeep::purge_now_and_then(Arc::clone(&shared))),
            tokio::spawn(upkeep::expire(Arc::clone(&shared))),
            tokio::spawn(upkeep::share_connections(Arc::clone(&shared))),
            tokio::spawn(upkeep::look_at_commits(Arc::clone(&shared))),
        ];
        let local_addr = handle.local_addr;
        tracing::info!(%local_addr, workers = shared.admission.load().crews().0, "listening");
        handle.syncs = shared.syncs.clone();
        handle.estimates = shared.estimates.clone();
        handle.background = background;
        handle.knobs = tuning::of_syncs(&shared, dialect, connections, open_files_limit());
        Ok(handle)
    }

    /// Starts a server that syncs nothing and has no models: what is joined to it is served, with health and readiness. Otherwise like
    /// [`Server::start`]; the database may be one that can't be synced.
    #[expect(clippy::unused_async, reason = "it has to be called where tasks can be started")]
    pub async fn start_without_syncs(
        config: Config,
        backend: Arc<dyn QueryBackend>,
        joined: Joined,
    ) -> Result<Handle, StartError> {
        config.validate()?;
        let tls = tls_of(&config)?;
        // One of them is the server's own: by it readiness is found out.
        let files = CONNECTION_FILES_MAX * (joined.connections + 1);
        let (descriptors, listener) = take_places(&config, files)?;
        let front = Arc::new(Front::new(config.into(), descriptors.connections_max));
        let alone = Alone { front: Arc::clone(&front), pool: QueryPool::for_queries(backend, 1), pools: joined.pools };
        let router = without_syncs::router(Arc::new(alone)).merge(joined.routes.unwrap_or_default());
        let service = Service::new(router, tls.clone(), &front.config);
        let turning_away = Service::new(without_syncs::turning_away(Arc::clone(&front)), tls, &front.config);
        let knobs = tuning::of_front(&front, files, open_files_limit());
        let mut handle = accept(listener, front, service, turning_away);
        handle.knobs = knobs;
        tracing::info!(local_addr = %handle.local_addr, "listening; nothing is synced");
        Ok(handle)
    }
}

fn tls_of(config: &Config) -> Result<Option<Arc<rustls::ServerConfig>>, StartError> {
    match (&config.tls_certificate, &config.tls_key) {
        (Some(certificate), Some(key)) => Ok(Some(tls::load(certificate, key)?)),
        _ => Ok(None),
    }
}

/// How many files there may be, and where connections come in.
fn take_places(config: &Config, database_files: usize) -> Result<(Descriptors, (TcpListener, SocketAddr)), StartError> {
    let descriptors = Descriptors::here(config, database_files);
    if let Some((limit, least)) = descriptors.too_few() {
        return Err(StartError::OpenFiles { limit, least });
    }
    let unusable = |source| StartError::Listen { address: config.listen, source };
    let listener = listen(config.listen).map_err(unusable)?;
    let local_addr = listener.local_addr().map_err(unusable)?;
    descriptors.warn(config);
    Ok((descriptors, (listener, local_addr)))
}

/// Takes connections from now on.
pub(crate) fn accept(
    (listener, local_addr): (TcpListener, SocketAddr),
    front: Arc<Front>,
    service: Service,
    turning_away: Service,
) -> Handle {
    let (cutting, cut) = watch::channel(false);
    let tasks = Tasks::default();
    let accepting = Accepting {
        listener,
        service: Arc::new(service),
        turning_away: Arc::new(turning_away),
        turned_away: Gauge::default(),
        front: Arc::clone(&front),
        tasks: tasks.clone(),
        cut,
    };
    let accepting = tokio::spawn(accepting.run());
    let (syncs, estimates) = (Tasks::default(), Tasks::default());
    Handle {
        local_addr,
        front,
        syncs,
        estimates,
        cutting,
        connections: tasks,
        accepting,
        background: Vec::new(),
        knobs: Vec::new(),
    }
}

/// Remotes that come at once wait for their connection in the kernel. Who finds no room there knocks again after a second, then after two, four
/// and so on: the room is as large as the kernel allows (`net.core.somaxconn`), up to this.
const LISTEN_BACKLOG: u32 = 65_535;

pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Windows it would let others take the port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

impl Handle {
    /// What can be changed while it runs; given once.
    pub fn take_knobs(&mut self) -> Vec<Knob> {
        std::mem::take(&mut self.knobs)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops: no connection is accepted any more, `/ready` says 503, no sync is let in, those that run may end. What has not ended
    /// within `shutdown_ms_max` is cut: its client gets no END, and asks again; an upload being applied just then is committed or not,
    /// and its receipt is there if it was. The address is free again when this returns.
    pub async fn shutdown(mut self) -> Stopped {
        let limit = Duration::from_millis(self.front.config.now().shutdown_ms_max);
        self.front.stop(Instant::now() + limit);
        // First of all: until it ends it may let in a connection more. It can't fail but by a panic, and then it has ended too.
        let _ = (&mut self.accepting).await;
        let ended = async {
            self.connections.ended().await;
            self.syncs.ended().await;
            // Whoever stops a server may put another database in the place of this one, which nobody may have open then.
            self.estimates.ended().await;
        };
        let syncs_cut = match tokio::time::timeout(limit, ended).await {
            Ok(()) => 0,
            Err(_elapsed) => {
                let count = self.syncs.count();
                let connections = self.front.connections.count();
                tracing::warn!(count, connections, ?limit, "syncs had not ended within shutdown_ms_max and are cut");
                self.cutting.send_replace(true);
                self.connections.ended().await;
                count
            }
        };
        Stopped { syncs_cut }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.front.stop(Instant::now());
        self.cutting.send_replace(true);
        self.accepting.abort();
        self.background.iter().for_each(JoinHandle::abort);
    }
}

pub(crate) fn share(
    config: &Config,
    descriptors: &Descriptors,
    backend: Arc<dyn Backend>,
    plans: Vec<Plan>,
    jwt: Option<Jwt>,
    (build, pools): (Option<BuildReady>, Arc<Pools>),
) -> Arc<Shared> {
    let commit_waits = backend.commit_waits();
    commit_waits.set_limit(config.commit_wait());
    let (live, pool) = (Live::new(config.clone()), Pool::new(backend, config.database_connections()));
    let settings = Settings {
        password_checks: config.password_checks,
        password_checks_waiting: config.password_checks_waiting,
        account_cache: Duration::from_millis(config.account_cache_ms),
        patience: Duration::from_millis(config.connect_ms_max),
    };
    let access = Access::new(pool.clone(), settings);
    let access = match jwt {
        Some(jwt) => access.with_jwt(jwt),
        None => access,
    };
    let files = Files::new(config.spool_folder.clone(), descriptors.files_max);
    let spools = Spools::new(pools.main().clone(), live.clone());
    Arc::new(Shared {
        access,
        admission: Admission::new(live.clone()),
        tickets: Tickets::new(live.clone(), spools.clone()),
        chunks: Chunks::new(live.clone(), Arc::clone(&files), Arc::clone(&pools)),
        spools,
        pools,
        files,
        pool,
        commit_waits,
        plans: plans.into_iter().map(Arc::new).collect(),
        front: Arc::new(Front::new(live.clone(), descriptors.connections_max)),
        syncs: Tasks::default(),
        counts: Counts::default(),
        estimates: Tasks::default(),
        remotes: Remotes::default(),
        downloads: Downloads::new(live.clone()),
        ready_files: ReadyFiles::new(live.clone(), build),
        packing: config.packing.handle(),
        config: live,
    })
}

/// Those of a server that shares none with others.
pub(crate) fn own_pools(config: &Config) -> Result<Pools, headwater_bufferpool::Error> {
    let overflow_folder = config.spool_folder.clone();
    Pools::new(&PoolConfig { overflow_folder, ..PoolConfig::default() }, None)
}

struct Accepting {
    listener: TcpListener,
    service: Arc<Service>,
    /// For those for whom there is no place.
    turning_away: Arc<Service>,
    turned_away: Gauge,
    front: Arc<Front>,
    tasks: Tasks,
    cut: watch::Receiver<bool>,
}

impl Accepting {
    async fn run(self) {
        let mut stopping = self.front.stopping.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = stopping.wait_for(Option::is_some) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.begin(stream, peer),
                Err(error) => {
                    // Of one connection that broke at once, or the system is out of descriptors: others end meanwhile.
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn begin(&self, stream: TcpStream, peer: SocketAddr) {
        let limit = self.front.connections_max();
        if let Some(place) = self.front.connections.try_enter(limit) {
            return self.serve(Arc::clone(&self.service), (stream, peer), place, None);
        }
        tracing::warn!(%peer, limit, "a connection is turned away: connections_max are open");
        // Beyond so many it is closed at once.
        if let Some(place) = self.turned_away.try_enter(TURNED_AWAY_MAX) {
            self.serve(Arc::clone(&self.turning_away), (stream, peer), place, Some(TURNING_AWAY));
        }
    }

    /// Serves a connection, for so long at most, in a task that holds its place.
    fn serve(
        &self,
        service: Arc<Service>,
        (stream, peer): (TcpStream, SocketAddr),
        place: Counted,
        at_most: Option<Duration>,
    ) {
        let (task, mut cut) = (self.tasks.enter(), self.cut.clone());
        let stopping = self.front.stopping.subscribe();
        tokio::spawn(async move {
            let _held = (place, task);
            tokio::select! {
                ended = service.serve(stream, stopping) => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, error = &error as &dyn std::error::Error, "a connection broke");
                    }
                }
                _ = cut.wait_for(|cut| *cut) => {}
                Some(()) = OptionFuture::from(at_most.map(tokio::time::sleep)) => {}
            }
        });
    }
}
