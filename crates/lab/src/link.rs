//! The link between a client and the server: how many bits go through in a second, how long each is under way, and how many are lost.
//!
//! ```text
//! from --read--> bucket (waits until there are tokens) --under way--> delay --write--> to
//! ```
//!
//! A stream goes through it piece by piece, each way by itself. A piece arrives when its last byte would. The bucket keeps what was not
//! used for [`SAVED`] and no longer: that evens out what timers are late, and bounds what can go through at once.
//!
//! A stream loses nothing; what a lost packet costs it is time. Each packet of a piece is lost by chance. One with three more behind it in its
//! piece is sent again after a round trip (fast retransmit, RFC 5681, 3.2); any other when the sender's timer ends, after a round trip and
//! 200 ms, Linux's least, and twice as long each further time (RFC 6298, 5.5). What is behind it in the stream waits. The packet that makes a connection
//! is sent again after a second (RFC 6298, 2.1).
//!
//! *Caveats.* Losses don't make the sender slower for a while, as those of a real network would: its congestion window is not modelled. What the
//! kernel's buffers of the connection hold has left the server, though the client has not got it yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::random::{Random, stream};
use crate::value::{Value, integer};

/// The slowest link: on a slower one servers would call it silence.
const BITS_MIN: u64 = 300;
/// The fastest link but that which is none.
const BITS_MAX: i64 = 100_000_000_000;
/// The longest way in one direction, in milliseconds: to a satellite and back, twice.
const DELAY_MAX: i64 = 2_000;

/// The most that is lost: of a thousand packets.
const LOSS_MAX: i64 = 500;
/// Bytes of a packet; no more than a piece, where that is less.
const PACKET: usize = 1_460;
/// How many packets behind a lost one tell the sender that it is.
const TELLING: usize = 3;
/// The least time after which the sender's timer ends, beside the round trip.
const TIMER_MIN: Duration = Duration::from_millis(200);
/// How often it is doubled at most.
const DOUBLED_MAX: u32 = 10;
/// When a connection is asked for again.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

/// How long the bucket keeps what was not used.
pub const SAVED: Duration = Duration::from_millis(10);
/// Bytes of a piece, at most.
const PIECE_MAX: usize = 16 * 1024;
/// And on the slowest link.
const PIECE_MIN: usize = 64;
/// Pieces under way: with more, the sender waits.
const UNDER_WAY_MAX: usize = 256;

/// A client's link, the same both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Bits a second; 0: as many as the machine can.
    pub bits_per_s: u64,
    /// How long a byte is under way.
    pub delay: Duration,
    /// Of a thousand packets, how many are lost by chance, each way.
    pub loss_permille: u64,
}

/// Connections over links, so far: each draws its own losses.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// A connection, with or without a link before it.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Link {
    /// From the parameters that scenarios have for it; an error has the name of the one that is not possible, and why.
    pub(crate) fn of(parameters: &[(String, Value)]) -> Result<Link, (&'static str, String)> {
        let bits_per_s = integer(parameters, "link_bits_per_s", 0..=BITS_MAX)? as u64;
        if (1..BITS_MIN).contains(&bits_per_s) {
            let why = format!("have a link of {bits_per_s} bits a second, only {BITS_MIN} and more, or 0");
            return Err(("link_bits_per_s", why));
        }
        let delay = integer(parameters, "link_delay_ms", 0..=DELAY_MAX)? as u64;
        let loss_permille = integer(parameters, "link_loss_permille", 0..=LOSS_MAX)? as u64;
        Ok(Link { bits_per_s, delay: Duration::from_millis(delay), loss_permille })
    }

    /// Connects to a server (host and port) over it.
    pub(crate) async fn connect(self, place: &str) -> std::io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(place).await?;
        stream.set_nodelay(true)?;
        if self.is_plain() {
            return Ok(Box::new(stream));
        }
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        // A connection is made by one packet there and one back.
        let asked_again = self.lost_times(&mut Random::derived(number, &[stream::LOSSES, 0]));
        let waited = (0..asked_again).map(|time| CONNECT_AGAIN * 2_u32.pow(time)).sum::<Duration>();
        sleep(2 * self.delay + waited).await;
        Ok(Box::new(self.over_numbered(stream, number)))
    }

    /// Whether it is as if there were none.
    pub fn is_plain(self) -> bool {
        self == Link::default()
    }

    /// The client's end of a link to this stream. Whichever end is closed, the other is too, once what is under way to it has arrived.
    pub fn over(self, stream: impl AsyncRead + AsyncWrite + Send + 'static) -> DuplexStream {
        self.over_numbered(stream, CONNECTIONS.fetch_add(1, Ordering::Relaxed))
    }

    fn over_numbered(self, stream: impl AsyncRead + AsyncWrite + Send + 'static, number: u64) -> DuplexStream {
        let losses = |way| Random::derived(number, &[stream::LOSSES, way]);
        let (up, down) = (losses(1), losses(2));
        let (end, near) = duplex(PIECE_MAX);
        tokio::spawn(async move {
            let ((near_in, near_out), (far_in, far_out)) = (split(near), split(stream));
            tokio::select! {
                () = self.carry(near_in, far_out, up) => {}
                () = self.carry(far_in, near_out, down) => {}
            }
        });
        end
    }

    /// One way, until there is no more to read or nobody to write to.
    async fn carry(self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut losses: Random) {
        let (sender, mut under_way) = mpsc::channel(UNDER_WAY_MAX);
        let send = async move {
            let mut through = Instant::now();
            loop {
                let mut piece = vec![0; self.piece()];
                let Ok(read @ 1..) = from.read(&mut piece).await else { return };
                piece.truncate(read);
                through = self.through(through, Instant::now(), read);
                sleep_until(through).await;
                let arrives = through + self.delay + self.lost_time(read, &mut losses);
                if sender.send((arrives, piece)).await.is_err() {
                    return;
                }
            }
        };
        let arrive = async move {
            while let Some((at, piece)) = under_way.recv().await {
                sleep_until(at).await;
                if to.write_all(&piece).await.is_err() {
                    return;
                }
            }
            // Who does not listen any more need not be told that there is no more.
            let _ = to.shutdown().await;
        };
        tokio::join!(send, arrive);
    }

    /// When so many bytes, which are there now, are through, after those that were by `before`.
    fn through(self, before: Instant, now: Instant, bytes: usize) -> Instant {
        if self.bits_per_s == 0 {
            return now;
        }
        let saved_from = now.checked_sub(SAVED).unwrap_or(now);
        before.max(saved_from) + Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_s as f64)
    }

    /// How much later a piece of so many bytes arrives, since packets of it are lost: what is lost waits for itself, all others with it.
    fn lost_time(self, bytes: usize, random: &mut Random) -> Duration {
        if self.loss_permille == 0 {
            return Duration::ZERO;
        }
        let packets = bytes.div_ceil(PACKET.min(self.piece()));
        let one = |place: usize| {
            let times = self.lost_times(random);
            let is_told = packets - place > TELLING;
            let by_timer = TIMER_MIN + 2 * self.delay;
            (0..times).map(|time| if time == 0 && is_told { 2 * self.delay } else { by_timer * 2_u32.pow(time) }).sum()
        };
        (0..packets).map(one).max().unwrap_or_default()
    }

    /// How often a packet is lost before it arrives.
    fn lost_times(self, random: &mut Random) -> u32 {
        let is_lost = |random: &mut Random| random.fraction() * 1_000.0 < self.loss_permille as f64;
        (0..DOUBLED_MAX).take_while(|_| is_lost(random)).count() as u32
    }

    /// As much as goes through in the time that the bucket saves.
    fn piece(self) -> usize {
        let bytes = (self.bits_per_s as f64 / 8.0 * SAVED.as_secs_f64()) as usize;
        if self.bits_per_s == 0 { PIECE_MAX } else { bytes.clamp(PIECE_MIN, PIECE_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each part of what is written at one end has arrived at the other: bytes so far, and the time since the beginning.
    async fn arrivals(link: Link, bytes: usize, is_upwards: bool) -> Vec<(usize, Duration)> {
        let (far, server) = duplex(1 << 20);
        let client = link.over(far);
        let (mut from, mut to) = if is_upwards { (client, server) } else { (server, client) };
        let begin = Instant::now();
        tokio::spawn(async move {
            let sent: Vec<u8> = (0..bytes).map(|place| place as u8).collect();
            from.write_all(&sent).await.expect("somebody reads");
        });
        let (mut all, mut buffer, mut seen) = (Vec::new(), vec![0; 1 << 16], Vec::new());
        while let Ok(read @ 1..) = to.read(&mut buffer).await {
            all.extend_from_slice(&buffer[..read]);
            seen.push((all.len(), begin.elapsed()));
        }
        assert!(all.len() == bytes && all.iter().enumerate().all(|(place, byte)| *byte == place as u8));
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_comes_through_than_the_rate() {
        for (bits_per_s, bytes) in [(4_800, 6_000), (10_000_000, 1_250_000), (1_000_000_000, 2_500_000)] {
            let link = Link { bits_per_s, ..Link::default() };
            for is_upwards in [true, false] {
                let seen = arrivals(link, bytes, is_upwards).await;
                let most = |time: Duration| (time + SAVED).as_secs_f64() * bits_per_s as f64 / 8.0;
                let early = seen.iter().find(|(bytes, time)| *bytes as f64 > most(*time) + 1.0);
                assert_eq!(early, None, "{link:?}");
                let whole = Duration::from_secs_f64(bytes as f64 * 8.0 / bits_per_s as f64);
                let last = seen.last().expect("something").1;
                // Timers have whole milliseconds.
                assert!(last < whole + SAVED, "{link:?}: {last:?}, {whole:?} would do");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_earns_no_more_than_the_bucket_holds() {
        let link = Link { bits_per_s: 8_000, ..Link::default() };
        let (mut far, server) = duplex(1 << 20);
        let mut client = link.over(server);
        tokio::time::sleep(Duration::from_mins(1)).await;
        let begin = Instant::now();
        far.write_all(&[1; 1_000]).await.expect("somebody reads");
        client.read_exact(&mut [0; 1_000]).await.expect("all");
        assert!(begin.elapsed() + SAVED >= Duration::from_secs(1), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn each_byte_is_under_way_for_the_delay_and_none_waits_for_another() {
        let delay = Duration::from_millis(200);
        let all_at_once = Link { delay, ..Link::default() };
        for (bytes, time) in arrivals(all_at_once, 1_000_000, false).await {
            assert_eq!(time, delay, "{bytes} bytes");
        }
        // As long as it takes to send them, and the delay once.
        let at_a_rate = Link { bits_per_s: 8_000_000, delay, loss_permille: 0 };
        let seen = arrivals(at_a_rate, 1_000_000, true).await;
        let (first, last) = (seen[0].1, seen.last().expect("something").1);
        assert!(first >= delay && first < delay + 2 * SAVED, "{first:?}");
        let whole = Duration::from_secs(1) + delay;
        assert!(last + SAVED >= whole && last < whole + SAVED, "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_gone_at_the_server_too() {
        let (far, mut server) = duplex(1 << 20);
        let mut client = Link { bits_per_s: 8_000, delay: Duration::from_millis(50), loss_permille: 0 }.over(far);
        client.write_all(b"last words").await.expect("somebody reads");
        drop(client);
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.expect("an end");
        assert_eq!(heard, b"last words");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_comes_later_and_what_is_behind_it_waits() {
        let delay = Duration::from_millis(20);
        let link = Link { bits_per_s: 80_000_000, delay, loss_permille: 20 };
        let (bytes, packets) = (2_000_000, 2_000_000 / PACKET);
        let seen = arrivals(link, bytes, false).await;
        let plain = arrivals(Link { loss_permille: 0, ..link }, bytes, false).await;
        let (last, unhurried) = (seen.last().expect("all").1, plain.last().expect("all").1);
        assert!(
            last > unhurried + TIMER_MIN,
            "{packets} packets and none waited for the timer: {last:?}, {unhurried:?}"
        );
        // In order, whatever was lost: `arrivals` has seen to that. Nothing is before its time.
        let before = |time: Duration| plain.iter().rfind(|(_, at)| *at <= time).map_or(0, |(bytes, _)| *bytes);
        assert!(seen.iter().all(|(bytes, time)| *bytes <= before(*time)), "something came early");
    }

    #[test]
    fn a_loss_costs_a_round_trip_or_the_timer() {
        let (delay, ms) = (Duration::from_millis(50), Duration::from_millis);
        let link = Link { bits_per_s: 0, delay, loss_permille: 100 };
        let mut random = Random::derived(7, &[stream::LOSSES]);
        let mut draws =
            |bytes: usize| -> Vec<Duration> { (0..20_000).map(|_| link.lost_time(bytes, &mut random)).collect() };
        // A packet alone: nobody tells of it. One in ten is lost, one in a hundred twice.
        let alone = draws(500);
        let share = |all: &[Duration], time: Duration| all.iter().filter(|one| **one == time).count() as f64 / 20_000.0;
        assert!((share(&alone, Duration::ZERO) - 0.9).abs() < 0.01, "{}", share(&alone, Duration::ZERO));
        assert!((share(&alone, ms(300)) - 0.09).abs() < 0.01 && (share(&alone, ms(900)) - 0.009).abs() < 0.003);
        // The first of five is told of by those behind it, the last three are not.
        let five = draws(5 * PACKET);
        assert!((share(&five, Duration::ZERO) - 0.9_f64.powi(5)).abs() < 0.01);
        assert!(share(&five, ms(100)) > 0.05, "a round trip: {}", share(&five, ms(100)));
        assert!(!five.contains(&ms(200)));
        assert_eq!(Link { loss_permille: 0, ..link }.lost_time(5 * PACKET, &mut random), Duration::ZERO);
    }
}
