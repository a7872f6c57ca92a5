//! The main pool and an alternate one, with a budget and a chain of its own: what is assigned to it can't be washed out by the rest.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use crate::config::Config;
use crate::error::Error;
use crate::pool::Pool;

/// What can be assigned to the alternate pool, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// A table.
    Table(String),
    /// A named query.
    Query(String),
    /// A snapshot of a shared partition.
    Snapshot(String),
}

/// Two pools, or one.
///
/// ```
/// use headwater_bufferpool::{Config, Error, Named, Pools};
///
/// # fn main() -> Result<(), Error> {
/// let small = Config { budget_bytes: 4 << 20, floors: Default::default(), ..Config::default() };
/// let pools = Pools::new(&Config::default(), Some(&small))?;
/// let airports = Named::Query("airports".into());
/// assert!(pools.assign(airports.clone())?);
/// assert!(pools.is_alternate(&airports) && !pools.is_alternate(&Named::Query("flights".into())));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pools {
    main: Pool,
    alternate: Option<Pool>,
    assigned: RwLock<HashSet<Named>>,
}

impl Pools {
    /// Makes them. Each has options of its own, `skips` too.
    pub fn new(main: &Config, alternate: Option<&Config>) -> Result<Pools, Error> {
        let alternate = alternate.map(Pool::new).transpose()?;
        Ok(Pools { main: Pool::new(main)?, alternate, assigned: RwLock::default() })
    }

    /// The pool of whatever is not assigned to the other.
    pub fn main(&self) -> &Pool {
        &self.main
    }

    /// The other, if there is one.
    pub fn alternate(&self) -> Option<&Pool> {
        self.alternate.as_ref()
    }

    /// The pool that something goes to now; the main one too, while the alternate one has no byte.
    pub fn of(&self, named: &Named) -> &Pool {
        match &self.alternate {
            Some(alternate) if self.is_alternate(named) && alternate.budget_bytes() > 0 => alternate,
            _ => &self.main,
        }
    }

    /// Assigns something to the alternate pool; whether it was not yet. What the main one has of it goes there in its time.
    pub fn assign(&self, named: Named) -> Result<bool, Error> {
        if self.alternate.is_none() {
            return Err(Error::Config(format!("{named:?} can't be assigned to an alternate pool: there is none")));
        }
        Ok(self.assigned.write().unwrap_or_else(PoisonError::into_inner).insert(named))
    }

    /// Assigns something to the main pool again; whether it was not.
    pub fn unassign(&self, named: &Named) -> bool {
        self.assigned.write().unwrap_or_else(PoisonError::into_inner).remove(named)
    }

    /// Whether something is assigned to the alternate pool.
    pub fn is_alternate(&self, named: &Named) -> bool {
        self.assigned.read().unwrap_or_else(PoisonError::into_inner).contains(named)
    }
}
