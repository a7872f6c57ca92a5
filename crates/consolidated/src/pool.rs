//! Connections, kept and counted.
//!
//! A pool holds at most `size` connections, which can be changed while it is used. One is checked out for as long as a worker needs it; whoever finds none free waits, at
//! most as long as it says. A connection keeps its prepared statements while it lives. When it comes back with a transaction open,
//! that is rolled back; one that holds much memory is closed; when it is broken, it is dropped and the next checkout makes another, which
//! is counted as a reconnection. One that the database has closed meanwhile (a restart, its limit of idle sessions) is not handed out.
//!
//! There are two kinds: [`Pool`] of connections that sync, and [`QueryPool`] of those that run queries.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headwater_model::sql::Syntax;

use crate::results::{Placeholder, QueryBackend, QueryConnection};
use crate::{Backend, Connection, Error};

/// After so long without use it is looked whether a connection is there still.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(50);

/// A pool of connections of one consolidated database. Clones share it.
pub struct Pool<C: QueryConnection + ?Sized = dyn Connection>(Arc<Shared<C>>);

/// A pool of connections that run queries.
pub type QueryPool = Pool<dyn QueryConnection>;

type Connect<C> = Box<dyn Fn() -> Result<Box<C>, Error> + Send + Sync>;

struct Shared<C: QueryConnection + ?Sized> {
    connect: Connect<C>,
    speaks: Speaks,
    state: Mutex<State<C>>,
    freed: Condvar,
}

/// What a database says of itself without a connection.
struct Speaks {
    address: String,
    placeholder: Placeholder,
    syntax: Syntax,
}

impl Speaks {
    fn of(backend: &(impl QueryBackend + ?Sized)) -> Speaks {
        Speaks { address: backend.address(), placeholder: backend.placeholder(), syntax: backend.syntax() }
    }
}

struct State<C: ?Sized> {
    size: usize,
    idle: Vec<Idle<C>>,
    /// Connections that exist or are being made, idle ones among them.
    open: usize,
    /// Connections lost and not replaced yet.
    lost: usize,
    stats: PoolStats,
}

/// A connection that nobody uses.
struct Idle<C: ?Sized> {
    connection: Box<C>,
    since: Instant,
}

/// What a pool has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections that exist.
    pub open: usize,
    /// Of them, those that nobody uses.
    pub idle: usize,
    /// Checkouts that found none free and had to wait.
    pub waits: u64,
    /// Checkouts that waited in vain.
    pub timeouts: u64,
    /// Connections made in place of broken ones.
    pub reconnections: u64,
}

impl Pool {
    /// A pool of at most `size` connections (at least one). None is made before the first checkout.
    pub fn new(backend: Arc<dyn Backend>, size: usize) -> Pool {
        let speaks = Speaks::of(&*backend);
        Pool::of(Box::new(move || backend.connect()), speaks, size)
    }
}

impl QueryPool {
    /// The same of connections that run queries.
    pub fn for_queries(backend: Arc<dyn QueryBackend>, size: usize) -> QueryPool {
        let speaks = Speaks::of(&*backend);
        Pool::of(Box::new(move || backend.connect_for_queries()), speaks, size)
    }

    /// The same for SQL that clients send ([`QueryBackend::connect_for_client_sql`]).
    pub fn for_client_sql(backend: Arc<dyn QueryBackend>, size: usize, value_bytes_max: u64) -> QueryPool {
        let speaks = Speaks::of(&*backend);
        let connect = move || backend.connect_for_client_sql(value_bytes_max);
        Pool::of(Box::new(connect), speaks, size)
    }
}

impl<C: QueryConnection + ?Sized> Pool<C> {
    fn of(connect: Connect<C>, speaks: Speaks, size: usize) -> Pool<C> {
        let state = State { size: size.max(1), idle: Vec::new(), open: 0, lost: 0, stats: PoolStats::default() };
        Pool(Arc::new(Shared { connect, speaks, state: Mutex::new(state), freed: Condvar::new() }))
    }

    /// How the database's SQL spells a parameter of a query.
    pub fn placeholder(&self) -> Placeholder {
        self.0.speaks.placeholder
    }

    /// Whose SQL the database takes.
    pub fn syntax(&self) -> Syntax {
        self.0.speaks.syntax
    }

    /// From now on it holds so many at most (at least one). Connections beyond that which nobody uses are closed; those in use are closed as they
    /// come back.
    pub fn set_size(&self, size: usize) {
        let mut state = self.0.lock();
        state.size = size.max(1);
        let beyond = state.open.saturating_sub(state.size).min(state.idle.len());
        let kept = state.idle.len() - beyond;
        let closed = state.idle.split_off(kept);
        state.open -= closed.len();
        drop(state);
        drop(closed);
        self.0.freed.notify_all();
    }

    /// A connection that is none of the pool's.
    pub fn connect_beside(&self) -> Result<Box<C>, Error> {
        (self.0.connect)()
    }

    /// A connection for the caller's use alone. Waits at most `patience` for one; then [`Error::Retry`].
    pub fn checkout(&self, patience: Duration) -> Result<Pooled<C>, Error> {
        let deadline = Instant::now() + patience;
        let mut state = self.0.lock();
        let mut waited = false;
        loop {
            state = match self.take(state) {
                Ok(taken) => return taken,
                Err(state) => state,
            };
            if !waited {
                waited = true;
                state.stats.waits += 1;
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                state.stats.timeouts += 1;
                let detail = format!("all {} connections were in use for {patience:?}", state.size);
                return Err(Error::Retry { detail, broken: false });
            }
            state = self.0.freed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A connection for the caller's use alone, if one is free at once or there is room for one more.
    pub fn checkout_free(&self) -> Option<Result<Pooled<C>, Error>> {
        self.take(self.0.lock()).ok()
    }

    fn take<'s>(
        &'s self,
        mut state: MutexGuard<'s, State<C>>,
    ) -> Result<Result<Pooled<C>, Error>, MutexGuard<'s, State<C>>> {
        while let Some(Idle { mut connection, since }) = state.idle.pop() {
            drop(state);
            if since.elapsed() < LOOKED_AT_AFTER || !connection.is_gone() {
                return Ok(Ok(Pooled { connection: Some(connection), broken: false, pool: Arc::clone(&self.0) }));
            }
            drop(connection);
            state = self.0.lock();
            state.open -= 1;
            state.lost += 1;
        }
        if state.open >= state.size {
            return Err(state);
        }
        state.open += 1;
        drop(state);
        Ok(self.connect())
    }

    /// What the pool has seen.
    pub fn stats(&self) -> PoolStats {
        let state = self.0.lock();
        PoolStats { open: state.open, idle: state.idle.len(), ..state.stats }
    }

    /// Closes the connections that nobody uses.
    pub fn close_idle(&self) {
        let mut state = self.0.lock();
        let idle = std::mem::take(&mut state.idle);
        state.open -= idle.len();
        drop(state);
        drop(idle);
    }

    /// Makes the connection whose place in `open` is taken.
    fn connect(&self) -> Result<Pooled<C>, Error> {
        let made = self.connect_beside();
        let mut state = self.0.lock();
        match made {
            Ok(connection) => {
                if state.lost > 0 {
                    state.lost -= 1;
                    state.stats.reconnections += 1;
                }
                Ok(Pooled { connection: Some(connection), broken: false, pool: Arc::clone(&self.0) })
            }
            Err(error) => {
                state.open -= 1;
                self.0.freed.notify_one();
                Err(error)
            }
        }
    }
}

impl<C: QueryConnection + ?Sized> Clone for Pool<C> {
    fn clone(&self) -> Pool<C> {
        Pool(Arc::clone(&self.0))
    }
}

impl<C: QueryConnection + ?Sized> std::fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("address", &self.0.speaks.address).field("stats", &self.stats()).finish()
    }
}

impl<C: QueryConnection + ?Sized> Shared<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection checked out; dropped, it goes back.
pub struct Pooled<C: QueryConnection + ?Sized = dyn Connection> {
    connection: Option<Box<C>>,
    broken: bool,
    pool: Arc<Shared<C>>,
}

impl<C: QueryConnection + ?Sized> Pooled<C> {
    /// Says that the connection is of no more use (see [`Error::is_broken`]); another takes its place.
    pub fn mark_broken(&mut self) {
        self.broken = true;
    }

    /// Passes a result through, and marks the connection where its error says that it is broken.
    pub fn note<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.broken |= result.as_ref().is_err_and(Error::is_broken);
        result
    }
}

impl<C: QueryConnection + ?Sized> Deref for Pooled<C> {
    type Target = C;

    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("it is there until the drop")
    }
}

impl<C: QueryConnection + ?Sized> DerefMut for Pooled<C> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("it is there until the drop")
    }
}

impl<C: QueryConnection + ?Sized> Drop for Pooled<C> {
    fn drop(&mut self) {
        // A panic may have left anything behind.
        let usable = !self.broken && !std::thread::panicking();
        let worn = usable && self.connection.as_ref().is_some_and(|connection| connection.is_worn());
        let connection = self.connection.take().filter(|_| usable && !worn);
        // The rollback talks to the database: not under the lock.
        let connection = connection.and_then(|mut connection| connection.rollback().is_ok().then_some(connection));
        let mut state = self.pool.lock();
        let is_beyond = state.open > state.size;
        let mut closed = None;
        match connection {
            Some(connection) if is_beyond => {
                state.open -= 1;
                closed = Some(connection);
            }
            Some(connection) => state.idle.push(Idle { connection, since: Instant::now() }),
            None => {
                state.open -= 1;
                state.lost += usize::from(!worn && !is_beyond);
            }
        }
        drop(state);
        drop(closed);
        self.pool.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
