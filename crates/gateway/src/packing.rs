//! Answers, compressed: those that are kept in each coding once, and others as they come; at the level that [`levels`](crate::levels) finds best
//! for the client's link, or at a fixed one. It is not the packer of the glossary ([`headwater_protocol::packer`]), which decides how much goes
//! at a time.

use std::pin::Pin;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use headwater_bufferpool::Pool;
use headwater_knobs::Live;
use serde::{Deserialize, Deserializer};
use tokio::sync::Mutex;

use crate::alive::Alive;
use crate::coding::{Coding, Encoder};
use crate::held::{Body, Stored};
use crate::levels::{Choice, LEVELS, Levels, Sending, There};
use crate::service::Settings;

/// Smaller answers are sent as they are: little is won.
const BYTES_MIN: usize = 1_000;
/// Compressing fewer bytes is done at once, more on a thread for it. Fewer say nothing of how fast a level is.
const AT_ONCE_BYTES: usize = 32 << 10;
/// All levels are measured by so many bytes of an answer.
const SAMPLE_BYTES: usize = 128 << 10;
/// What base64 leaves of a link.
const BASE64: f64 = 0.75;

/// How hard answers are compressed, for clients that take them compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As brings each answer to its client soonest, by what was measured of the processor and of the client's link.
    #[default]
    Auto,
    /// At this level, from 1 (fastest) to 9 (smallest); 0: not at all.
    Fixed(u32),
}

impl<'de> Deserialize<'de> for Compression {
    /// `"auto"`, or a level from 0 to 9.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Compression, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Level(i64),
            Word(String),
        }
        let (level, given) = match Given::deserialize(deserializer)? {
            Given::Word(word) if word == "auto" => return Ok(Compression::Auto),
            Given::Level(level) => (u32::try_from(level).ok().filter(|level| *level <= 9), level.to_string()),
            Given::Word(word) => (None, format!("{word:?}")),
        };
        let expected = || serde::de::Error::custom(format!("compression is {given}, expected \"auto\" or 0 to 9"));
        level.map(Compression::Fixed).ok_or_else(expected)
    }
}

/// How fast the client of a request takes bytes, where its connection was measured: an extension of the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Link {
    /// Bytes a second.
    pub(crate) bytes_per_s: f64,
}

/// In which form an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) coding: Coding,
    pub(crate) level: u32,
}

impl Form {
    pub(crate) const PLAIN: Form = Form { coding: Coding::Identity, level: 0 };

    /// Other bytes have another tag (RFC 9110, 8.8.3.3).
    pub(crate) fn tag(self, tag: &str) -> String {
        match (self.coding.name(), tag.strip_suffix('"')) {
            (Some(name), Some(tag)) => format!("{tag}-{name}{}\"", self.level),
            _ => tag.to_owned(),
        }
    }
}

/// An answer in each coding that somebody has wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coded {
    forms: Arc<[Mutex<Option<Packed>>; Coding::PACKED.len()]>,
    /// Where they lie; `None`: in memory of their own.
    pool: Option<Pool>,
}

#[derive(Debug)]
struct Packed {
    level: u32,
    /// How large it is, as a share of what it was.
    share: f64,
    held: Held,
}

#[derive(Debug)]
enum Held {
    /// It would be no smaller.
    Nowhere,
    Own(Bytes),
    Stored(Stored),
}

impl Coded {
    /// Forms that lie in this pool.
    pub(crate) fn in_pool(pool: Pool) -> Coded {
        Coded { pool: Some(pool), ..Coded::default() }
    }

    /// What was compressed, held as these are, and as it is to be sent; not held where there is no room for it.
    fn hold(&self, bytes: Bytes) -> (Option<Held>, Body) {
        let Some(pool) = &self.pool else { return (Some(Held::Own(bytes.clone())), bytes.into()) };
        match Stored::put(pool, &bytes) {
            Some((stored, body)) => (Some(Held::Stored(stored)), body),
            None => (None, bytes.into()),
        }
    }
}

impl Packed {
    /// What is to be sent; `None`: it is gone, or it is better sent as it was.
    fn body(&self) -> Option<Body> {
        match &self.held {
            Held::Nowhere => None,
            Held::Own(bytes) => Some(bytes.clone().into()),
            Held::Stored(stored) => stored.get(),
        }
    }
}

/// Chooses levels, and learns from what compressing takes.
#[derive(Debug)]
pub(crate) struct Packer {
    settings: Live<Settings>,
    levels: Lock<Levels>,
    alive: Alive,
}

type Pieces = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

impl Packer {
    pub(crate) fn new(settings: Live<Settings>) -> Packer {
        Packer { settings, levels: Lock::default(), alive: Alive::default() }
    }

    /// The same; what is made for answers that are kept is counted there.
    pub(crate) fn counted(self, alive: Alive) -> Packer {
        Packer { alive, ..self }
    }

    fn levels(&self) -> MutexGuard<'_, Levels> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of an answer that is kept, in the form in which they are to go.
    pub(crate) async fn of(
        self: &Arc<Self>,
        coded: &Coded,
        body: &Body,
        wanted: Coding,
        link: Option<f64>,
    ) -> (Body, Form) {
        let plain = (body.clone(), Form::PLAIN);
        let Some(form) = wanted.place().filter(|_| body.len() >= BYTES_MIN).map(|place| &coded.forms[place]) else {
            return plain;
        };
        // Who wants the same waits until it is there.
        let mut form = form.lock().await;
        let packed = form.as_ref().and_then(Packed::body);
        if packed.is_none() && matches!(&*form, Some(Packed { held: Held::Stored(_), .. })) {
            *form = None; // it has gone from the pool
        }
        let there = form.as_ref().map(|packed| There { level: packed.level, share: packed.share });
        match self.choose(wanted, body, link, Sending::Whole, there) {
            Choice::Plain => plain,
            Choice::There => {
                let level = form.as_ref().map_or(0, |packed| packed.level);
                packed.map_or(plain, |body| (body, Form { coding: wanted, level }))
            }
            Choice::Level(level) => {
                let Some(packed) = self.pack(wanted, level, body.clone()).await else {
                    *form = Some(Packed { level, share: 1.0, held: Held::Nowhere });
                    return plain;
                };
                let share = packed.len() as f64 / body.len() as f64;
                let (held, body) = coded.hold(packed);
                *form = held.map(|held| Packed { level, share, held });
                (body, Form { coding: wanted, level })
            }
        }
    }

    /// The form in which an answer goes that begins so, and the rest of which is still to come.
    pub(crate) fn form_of(self: &Arc<Self>, beginning: &Bytes, wanted: Coding, link: Option<f64>) -> Form {
        match self.choose(wanted, &beginning.clone().into(), link, Sending::AsItComes, None) {
            Choice::Level(level) if wanted != Coding::Identity => Form { coding: wanted, level },
            _ => Form::PLAIN,
        }
    }

    /// The level of zlib within base64; 0: as it is.
    pub(crate) fn zlib_level(self: &Arc<Self>, beginning: &Bytes, link: Option<f64>, sending: Sending) -> u32 {
        let link = self.levels().link(link) * BASE64;
        match self.choose_at(Coding::Gzip, &beginning.clone().into(), link, sending, None) {
            Choice::Level(level) => level,
            Choice::Plain | Choice::There => 0,
        }
    }

    fn choose(
        self: &Arc<Self>,
        coding: Coding,
        beginning: &Body,
        link: Option<f64>,
        sending: Sending,
        there: Option<There>,
    ) -> Choice {
        let link = self.levels().link(link);
        self.choose_at(coding, beginning, link, sending, there)
    }

    fn choose_at(
        self: &Arc<Self>,
        coding: Coding,
        beginning: &Body,
        link: f64,
        sending: Sending,
        there: Option<There>,
    ) -> Choice {
        match self.settings.now().compression {
            Compression::Fixed(0) => Choice::Plain,
            Compression::Fixed(level) => there.map_or(Choice::Level(level), |_| Choice::There),
            Compression::Auto => {
                let choice = self.levels().choose(coding, link, sending, there);
                if beginning.len() >= AT_ONCE_BYTES && self.levels().is_due(coding, beginning.len()) {
                    self.measure(coding, beginning.beginning(SAMPLE_BYTES));
                }
                choice
            }
        }
    }

    /// Measures all levels, beside.
    fn measure(self: &Arc<Self>, coding: Coding, sample: Vec<u8>) {
        let packer = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            for level in LEVELS {
                packer.encode(coding, level, &sample);
            }
        });
    }

    /// Compresses, and notes what it took.
    fn encode(&self, coding: Coding, level: u32, body: &[u8]) -> Option<Bytes> {
        let began = Instant::now();
        let packed = coding.encode(level, body).ok()?;
        if body.len() >= AT_ONCE_BYTES {
            self.levels().note(coding, level, (body.len(), packed.len()), began.elapsed());
        }
        Some(packed).filter(|packed| packed.len() < body.len()).map(|packed| self.alive.count(packed))
    }

    /// `None`: it would be no smaller.
    async fn pack(self: &Arc<Self>, coding: Coding, level: u32, body: Body) -> Option<Bytes> {
        let is_short = body.len() < AT_ONCE_BYTES;
        let whole = move || body.in_one().unwrap_or_else(|| body.beginning(body.len()).into());
        let packer = Arc::clone(self);
        let packing = move || packer.encode(coding, level, &whole());
        if is_short { packing() } else { tokio::task::spawn_blocking(packing).await.ok().flatten() }
    }

    /// Pieces in this form, compressed as they come. Where one is an error, that is the end, and no end of what was compressed.
    pub(crate) fn stream(
        self: &Arc<Self>,
        pieces: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
        form: Form,
    ) -> std::io::Result<Pieces> {
        if form == Form::PLAIN {
            return Ok(pieces.boxed());
        }
        let packing = Packing { packer: Arc::clone(self), form, pieces: pieces.boxed() };
        let encoder = Encoder::new(form.coding, form.level)?;
        Ok(stream::try_unfold((packing, Some(encoder)), |(mut packing, encoder)| async move {
            let Some(encoder) = encoder else { return Ok(None) };
            let (bytes, encoder) = packing.next(encoder).await?;
            Ok(Some((bytes, (packing, encoder))))
        })
        .boxed())
    }
}

/// An answer that is compressed as it comes.
struct Packing {
    packer: Arc<Packer>,
    form: Form,
    pieces: Pieces,
}

impl Packing {
    /// What comes out next; without an encoder it was the last.
    async fn next(&mut self, mut encoder: Encoder) -> std::io::Result<(Bytes, Option<Encoder>)> {
        loop {
            let Some(piece) = self.pieces.next().await.transpose()? else {
                return Ok((Bytes::from(encoder.finish()?), None));
            };
            let (measuring, Form { coding, level }) = (Arc::clone(&self.packer), self.form);
            let packing = tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                encoder.write(&piece)?;
                let packed = encoder.take();
                measuring.levels().note(coding, level, (piece.len(), packed.len()), began.elapsed());
                Ok::<_, std::io::Error>((packed, encoder))
            });
            let (packed, more) = packing.await.map_err(std::io::Error::other)??;
            if !packed.is_empty() {
                return Ok((Bytes::from(packed), Some(more)));
            }
            encoder = more;
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn body() -> Bytes {
        Bytes::from("row of some data\r\n".repeat(10_000))
    }

    fn packer(compression: Compression) -> Packer {
        Packer::new(Settings { compression, ..Settings::default() }.into())
    }

    /// Of a client on this link: the form and how many bytes go.
    async fn sent(packer: &Arc<Packer>, coded: &Coded, link: f64) -> (Form, usize) {
        let (bytes, form) = packer.of(coded, &body().into(), Coding::Gzip, Some(link)).await;
        (form, bytes.len())
    }

    #[tokio::test]
    async fn a_fixed_level_is_kept_whatever_the_link() {
        for (level, coding) in [(0, Coding::Identity), (1, Coding::Gzip), (5, Coding::Gzip), (9, Coding::Gzip)] {
            let (packer, coded) = (Arc::new(packer(Compression::Fixed(level))), Coded::default());
            for link in [1.0, 1e12] {
                assert_eq!(sent(&packer, &coded, link).await.0, Form { coding, level });
                assert_eq!(packer.form_of(&body(), Coding::Gzip, Some(link)), Form { coding, level });
                assert_eq!(packer.zlib_level(&body(), Some(link), Sending::Whole), level);
            }
        }
    }

    /// What is measured here is real; the links leave no doubt.
    #[tokio::test]
    async fn a_slow_link_gets_fewer_bytes_and_a_fast_one_what_is_there() {
        let (packer, coded) = (Arc::new(packer(Compression::Auto)), Coded::default());
        for level in LEVELS {
            packer.encode(Coding::Gzip, level, &body());
        }
        assert_eq!(sent(&packer, &coded, 1e12).await, (Form::PLAIN, body().len()));
        let (slow, bytes) = sent(&packer, &coded, 1.0).await;
        assert!(slow.coding == Coding::Gzip && slow.level > 1 && bytes < body().len() / 10, "{slow:?}");
        assert_eq!(sent(&packer, &coded, 1e12).await, (slow, bytes), "it costs nothing any more");
        assert_eq!(packer.form_of(&body(), Coding::Gzip, Some(1e12)), Form::PLAIN);
        assert!(packer.form_of(&body(), Coding::Gzip, Some(1.0)).level > 1);
    }

    #[tokio::test]
    async fn what_is_small_or_gets_no_smaller_goes_as_it_is() {
        let packer = Arc::new(packer(Compression::Fixed(5)));
        let noise: Vec<u8> = (0..2_000_u32).flat_map(|number| Sha256::digest(number.to_be_bytes())).collect();
        for body in [Bytes::from_static(b"id\r\n1\r\n"), Bytes::from(noise)] {
            let (sent, form) = packer.of(&Coded::default(), &body.clone().into(), Coding::Zstd, None).await;
            assert!(sent.in_one() == Some(body) && form == Form::PLAIN);
        }
    }

    #[tokio::test]
    async fn an_answer_that_fails_on_the_way_is_not_ended_in_its_coding_either() {
        let packer = Arc::new(packer(Compression::Auto));
        for fails in [false, true] {
            let broken = fails.then(|| Err(std::io::Error::other("the query failed")));
            let pieces = [Ok(body()), Ok(body())].into_iter().chain(broken);
            let form = Form { coding: Coding::Zstd, level: 1 };
            let sent: Vec<_> = packer.stream(stream::iter(pieces), form).expect("a coder").collect().await;
            assert_eq!(sent.last().is_some_and(Result::is_err), fails);
            let sent: Vec<u8> = sent.into_iter().filter_map(Result::ok).flatten().collect();
            let plain = zstd::decode_all(&*sent);
            assert_eq!(plain.is_ok_and(|plain| plain == [body(), body()].concat()), !fails);
        }
    }

    #[test]
    fn a_level_is_auto_or_a_digit() {
        let read = |text: &str| serde_json::from_str::<Compression>(text).map_err(|error| error.to_string());
        assert_eq!(read("\"auto\""), Ok(Compression::Auto));
        assert_eq!((read("0"), read("9")), (Ok(Compression::Fixed(0)), Ok(Compression::Fixed(9))));
        for wrong in ["10", "-1", "\"best\""] {
            let said = read(wrong).expect_err(wrong);
            assert!(said.contains(&format!("compression is {wrong}, expected \"auto\" or 0 to 9")), "{said}");
        }
    }
}
