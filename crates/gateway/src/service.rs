//! What is done with a request: who asks, whether the answer is kept, and otherwise one execution for all who want it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderValue;
use bytes::Bytes;
use headwater_access::{Access, Credentials, Error as AccessError};
use headwater_bufferpool::{Named, Pools};
use headwater_consolidated::QueryPool;
use headwater_consolidated::results::Placeholder;
use headwater_knobs::Live;
use headwater_protocol::packer::{Knobs, Packing};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, watch};

use crate::alive::Alive;
use crate::cache::{Cache, Executing, Kept, Key, Made, Place};
use crate::fault::{Fault, OWN_FAULT_S};
use crate::format::Format;
use crate::held::Body;
use crate::knobs::PIECE_BYTES_MAX;
use crate::lane::Lane;
use crate::pace::{self, Least};
use crate::packing::{Compression, Packer};
use crate::query::{Arguments, Freshness, Query};
use crate::run::{self, Form, Job, NextPage, Running, Told};
use crate::tag::{Had, Question};
use crate::watches::{Looking, Watches};

/// Looks at change tracking at a time, beside the queries that run. Each takes a moment.
const LOOKS_MAX: usize = 1;
/// Those that wait for one, however few queries may wait; beyond, 503.
const LOOKS_WAITING_MAX: usize = 1_000;

/// What the gateway may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queries that run at a time, each on a connection of its own.
    pub executions_max: usize,
    /// Queries that wait for one of those; beyond, 503.
    pub waiting_max: usize,
    /// Whether answers are kept, in the buffer pool.
    pub cache: bool,
    /// An answer of more bytes is sent as it comes: without a tag, and not kept.
    pub held_bytes_max: usize,
    /// Bytes of answers that found no room in the pool, and that clients have not taken yet; beyond, 503 for what is not kept.
    pub sending_bytes_max: usize,
    /// How long to wait for a place to execute, and for a connection to the database; then 503.
    pub patience: Duration,
    /// How hard answers are compressed.
    pub compression: Compression,
    /// Bytes a second, before compression, at which the client of an answer that is sent as it comes must take it while others wait for a place;
    /// 0: it may take them as it likes.
    pub reader_bytes_per_s_min: u64,
}

impl Settings {
    /// Connections to the database that it uses at a time.
    pub fn connections(&self) -> usize {
        self.executions_max + LOOKS_MAX
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            executions_max: 4,
            waiting_max: 64,
            cache: true,
            held_bytes_max: 4 << 20,
            sending_bytes_max: 256 << 20,
            patience: Duration::from_secs(10),
            compression: Compression::default(),
            reader_bytes_per_s_min: 64 << 10,
        }
    }
}

/// Serves named queries of one database.
pub(crate) struct Service {
    pub(crate) queries: BTreeMap<String, Arc<Query>>,
    access: Access,
    pool: QueryPool,
    settings: Live<Settings>,
    cache: Cache<Ended>,
    places: Lane,
    /// Where change tracking is asked, while there is no place among those.
    looks: Lane,
    executions: AtomicUsize,
    pub(crate) watches: Arc<Watches>,
    pub(crate) packer: Arc<Packer>,
    /// Answers on their way that are not in the pool.
    alive: Alive,
    pools: Arc<Pools>,
    /// How full pieces of answers get.
    knobs: Knobs,
    /// By which tags are sealed.
    key: OnceCell<[u8; 32]>,
}

/// A request that is understood.
#[derive(Clone)]
pub(crate) struct Asked {
    /// Like requests have one.
    pub(crate) key: Key,
    pub(crate) job: Job,
    pub(crate) freshness: Freshness,
}

/// How an execution that was to be kept ended without.
#[derive(Clone)]
pub(crate) enum Ended {
    Fault(Fault),
    /// It has more bytes than are held. It goes on, from its first byte, for the first of those who wait to take it.
    Large(Arc<Mutex<Option<Running>>>),
    /// It was but asked whether something has changed since a mark; whether it has not.
    Compared(bool),
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Fault(fault) => fault.fmt(f),
            Ended::Large(_) => f.write_str("it has more bytes than are held"),
            Ended::Compared(is_unchanged) => write!(f, "compared, unchanged: {is_unchanged}"),
        }
    }
}

/// An answer.
pub(crate) enum Answer {
    /// Whole; so long ago it was seen to be so.
    Kept(Kept, Duration),
    /// What the client has, by this tag: nothing has changed since.
    Unchanged(String),
    /// As it comes: the first bytes, and what follows.
    Streamed(Bytes, Running),
}

impl Service {
    pub(crate) fn new(
        queries: Vec<Query>,
        pool: QueryPool,
        access: Access,
        settings: Settings,
        pools: Arc<Pools>,
    ) -> Service {
        let alive = Alive::default();
        let settings = Live::new(settings);
        let queries = queries.into_iter().map(|query| (query.name.clone(), Arc::new(query))).collect();
        Service {
            queries,
            access,
            pool,
            cache: Cache::new(),
            places: Lane::new(settings.now().executions_max),
            looks: Lane::new(LOOKS_MAX),
            executions: AtomicUsize::new(0),
            watches: Arc::default(),
            packer: Arc::new(Packer::new(settings.clone()).counted(alive.clone())),
            alive,
            pools,
            knobs: Knobs::within(Packing::FULL, PIECE_BYTES_MAX),
            key: OnceCell::new(),
            settings,
        }
    }

    /// The answer to a request. One that is kept and fresh costs no query; for as long as the query says, one that is too old is given while it
    /// is made anew, and where the database fails. `had`: what the client has of it, asked where nothing is kept.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        asked: &Asked,
        had: impl FnOnce() -> Option<Had>,
    ) -> Result<Answer, Fault> {
        let (key, freshness) = (&asked.key, &asked.freshness);
        let kept = self.cache.kept(key);
        let max_age = Duration::from_secs(freshness.max_age_s.into());
        if let Some(kept) = &kept {
            let age = kept.age(Instant::now());
            if age < max_age {
                return Ok(Answer::Kept(kept.clone(), age));
            }
            if age < max_age + Duration::from_secs(freshness.stale_while_revalidate_s.into()) {
                self.refresh(key, asked);
                return Ok(Answer::Kept(kept.clone(), age));
            }
        }
        if let Some(Ended::Fault(fault)) = self.cache.failure(key, Instant::now()) {
            return Err(fault);
        }
        if kept.is_none()
            && let Some(Had { tag, mark }) = had()
            && self.is_unchanged(asked, mark).await?
        {
            return Ok(Answer::Unchanged(tag));
        }
        let fault = match self.execute_once(key, asked).await {
            Ok(kept) => return Ok(Answer::Kept(kept, Duration::ZERO)),
            Err(Ended::Large(begun)) => {
                let begun = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
                return self.stream(asked, begun).await;
            }
            Err(Ended::Compared(_)) => Fault::internal("an execution was none"),
            Err(Ended::Fault(fault)) => fault,
        };
        let stale_max = max_age + Duration::from_secs(freshness.stale_if_error_s.into());
        match kept {
            Some(kept) if fault.is_servers && kept.age(Instant::now()) < stale_max => {
                tracing::warn!(query = asked.job.name, fault = fault.code, "an answer that is too old is given");
                let age = kept.age(Instant::now());
                Ok(Answer::Kept(kept, age))
            }
            _ => Err(fault),
        }
    }

    /// Whether nothing that the question is about has changed since this mark. The query is not run.
    async fn is_unchanged(self: &Arc<Self>, asked: &Asked, mark: String) -> Result<bool, Fault> {
        // No name of a query begins so.
        let key = Key::from(format!("~{mark}\n{}", asked.key));
        let job = Job { form: Form::Mark, known: Some(mark), ..asked.job.clone() };
        match self.execute_once(&key, &Asked { key: Arc::clone(&key), job, ..asked.clone() }).await {
            Err(Ended::Compared(is_unchanged)) => Ok(is_unchanged),
            Err(Ended::Fault(fault)) => Err(fault),
            Err(Ended::Large(_)) | Ok(_) => Ok(false),
        }
    }

    /// Has it made anew beside, unless somebody is at it. Where that fails, what is kept stays.
    fn refresh(self: &Arc<Self>, key: &Key, asked: &Asked) {
        let Place::First(tell) = self.cache.place(key) else { return };
        // Whoever listens keeps it going: it is wanted, though nobody waits.
        let told = tell.subscribe();
        let (service, key, asked) = (Arc::clone(self), Arc::clone(key), asked.clone());
        tokio::spawn(async move {
            service.execute_and_tell(&key, &asked, &tell).await;
            if let Some(Err(ended)) = &told.borrow().ended {
                tracing::warn!(query = asked.job.name, ?ended, "an answer that is too old could not be made anew");
            }
        });
    }

    /// Executes it, or waits for who does: for one who began before this was asked only where the answer may be as old.
    async fn execute_once(self: &Arc<Self>, key: &Key, asked: &Asked) -> Result<Kept, Ended> {
        let (came, max_age) = (Instant::now(), Duration::from_secs(asked.freshness.max_age_s.into()));
        loop {
            let mut told = match self.cache.place(key) {
                Place::Wait(told) => told,
                Place::First(tell) => {
                    let told = tell.subscribe();
                    let (service, key, asked) = (Arc::clone(self), Arc::clone(key), asked.clone());
                    // In a task of its own: others may wait for it longer than who came first.
                    tokio::spawn(async move { service.execute_and_tell(&key, &asked, &tell).await });
                    told
                }
            };
            if let Ok(told) = told.wait_for(|told| told.ended.is_some()).await
                && told.is_for(came, max_age)
                && let Some(ended) = &told.ended
            {
                return ended.clone();
            }
            // Who was at it gave up as this one came, or began too early: once more.
        }
    }

    async fn execute_and_tell(&self, key: &Key, asked: &Asked, tell: &watch::Sender<Executing<Ended>>) {
        let mut executing = std::pin::pin!(self.execute_whole(key, asked, tell));
        let ended = loop {
            tokio::select! {
                ended = &mut executing => break ended,
                () = tell.closed() => {
                    if self.cache.give_up(key, tell) {
                        return;
                    }
                }
            }
        };
        // A Frontier client's SQL is its own: it may have mended what was wrong.
        if let Err(Ended::Fault(fault)) = &ended
            && !fault.is_servers
            && matches!(asked.job.form, Form::Rows(_))
        {
            let until = Instant::now() + Duration::from_secs(OWN_FAULT_S.into());
            self.cache.keep_failure(key, Ended::Fault(fault.clone()), until);
        }
        self.cache.leave(key);
        tell.send_modify(|told| told.ended = Some(ended));
    }

    async fn execute_whole(
        &self,
        key: &Key,
        asked: &Asked,
        tell: &watch::Sender<Executing<Ended>>,
    ) -> Result<Kept, Ended> {
        if self.alive.bytes() > self.settings.now().sending_bytes_max {
            return Err(Ended::Fault(Fault::overloaded("too much of answers waits for clients that take them slowly")));
        }
        let kept = self.cache.kept(key);
        let known = kept.as_ref().and_then(|kept| kept.mark.clone()).or_else(|| asked.job.known.clone());
        let asked = Asked { job: Job { known, ..asked.job.clone() }, ..asked.clone() };
        if let Some(kept) = &kept
            && self.places.is_full()
        {
            Executing::begins(tell);
            if let Some(mark) = self.unchanged_mark(&asked).await.map_err(Ended::Fault)? {
                let question = asked.question(self.key().await);
                return Ok(self.cache.renew(key, kept, Some(mark), Some(&question)));
            }
        }
        let permit = self.permit(&asked).await.map_err(Ended::Fault)?;
        Executing::begins(tell);
        let mut running = self.start_in(permit, &asked).await.map_err(Ended::Fault)?;
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = running.next().await {
            let piece = piece.map_err(Ended::Fault)?;
            bytes += piece.len();
            pieces.push(piece);
            if bytes > self.settings.now().held_bytes_max {
                running.put_back(pieces);
                return Err(Ended::Large(Arc::new(Mutex::new(Some(running)))));
            }
        }
        if asked.job.form == Form::Mark {
            return Err(Ended::Compared(running.is_unchanged));
        }
        let (mark, next) = (running.mark.take(), running.next.take());
        let question = match &mark {
            Some(_) => Some(asked.question(self.key().await)),
            None => None,
        };
        if let Some(kept) = kept.filter(|_| running.is_unchanged) {
            return Ok(self.cache.renew(key, &kept, mark, question.as_ref()));
        }
        let made = Made { body: self.alive.count(pieces.concat()), mark, question, next };
        let pool = self.settings.now().cache.then(|| self.pools.of(&Named::Query(asked.job.name.clone())));
        Ok(self.cache.keep(key, made, pool, (Instant::now(), SystemTime::now())))
    }

    /// What change tracking says of the tables of an answer that is kept, if nothing has changed in them: asked where the query would have to
    /// wait. `None`: it has to be run.
    async fn unchanged_mark(&self, asked: &Asked) -> Result<Option<String>, Fault> {
        let look = Asked { job: Job { form: Form::Mark, ..asked.job.clone() }, ..asked.clone() };
        if asked.job.form == Form::Mark || asked.job.known.is_none() || !look.job.is_look() {
            return Ok(None);
        }
        let mut running = self.start(&look).await?;
        while running.next().await.transpose()?.is_some() {}
        Ok(running.mark.take().filter(|_| running.is_unchanged))
    }

    /// An answer that is too large to be held, as it comes: by the execution that has begun, or by another.
    async fn stream(&self, asked: &Asked, begun: Option<Running>) -> Result<Answer, Fault> {
        let mut running = match begun {
            Some(running) => running,
            None => self.start(asked).await?,
        };
        let first = running.next().await.transpose()?.unwrap_or_default();
        Ok(Answer::Streamed(first, running))
    }

    /// Who shows this as `Authorization`.
    pub(crate) async fn user(&self, shown: &HeaderValue) -> Result<String, Fault> {
        let shown = shown.to_str().map_err(|_| AccessError::Unauthenticated)?;
        let user = self.access.authenticate(Credentials::from_header(shown)?).await?;
        Ok(user.name().to_owned())
    }

    /// By which tags are sealed: that of the database, so that all of its servers know them; where it can't be read, one of this process's own.
    pub(crate) async fn key(&self) -> [u8; 32] {
        let find = || async {
            let found = self.access.database_key().await.inspect_err(|error| {
                tracing::debug!(%error, "the database's key can't be read: tags are good for as long as this server runs");
            });
            found.ok().flatten().unwrap_or_else(own_key)
        };
        *self.key.get_or_init(find).await
    }

    async fn start(&self, asked: &Asked) -> Result<Running, Fault> {
        self.start_in(self.permit(asked).await?, asked).await
    }

    /// A place to execute in.
    async fn permit(&self, asked: &Asked) -> Result<OwnedSemaphorePermit, Fault> {
        let free = if asked.job.is_look() { self.places.free() } else { None };
        let settings = self.settings.now();
        let (waiting_max, patience) = (settings.waiting_max, settings.patience);
        match free {
            Some(permit) => Ok(permit),
            None if asked.job.is_look() => self.looks.place(LOOKS_WAITING_MAX, patience).await,
            None => self.places.place(waiting_max, patience).await,
        }
    }

    async fn start_in(&self, permit: OwnedSemaphorePermit, asked: &Asked) -> Result<Running, Fault> {
        let settings = self.settings.now();
        let patience = settings.patience;
        self.executions.fetch_add(1, Ordering::Relaxed);
        let least = Least {
            bytes_per_s: settings.reader_bytes_per_s_min,
            others: self.places.waiting(),
            window: pace::window(patience),
        };
        run::start(&self.pool, asked.job.clone(), permit, (patience, least), &self.knobs).await
    }

    /// An answer's bytes, one after the other; those that are copied for it are counted.
    pub(crate) fn in_one(&self, body: &Body) -> Bytes {
        body.in_one().unwrap_or_else(|| self.alive.count(body.beginning(body.len())))
    }

    /// More bytes of an answer are not held.
    pub(crate) fn held_bytes_max(&self) -> usize {
        self.settings.now().held_bytes_max
    }

    /// What it may take.
    pub(crate) fn settings(&self) -> &Live<Settings> {
        &self.settings
    }

    /// So many queries run at a time, each on a connection of its own.
    pub(crate) fn set_executions_max(&self, settings: &Settings) {
        self.pool.set_size(settings.connections());
        self.places.set_size(settings.executions_max);
    }

    /// How long to wait for a place to execute, and for a connection to the database.
    pub(crate) fn patience(&self) -> Duration {
        self.settings.now().patience
    }

    /// The least pace at which what comes must be taken while others wait.
    pub(crate) fn reader_bytes_per_s_min(&self) -> u64 {
        self.settings.now().reader_bytes_per_s_min
    }

    /// How full pieces of answers get: full ones, unless somebody turns these knobs. The first are held, so nobody waits for them.
    pub(crate) fn packing(&self) -> &Knobs {
        &self.knobs
    }

    /// How the database's SQL spells parameters.
    pub(crate) fn placeholder(&self) -> Placeholder {
        self.pool.placeholder()
    }

    /// Executions since the start, and answers that are kept, with their bytes.
    pub(crate) fn counts(&self) -> (usize, (usize, usize)) {
        (self.executions.load(Ordering::Relaxed), self.cache.size())
    }
}

/// A key of this process's own.
fn own_key() -> [u8; 32] {
    let mut key = [0; 32];
    getrandom::fill(&mut key).expect("the system has randomness");
    key
}

#[cfg(test)]
impl Service {
    pub(crate) fn is_full(&self) -> bool {
        self.places.is_full()
    }

    /// Takes all places to execute in.
    pub(crate) async fn hold_slots(&self) -> [tokio::sync::OwnedSemaphorePermit; 2] {
        [self.places.hold(self.settings.now().executions_max).await, self.looks.hold(LOOKS_MAX).await]
    }

    /// Requests that wait for an execution.
    pub(crate) fn waiters(&self) -> usize {
        self.cache.waiters()
    }
}

impl Asked {
    /// A named query. `user`: who asks, where the answer depends on it; else empty.
    pub(crate) fn named(
        query: &Arc<Query>,
        arguments: &Arguments,
        format: Format,
        user: &str,
        (placeholder, watches): (Placeholder, &Arc<Watches>),
    ) -> Asked {
        // None of them but the last has a line's end.
        let key = Key::from(format!("{}\n{format:?}\n{}\n{user}", query.name, arguments.canonical()));
        let (sql, parameters) = query.statement(arguments, user, placeholder);
        let (name, types, limits) = (query.name.clone(), query.types.clone(), query.limits);
        let page = query.keys().map(|keys| {
            let (query, arguments) = (Arc::clone(query), arguments.clone());
            let ending =
                Format::ALL.into_iter().find(|(_, known)| *known == format).map_or("json", |(ending, _)| ending);
            let url = move |key| format!("/q/{}.{ending}?{}", query.name, query.after(&arguments, key).canonical());
            NextPage { keys, url: Arc::new(url) }
        });
        let freshness = match query.freshness_statement(arguments, user, placeholder) {
            Some((sql, parameters)) => Told::Query(sql, parameters),
            None => Told::Tables(Arc::clone(watches), Looking::AtOnce),
        };
        let job = Job {
            name,
            sql,
            parameters,
            types,
            limits,
            form: Form::Rows(format),
            page,
            freshness,
            known: None,
            client_sql: None,
        };
        Asked { key, job, freshness: query.freshness.clone() }
    }

    /// All that an answer's content comes from but the database's: what was asked, by which SQL, written by which program.
    pub(crate) fn question(&self, key: [u8; 32]) -> Question {
        let Job { sql, types, limits, form, page, .. } = &self.job;
        let page = page.as_ref().map(|next| next.keys.page());
        let (version, asked) = (env!("CARGO_PKG_VERSION"), &self.key);
        let text = format!("{version}\n{asked}\n{sql}\n{types:?}\n{limits:?}\n{form:?}\n{page:?}");
        Question { text, key }
    }
}
