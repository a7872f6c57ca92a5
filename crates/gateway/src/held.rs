//! Bytes of answers: in blocks of the buffer pool while they are kept, and of their own where there they find no room.
//!
//! Whoever sends a kept answer pins its blocks, all who send the same one together, so that none of it goes on the way.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use headwater_bufferpool::{Class, Error, Handle, Key, Object, Pool, Session};

/// Bytes in memory, as long as this is there. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Own(Bytes),
    Pinned(Arc<Pinned>),
}

/// Blocks that stay.
#[derive(Debug)]
pub(crate) struct Pinned {
    blocks: Vec<Handle>,
    bytes: usize,
}

/// Bytes that lie in the pool until others need the room.
#[derive(Debug)]
pub(crate) struct Stored {
    pool: Pool,
    object: Object,
    bytes: usize,
    /// Those who send it now have it pinned together.
    pinned: Mutex<Weak<Pinned>>,
}

/// One of a body's blocks.
struct Piece {
    pinned: Arc<Pinned>,
    number: usize,
}

impl Stored {
    /// Puts bytes there, and pins them; `None`: they find no room.
    pub(crate) fn put(pool: &Pool, bytes: &[u8]) -> Option<(Stored, Body)> {
        let stored = Stored { pool: pool.clone(), object: pool.object(), bytes: bytes.len(), pinned: Mutex::default() };
        let mut chunks = bytes.chunks(pool.block_bytes());
        let body = stored.pin(|session, key| {
            let chunk = chunks.next().unwrap_or_default();
            session.load(key, || Ok::<_, Error>(chunk.to_vec())).map(Some)
        })?;
        Some((stored, body))
    }

    /// Pins them; `None`: they are gone.
    pub(crate) fn get(&self) -> Option<Body> {
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        match pinned {
            Some(pinned) => Some(Body::Pinned(pinned)),
            None => self.pin(Session::find),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn pin(&self, mut block: impl FnMut(&Session, Key) -> Result<Option<Handle>, Error>) -> Option<Body> {
        if self.bytes == 0 {
            return Some(Body::Own(Bytes::new()));
        }
        let blocks = self.blocks();
        let session = self.pool.session("an answer", Class::Answer, u32::try_from(blocks).ok()?).ok()?;
        let keys = (0..blocks).map(|number| Key { object: self.object, number });
        let blocks: Option<Vec<Handle>> = keys.map(|key| block(&session, key).ok().flatten()).collect();
        let pinned = Arc::new(Pinned { blocks: blocks?, bytes: self.bytes });
        *self.pinned.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&pinned);
        Some(Body::Pinned(pinned))
    }

    fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.pool.block_bytes()) as u64
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        for number in 0..self.blocks() {
            self.pool.remove(Key { object: self.object, number });
        }
    }
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        match self {
            Body::Own(bytes) => bytes.len(),
            Body::Pinned(pinned) => pinned.bytes,
        }
    }

    /// All of it, block by block.
    pub(crate) fn pieces(&self) -> impl ExactSizeIterator<Item = Bytes> + Send + use<> {
        let body = self.clone();
        let pieces = match &body {
            Body::Own(_) => 1,
            Body::Pinned(pinned) => pinned.blocks.len(),
        };
        (0..pieces).map(move |number| match &body {
            Body::Own(bytes) => bytes.clone(),
            Body::Pinned(pinned) => Bytes::from_owner(Piece { pinned: Arc::clone(pinned), number }),
        })
    }

    /// All of it in one; `None`: it lies in several blocks.
    pub(crate) fn in_one(&self) -> Option<Bytes> {
        let mut pieces = self.pieces();
        let first = pieces.next();
        if pieces.len() == 0 { first } else { None }
    }

    /// So many of its first bytes, copied where they lie in several blocks.
    pub(crate) fn beginning(&self, bytes_max: usize) -> Vec<u8> {
        let mut beginning = Vec::with_capacity(bytes_max.min(self.len()));
        for piece in self.pieces() {
            let rest = bytes_max - beginning.len();
            beginning.extend_from_slice(&piece[..piece.len().min(rest)]);
            if beginning.len() == bytes_max {
                break;
            }
        }
        beginning
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::Own(bytes)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.pinned.blocks[self.number]
    }
}

/// Pools of so many bytes, for tests.
#[cfg(test)]
pub(crate) fn pools(budget_bytes: u64) -> Arc<headwater_bufferpool::Pools> {
    use headwater_bufferpool::{Config, Floors, Pools};
    let config = Config { budget_bytes, floors: Floors::default(), ..Config::default() };
    Arc::new(Pools::new(&config, None).expect("a pool"))
}

#[cfg(test)]
mod tests {
    use headwater_bufferpool::{Config, Floors};

    use super::*;

    fn pool(blocks: u64) -> Pool {
        let config =
            Config { block_bytes: 512, budget_bytes: 512 * blocks, floors: Floors::default(), ..Config::default() };
        Pool::new(&config).expect("a pool")
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| at as u8).collect()
    }

    #[test]
    fn what_is_stored_comes_back_in_its_pieces() {
        let pool = pool(8);
        for length in [0, 1, 511, 512, 513, 2_000] {
            let (stored, body) = Stored::put(&pool, &bytes(length)).expect("room");
            drop(body);
            let body = stored.get().expect("it is there");
            assert_eq!((body.len(), body.pieces().flatten().collect::<Vec<u8>>()), (length, bytes(length)));
            assert_eq!((body.in_one().is_some(), body.beginning(600)), (length <= 512, bytes(length.min(600))));
            drop((stored, body));
            assert_eq!((pool.blocks(), pool.used_bytes()), (0, 0), "of {length}");
        }
    }

    #[test]
    fn all_who_send_an_answer_pin_it_once_and_what_nobody_sends_may_go() {
        let pool = pool(8);
        let (first, sent) = Stored::put(&pool, &bytes(2_048)).expect("room");
        let others: Vec<Body> = (0..100).map(|_| first.get().expect("it is there")).collect();
        let (second, _) = Stored::put(&pool, &bytes(2_048)).expect("room");
        assert!(Stored::put(&pool, &bytes(2_049)).is_none(), "four blocks are pinned");
        assert!(Stored::put(&pool, &bytes(2_048)).is_some() && second.get().is_none(), "it was nobody's");
        drop((sent, others));
        assert!(first.get().is_some(), "nobody has needed its room yet");
        let piece = first.get().and_then(|body| body.pieces().last()).expect("a piece");
        drop(first);
        assert_eq!(piece, bytes(2_048)[1_536..], "who has a piece of it has it still");
    }
}
