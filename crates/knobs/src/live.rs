//! A value that is read at each use, and may be another the next time.

use std::sync::{Arc, PoisonError, RwLock};

/// Options that may change while they are used. Clones are of the same.
#[derive(Debug)]
pub struct Live<T>(Arc<RwLock<Arc<T>>>);

impl<T> Live<T> {
    /// It begins as this.
    pub fn new(value: T) -> Live<T> {
        Live(Arc::new(RwLock::new(Arc::new(value))))
    }

    /// As it is now. Whoever keeps it keeps what was.
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on it is this.
    pub fn put(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Live<T> {
        Live(Arc::clone(&self.0))
    }
}

impl<T> From<T> for Live<T> {
    fn from(value: T) -> Live<T> {
        Live::new(value)
    }
}
