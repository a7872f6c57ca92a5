//! A client that speaks the protocol well and lies: drawn at random, what it says it has seen, which upload this is, what its rows were
//! and what they are now. `HEADWATER_LIAR_SEED` repeats a run.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_protocol::message::{Change, Hello, KeyRange, KeyRanges, Watermarks, Welcome};
use headwater_protocol::{Frame, Kind as FrameKind, Row, Value};
use headwater_testkit::Random;
use headwater_tests::{KINDS, Kind};

use super::marker::{body_of, frames_in};
use super::stage::{CUSTOMER, PARCEL, PURCHASE, SCAN, Stage, below, customer, delete, insert, purchase, update};

const REQUESTS: u64 = 150;
const REMOTES: u64 = 4;
/// The first keys are the victim's, and say so.
const TELLING: usize = 2;

struct Liar {
    random: Random,
    /// What each remote of hers would truly say.
    hellos: Vec<Hello>,
    /// Keys of the victim's, and of hers.
    keys: Vec<String>,
    /// Partitions that she may name: hers, the victim's, and none.
    regions: Vec<String>,
    made: u64,
}

impl Liar {
    fn new(stage: &Stage, seed: u64) -> Result<Liar> {
        let hellos = (1..=REMOTES as u8).map(|id| stage.synced(&stage.eve, id)).collect::<Result<_>>()?;
        let secret = &stage.marker.secret;
        let telling = [format!("{secret}0"), format!("{secret}1")];
        let keys = telling
            .into_iter()
            .chain(["a0", "a1", "ap0", "ak0", "as1", "e1", "ep1", "ek1", "es1"].map(str::to_owned))
            .collect();
        let regions = vec!["south".to_owned(), "south".to_owned(), stage.marker.region(), String::new()];
        Ok(Liar { random: Random::seeded(seed), hellos, keys, regions, made: 0 })
    }

    fn pick(&mut self, from: &[&str]) -> String {
        let place = self.random.below(from.len() as u64) as usize;
        from[place].to_owned()
    }

    /// Keys that say much are the victim's customers': a purchase under one would be hers, and no leak.
    fn key(&mut self, table: usize) -> String {
        if self.random.chance(30) {
            self.made += 1;
            self.keys.push(format!("new{}", self.made));
        }
        let from = if table == CUSTOMER { 0 } else { TELLING };
        let place = from + self.random.below((self.keys.len() - from) as u64) as usize;
        self.keys[place].clone()
    }

    fn region(&mut self) -> String {
        let place = self.random.below(self.regions.len() as u64) as usize;
        self.regions[place].clone()
    }

    fn row(&mut self, table: usize, key: &str) -> Row {
        let region = self.region();
        let mut row = if table == CUSTOMER {
            let (code, name) = (self.pick(&["code0", "code1", "e-code", "x", "y"]), self.pick(&["n", "bad", "nosy"]));
            customer(key, &region, &code, &name)
        } else {
            let to = self.pick(&["a0", "e1", "ak0", "ek1", "new1", "nobody"]);
            if table == PURCHASE { purchase(key, &region, &to) } else { below(key, &to, "bought") }
        };
        if self.random.chance(10) {
            let place = self.random.below(row.len() as u64) as usize;
            row[place] = if self.random.chance(50) { Value::Null } else { Value::Int(7) };
        }
        row
    }

    fn change(&mut self) -> (usize, Change) {
        let table = [CUSTOMER, CUSTOMER, PURCHASE, PARCEL, SCAN][self.random.below(5) as usize];
        let (key, other) = (self.key(table), self.key(table));
        let change = match self.random.below(5) {
            0 => insert(self.row(table, &key)),
            1 => delete(self.row(table, &key)),
            2 => update(self.row(table, &key), self.row(table, &other)),
            _ => update(self.row(table, &key), self.row(table, &key)),
        };
        (table, change)
    }

    /// What one of her remotes says: the truth, or something like it.
    fn hello(&mut self) -> (usize, Hello) {
        let place = self.random.below(REMOTES) as usize;
        let mut hello = self.hellos[place].clone();
        let other = self.hellos[self.random.below(REMOTES) as usize].clone();
        match self.random.below(12) {
            0 => hello.watermarks = other.watermarks,
            1 => hello.watermarks = Watermarks::default(),
            2 => self.spoil(&mut hello.watermarks),
            3 => hello.upload_sequence = self.random.below(10),
            4 => hello.remote_id = other.remote_id,
            5 => hello.secret = other.secret,
            6 => hello.incarnation = [self.random.below(3) as u8; 16],
            7 => hello.note = [7; 16],
            8 => hello.wants_download = false,
            9 => hello.fingerprint ^= 1,
            _ => {}
        }
        (place, hello)
    }

    fn spoil(&mut self, watermarks: &mut Watermarks) {
        for mark in &mut watermarks.marks {
            let place = self.random.below(mark.len().max(1) as u64) as usize;
            if let Some(byte) = mark.get_mut(place) {
                *byte ^= 1 << self.random.below(8);
            }
        }
    }

    /// What she has left of keys that nobody gave her.
    fn ranges(&mut self) -> Frame {
        let first = self.random.below(1 << 40) as i64;
        KeyRanges { ranges: vec![KeyRange { table: self.random.below(3) as u32, first, last: first + 5 }] }.to_frame()
    }

    fn request(&mut self, stage: &Stage) -> (usize, Vec<u8>) {
        let (place, hello) = self.hello();
        let changes: Vec<_> = (0..self.random.below(6)).map(|_| self.change()).collect();
        let head = hello.to_frame().wire_bytes();
        let mut body = stage.upload(hello, &changes);
        if self.random.chance(10) {
            body.splice(head..head, self.ranges().to_bytes());
        }
        (place, body)
    }

    /// Takes what an honest client would take from an answer.
    fn learn(&mut self, place: usize, answer: &[u8]) -> Result<()> {
        let hello = &mut self.hellos[place];
        for frame in frames_in(&body_of(answer)) {
            let payload = frame.payload(1 << 20)?;
            match frame.kind {
                FrameKind::Welcome => hello.incarnation = Welcome::from_payload(&payload)?.incarnation,
                FrameKind::Receipt => hello.upload_sequence += 1,
                FrameKind::Watermarks => hello.watermarks = Watermarks::from_payload(&payload)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn lies(kind: Kind, seed: u64) -> Result<()> {
    let stage = Stage::new(kind, 2)?;
    let before = stage.victims_rows()?;
    let mut liar = Liar::new(&stage, seed)?;
    let mut receipts = 0;
    for number in 0..REQUESTS {
        let (place, body) = liar.request(&stage);
        let answer = stage.sync(&stage.eve, &body)?;
        let found = stage.marker.found_in(&answer);
        ensure!(found.is_empty(), "request {number}: {found:?}");
        ensure!(stage.victims_rows()? == before, "request {number}: the victim's rows were changed");
        receipts += u64::from(frames_in(&body_of(&answer)).iter().any(|frame| frame.kind == FrameKind::Receipt));
        liar.learn(place, &answer)?;
    }
    ensure!(receipts > REQUESTS / 4, "only {receipts} of {REQUESTS} uploads got a receipt");
    // Nobody honest is the worse for it.
    for user in ["eve", "ann"] {
        let mut remote = stage.world.remote(user, user)?;
        stage.world.sync(&mut remote)?;
        let diff = stage.world.diff(user)?;
        ensure!(diff.is_equal(false), "{user}: {diff:#?}");
    }
    Ok(())
}

#[test]
fn a_client_that_lies_is_told_nothing_and_changes_nothing() -> Result<()> {
    let seed = match std::env::var("HEADWATER_LIAR_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    KINDS
        .into_iter()
        .try_for_each(|kind| lies(kind, seed).with_context(|| format!("{kind:?} with HEADWATER_LIAR_SEED={seed}")))
}
