//! Crowds in virtual time: a server that works off its backlog, and clients that do as they are told.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A crowd that comes within a second.
struct Crowd {
    clients: usize,
    backlog: usize,
    /// What a sync takes of the server, and how many times that while the burst is being received.
    each: Duration,
    slow: f64,
    /// From how many syncs on the pace is known; it is off by this factor then.
    known_from: usize,
    off_by: f64,
}

/// What became of it.
#[derive(Debug)]
struct Seen {
    /// When the last one ended, against the server's never being without work.
    time: f64,
    sent_away_mean: f64,
    sent_away_max: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ended,
    Comes(usize),
}

fn random(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 11) as f64 / (1_u64 << 53) as f64
}

fn id(client: usize) -> [u8; 16] {
    (client as u128).to_be_bytes()
}

impl Crowd {
    fn come(&self, seed: &mut u64) -> Seen {
        let (begin, burst) = (Instant::now(), Duration::from_secs(1));
        let mut events = BinaryHeap::new();
        for client in 0..self.clients {
            events.push(Reverse((begin + burst.mul_f64(random(seed)), Event::Comes(client))));
        }
        let (mut comebacks, mut waiting, mut is_busy) = (Comebacks::default(), 0, false);
        let (mut ended, mut work, mut last) = (0, Duration::ZERO, begin);
        let mut sent_away = vec![0_u32; self.clients];
        while let Some(Reverse((now, event))) = events.pop() {
            match event {
                Event::Ended => (ended, is_busy, last) = (ended + 1, false, now),
                Event::Comes(client) if waiting < comebacks.backlog_for(Some(id(client)), self.backlog) || !is_busy => {
                    comebacks.let_in(Some(id(client)));
                    waiting += 1;
                }
                Event::Comes(client) => {
                    let interval = (ended >= self.known_from).then(|| self.each.mul_f64(self.off_by));
                    let standing = Standing { here: waiting, backlog: self.backlog, interval };
                    let wait = comebacks.send_away(now, Some(id(client)), standing, random(seed));
                    sent_away[client] += 1;
                    // As a client does.
                    let later = wait + (wait / 8).min(Duration::from_secs(1)).mul_f64(random(seed));
                    events.push(Reverse((now + later, Event::Comes(client))));
                }
            }
            if !is_busy && waiting > 0 {
                (is_busy, waiting) = (true, waiting - 1);
                let slow = if now - begin < 2 * burst { self.slow } else { 1.0 };
                let takes = self.each.mul_f64(slow * (0.5 + random(seed)));
                work += takes;
                events.push(Reverse((now + takes, Event::Ended)));
            }
        }
        assert_eq!(ended, self.clients, "somebody never came back");
        Seen {
            time: (last - begin).as_secs_f64() / work.as_secs_f64(),
            sent_away_mean: f64::from(sent_away.iter().sum::<u32>()) / self.clients as f64,
            sent_away_max: sent_away.into_iter().max().unwrap_or(0),
        }
    }
}

const CROWD: Crowd =
    Crowd { clients: 10_000, backlog: 1_500, each: Duration::from_millis(2), slow: 1.0, known_from: 0, off_by: 1.0 };

#[test]
fn a_crowd_comes_back_as_places_become_free() {
    for seed in 1..4 {
        for crowd in [
            CROWD,
            Crowd { slow: 4.0, ..CROWD },
            Crowd { off_by: 0.7, ..CROWD },
            Crowd { each: Duration::from_micros(300), ..CROWD },
            Crowd { each: Duration::from_millis(8), ..CROWD },
            Crowd { backlog: 500, ..CROWD },
        ] {
            let seen = crowd.come(&mut { seed });
            let told = format!("{seen:?} with {:?}, slow {}, off {}", crowd.each, crowd.slow, crowd.off_by);
            assert!(seen.time < 1.05, "the server was without work: {told}");
            // Where the pace is told too fast by a third, so many more are early.
            let (mean, max) = if crowd.off_by < 1.0 { (3.0, 8) } else { (2.0, 5) };
            assert!(seen.sent_away_mean <= mean && seen.sent_away_max <= max, "{told}");
        }
    }
}

#[test]
fn a_server_without_a_backlog_sends_nobody_away_for_ever() {
    let seen = Crowd { clients: 1_000, backlog: 0, ..CROWD }.come(&mut 1);
    assert!(seen.time < 2.0 && seen.sent_away_mean < 5.0, "{seen:?}");
}

#[test]
fn a_fresh_server_learns_its_pace() {
    let seen = Crowd { known_from: 100, slow: 3.0, ..CROWD }.come(&mut 1);
    assert!(seen.time < 1.05 && seen.sent_away_mean <= 2.5 && seen.sent_away_max <= 7, "{seen:?}");
}

#[test]
fn each_is_told_a_time_of_its_own() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 199, backlog: 200, interval: Some(Duration::from_millis(100)) };
    let mut tell = |remote: usize| comebacks.send_away(now, Some(id(remote)), standing, 0.5).as_secs_f64();
    let near = |actual: f64, expected: f64| (actual - expected).abs() < 0.01;
    let (first, second, third) = (tell(1), tell(2), tell(3));
    // A quarter of the backlog is to go before the first, and then one after the other.
    assert!(near(first, 5.0) && near(second, 5.1) && near(third, 5.2), "{first} {second} {third}");
    assert!(tell(1) < 6.0 && tell(1) > 5.0, "who comes again waits for a part of the backlog alone");
    comebacks.let_in(Some(id(2)));
    let standing = Standing { here: 5_000_000, ..standing };
    assert!(comebacks.send_away(now, Some(id(9)), standing, 1.0) <= MOST.mul_f64(1.05));
    let idle = Standing { here: 0, backlog: 200, interval: Some(Duration::from_millis(100)) };
    assert_eq!(Comebacks::default().send_away(now, None, idle, 0.5), LEAST);
}

#[test]
fn who_has_come_back_finds_room_first() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 200, backlog: 200, interval: Some(Duration::from_millis(10)) };
    let room = |comebacks: &Comebacks, remote| comebacks.backlog_for(Some(id(remote)), 200);
    comebacks.send_away(now, Some(id(1)), standing, 0.5);
    assert_eq!((room(&comebacks, 1), room(&comebacks, 2)), (180, 180));
    comebacks.send_away(now, Some(id(1)), standing, 0.5);
    assert_eq!((room(&comebacks, 1), room(&comebacks, 2)), (200, 180));
    comebacks.let_in(Some(id(1)));
    assert_eq!(room(&comebacks, 1), 180);
    assert_eq!((comebacks.backlog_for(None, 1), comebacks.backlog_for(None, 0)), (1, 0));
}

#[test]
fn what_is_over_is_forgotten() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 200, backlog: 200, interval: Some(Duration::from_millis(10)) };
    for remote in 0..1_000 {
        comebacks.send_away(now, Some(id(remote)), standing, 0.5);
    }
    assert_eq!((comebacks.told.len(), comebacks.known.len()), (1_000, 1_000));
    comebacks.send_away(now + Duration::from_mins(5), None, standing, 0.5);
    assert_eq!((comebacks.told.len(), comebacks.known.len()), (1, 0));
}
