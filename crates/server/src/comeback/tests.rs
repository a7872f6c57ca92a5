//! Crowds in virtual time: a server that works off its backlog, and clients that do as they are told.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::limit::{Class, Done, Kind, Limit};

/// Rows of each.
const ROWS: u64 = 50;

/// A crowd that comes within a second.
#[derive(Debug)]
struct Crowd {
    clients: usize,
    backlog: usize,
    /// What a sync takes of the server, and how many times that in the first seconds, while the burst is being received.
    each: Duration,
    slow: f64,
    slow_for: Duration,
    /// What the server has had many syncs of before, in rows, so that it knows a pace; it is off by this factor. None: it is a fresh one.
    before: Option<u64>,
    off_by: f64,
    /// By how much later than it was told a client comes at most, as its machine is busy.
    late: Duration,
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
    Ended(Duration),
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
        let (before, burst) = (Instant::now(), Duration::from_secs(1));
        let begin = before + Duration::from_secs(100);
        let mut events = BinaryHeap::new();
        for client in 0..self.clients {
            events.push(Reverse((begin + burst.mul_f64(random(seed)), Event::Comes(client))));
        }
        let (mut comebacks, mut limit, mut waiting, mut is_busy) = (Comebacks::default(), Limit::fixed(1), 0, false);
        let done = |rows, took| Done { class: Class::of(Kind::Upload, rows), took, busy: 1 };
        for (second, rows) in (0..100).zip(self.before.iter().cycle()) {
            limit.done(before + Duration::from_secs(second), done(*rows, self.each));
        }
        let (mut ended, mut work, mut last) = (0, Duration::ZERO, begin);
        let mut sent_away = vec![0_u32; self.clients];
        while let Some(Reverse((now, event))) = events.pop() {
            match event {
                Event::Ended(took) => {
                    limit.done(now, done(ROWS, took));
                    (ended, is_busy, last) = (ended + 1, false, now);
                }
                Event::Comes(client) if waiting < comebacks.backlog_for(Some(id(client)), self.backlog) || !is_busy => {
                    comebacks.let_in(Some(id(client)));
                    waiting += 1;
                }
                Event::Comes(client) => {
                    let pace = limit.pace().map(|pace| Pace { interval: pace.interval.mul_f64(self.off_by), ..pace });
                    let standing = Standing { here: waiting, backlog: self.backlog, pace, least: LEAST };
                    let wait = comebacks.send_away(now, Some(id(client)), standing, random(seed));
                    sent_away[client] += 1;
                    // As a client does.
                    let later = wait + (wait / 8).min(Duration::from_secs(1)).mul_f64(random(seed));
                    let late = self.late.mul_f64(random(seed));
                    events.push(Reverse((now + later + late, Event::Comes(client))));
                }
            }
            if !is_busy && waiting > 0 {
                (is_busy, waiting) = (true, waiting - 1);
                let slow = if now - begin < self.slow_for { self.slow } else { 1.0 };
                let takes = self.each.mul_f64(slow * (0.5 + random(seed)));
                work += takes;
                events.push(Reverse((now + takes, Event::Ended(takes))));
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

const CROWD: Crowd = Crowd {
    clients: 10_000,
    backlog: 1_500,
    each: Duration::from_millis(2),
    slow: 1.0,
    slow_for: Duration::from_secs(2),
    before: Some(ROWS),
    off_by: 1.0,
    late: Duration::ZERO,
};

#[test]
fn a_crowd_comes_back_as_places_become_free() {
    for seed in 1..4 {
        for crowd in [
            CROWD,
            Crowd { slow: 4.0, ..CROWD },
            Crowd { off_by: 0.7, ..CROWD },
            Crowd { off_by: 0.4, ..CROWD },
            Crowd { off_by: 0.6, late: Duration::from_secs(1), ..CROWD },
            Crowd { each: Duration::from_micros(300), ..CROWD },
            Crowd { each: Duration::from_millis(8), ..CROWD },
            Crowd { backlog: 500, ..CROWD },
            Crowd { before: None, ..CROWD },
            Crowd { before: Some(10 * ROWS), ..CROWD },
        ] {
            let seen = crowd.come(&mut { seed });
            let told = format!("{seen:?} with {crowd:?}");
            assert!(seen.time < 1.05, "the server was without work: {told}");
            // Where the pace is told too fast, so many more are early.
            let mean = if crowd.off_by < 1.0 { 2.5 } else { 2.0 };
            assert!(seen.sent_away_mean <= mean && seen.sent_away_max <= 5, "{told}");
        }
    }
}

/// While the crowd arrives, syncs take far longer than afterwards: nobody is sent away for a time by those.
#[test]
fn a_server_that_begins_slowly_is_never_without_work() {
    for (slow, before) in [(3.0, None), (10.0, None), (20.0, None), (10.0, Some(10 * ROWS)), (20.0, Some(ROWS / 10))] {
        for (slow_for, each) in [(1, 2), (4, 2), (1, 8), (4, 8)] {
            let slow_for = Duration::from_secs(slow_for);
            let crowd = Crowd { before, slow, slow_for, each: Duration::from_millis(each), ..CROWD };
            let seen = crowd.come(&mut 1);
            let told = format!("{seen:?} with {crowd:?}");
            assert!(seen.time < 1.1, "the server was without work: {told}");
            let (mean, max) = if each == 2 { (2.5, 5) } else { (4.0, 7) };
            assert!(seen.sent_away_mean <= mean && seen.sent_away_max <= max, "{told}");
        }
    }
}

#[test]
fn a_server_without_a_backlog_sends_nobody_away_for_ever() {
    let seen = Crowd { clients: 1_000, backlog: 0, ..CROWD }.come(&mut 1);
    assert!(seen.time < 2.0 && seen.sent_away_mean < 5.0, "{seen:?}");
}

/// A pace as of the tests below.
fn pace(interval_ms: u64) -> Pace {
    Pace { interval: Duration::from_millis(interval_ms), lately: None, is_sure: true }
}

#[test]
fn each_is_told_a_time_of_its_own() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 199, backlog: 200, pace: Some(pace(100)), least: LEAST };
    let mut tell = |remote: usize| comebacks.send_away(now, Some(id(remote)), standing, 0.5).as_secs_f64();
    let near = |actual: f64, expected: f64| (actual - expected).abs() < 0.01;
    let (first, second, third) = (tell(1), tell(2), tell(3));
    // A quarter of the backlog is to go before the first, and then one after the other.
    assert!(near(first, 5.0) && near(second, 5.1) && near(third, 5.2), "{first} {second} {third}");
    assert!(near(tell(3), 5.2) && near(tell(4), 5.3), "who comes again keeps its ticket");
    comebacks.let_in(Some(id(2)));
    let fourth = comebacks.send_away(now, Some(id(4)), standing, 0.5).as_secs_f64();
    assert!(near(fourth, 5.2), "one of those before is back: {fourth}");
    let standing = Standing { here: 5_000_000, ..standing };
    assert!(comebacks.send_away(now, Some(id(9)), standing, 1.0) <= MOST.mul_f64(1.05));
    let idle = Standing { here: 0, backlog: 200, pace: Some(pace(100)), least: LEAST };
    assert_eq!(Comebacks::default().send_away(now, None, idle, 0.5), LEAST);
}

#[test]
fn a_time_by_a_pace_that_is_not_sure_is_short_and_no_fault_of_the_client() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let unsure = Pace { interval: Duration::from_secs(1), lately: None, is_sure: false };
    let standing = Standing { here: 200, backlog: 200, pace: Some(unsure), least: LEAST };
    for _ in 0..9 {
        assert_eq!(comebacks.send_away(now, Some(id(1)), standing, 0.5), UNSURE);
    }
    assert_eq!(comebacks.tickets[&id(1)].times, 0);
    let standing = Standing { here: 170, pace: Some(Pace { is_sure: true, ..unsure }), ..standing };
    assert!((20..23).contains(&comebacks.send_away(now, Some(id(1)), standing, 0.5).as_secs()));
    // In vain, and it is the last: no longer.
    assert!((20..23).contains(&comebacks.send_away(now, Some(id(1)), standing, 0.5).as_secs()));
    for other in 2..102 {
        comebacks.send_away(now, Some(id(other)), standing, 0.5);
    }
    // A part of those who are here, and twice as many.
    assert!((76..84).contains(&comebacks.send_away(now, Some(id(1)), standing, 0.5).as_secs()));
}

#[test]
fn who_came_too_early_is_told_by_the_pace_of_late() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let mut told = |lately_ms: u64| {
        let lately = Some(Duration::from_millis(lately_ms));
        let standing = Standing { here: 200, backlog: 200, pace: Some(Pace { lately, ..pace(10) }), least: LEAST };
        comebacks.send_away(now, Some(id(1)), standing, 0.5).as_millis()
    };
    // There are 51 before it.
    assert_eq!((told(25), told(25), told(1)), (510, 1_275, 520), "as fast as it was told first, and no faster");
    assert_eq!(told(1_000), 2_080, "four times slower at most");
}

#[test]
fn who_has_an_earlier_ticket_finds_room_first() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 200, backlog: 200, pace: Some(pace(10)), least: LEAST };
    let room = |comebacks: &Comebacks, remote| comebacks.backlog_for(Some(id(remote)), 200);
    for remote in 0..40 {
        comebacks.send_away(now, Some(id(remote)), standing, 0.5);
    }
    assert_eq!((room(&comebacks, 0), room(&comebacks, 20), room(&comebacks, 99)), (200, 195, 190));
    for remote in 0..40 {
        comebacks.let_in(Some(id(remote)));
        comebacks.let_in(Some(id(remote)));
    }
    assert_eq!((room(&comebacks, 0), room(&comebacks, 99)), (200, 200));
    for remote in 0..10_000 {
        comebacks.send_away(now, Some(id(remote)), standing, 0.5);
    }
    assert_eq!((room(&comebacks, 0), room(&comebacks, 9_999)), (200, 100), "half of the backlog is for all");
    assert_eq!((comebacks.backlog_for(None, 1), comebacks.backlog_for(None, 0)), (1, 0));
}

#[test]
fn what_is_over_is_forgotten() {
    let (mut comebacks, now) = (Comebacks::default(), Instant::now());
    let standing = Standing { here: 200, backlog: 200, pace: Some(pace(10)), least: LEAST };
    for remote in 0..1_000 {
        comebacks.send_away(now, Some(id(remote)), standing, 0.5);
    }
    assert_eq!((comebacks.tickets.len(), comebacks.ahead(1_000)), (1_000, 1_000));
    comebacks.send_away(now + Duration::from_mins(5), None, standing, 0.5);
    assert_eq!((comebacks.tickets.len(), comebacks.ahead(1_000)), (0, 0));
}

#[test]
fn where_no_connection_is_free_eight_attempts_outlast_those_that_send_nothing() {
    let paces = [None, Some(pace(1)), Some(Pace { is_sure: false, ..pace(1) }), Some(pace(100))];
    for (seed, pace) in (1..).zip(paces) {
        let (mut comebacks, mut seed, begin) = (Comebacks::default(), seed, Instant::now());
        let standing = Standing { here: 0, backlog: 1_000, pace, least: LEAST_OF_CONNECTIONS };
        let mut now = begin;
        for _ in 1..8 {
            now += comebacks.send_away(now, Some(id(1)), standing, random(&mut seed));
        }
        let waited = (now - begin).as_secs();
        assert!((35..60).contains(&waited), "{pace:?}: {waited} s");
    }
}
