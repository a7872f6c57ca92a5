//! Attacks by changes. Some are by one who knows all that the victim's row holds: even so nothing of it comes back.

use anyhow::{Context, Result, ensure};
use headwater_protocol::message::{Change, Outcome, Receipt};
use headwater_protocol::{Kind as FrameKind, Value};
use headwater_tests::KINDS;

use super::marker::{Marker, body_of, frames_in};
use super::parents;
use super::stage::{CUSTOMER, PURCHASE, Stage, customer, delete, insert, purchase, update};

/// What is uploaded, and how the receipt has it: with this code, as a conflict, or not at all (applied).
pub(crate) type Attack = (&'static str, fn(&Marker) -> (usize, Change), &'static str);

pub(crate) const APPLIED: &str = "applied";

const ATTACKS: [Attack; 22] = [
    ("inserts a row where another's is", |_| (CUSTOMER, insert(customer("a0", "south", "x", "x"))), "partition"),
    (
        "inserts a row under a key that says much",
        |m| (CUSTOMER, insert(customer(&format!("{}0", m.secret), "south", "x", "x"))),
        "partition",
    ),
    ("inserts the very row", |m| (CUSTOMER, insert(m.row())), "partition"),
    (
        "inserts a row into another's partition",
        |m| (CUSTOMER, insert(customer("new", &m.region(), "x", "x"))),
        "partition",
    ),
    (
        "moves another's row to himself",
        |_| (CUSTOMER, update(customer("a0", "south", "a", "a"), customer("a0", "south", "mine", "mine"))),
        "partition",
    ),
    ("moves it, knowing it", |m| (CUSTOMER, update(m.row(), customer("a0", "south", "mine", "mine"))), "partition"),
    (
        "changes another's row in its place",
        |m| (CUSTOMER, update(customer("a0", &m.region(), "a", "a"), customer("a0", &m.region(), "a", "x"))),
        "partition",
    ),
    ("changes it, knowing it", |m| (CUSTOMER, update(m.row(), customer("a0", &m.region(), "code0", "x"))), "partition"),
    ("changes nothing of it, knowing it", |m| (CUSTOMER, update(m.row(), m.row())), "partition"),
    (
        "moves his own row into another's partition",
        |m| {
            let own = customer("e1", "south", "e-code", "Eve's own");
            (CUSTOMER, update(own, customer("e1", &m.region(), "e", "x")))
        },
        "partition",
    ),
    (
        "says that his own row was in another's partition",
        |m| (CUSTOMER, update(customer("e1", &m.region(), "e", "x"), customer("e1", "south", "e-code", "kept"))),
        "conflict",
    ),
    ("deletes another's row", |_| (CUSTOMER, delete(customer("a0", "south", "a", "a"))), "partition"),
    ("deletes it, knowing it", |m| (CUSTOMER, delete(m.row())), "partition"),
    ("deletes it by its partition", |m| (PURCHASE, delete(purchase("ap0", &m.region(), "a0"))), "partition"),
    ("asks by a unique value", |_| (CUSTOMER, insert(customer("mine", "south", "code0", "x"))), "unique"),
    (
        "takes a unique value by an update",
        |_| {
            let own = customer("e1", "south", "e-code", "Eve's own");
            (CUSTOMER, update(own, customer("e1", "south", "code0", "x")))
        },
        "unique",
    ),
    ("refers to another's row", |_| (PURCHASE, insert(purchase("hers", "south", "a0"))), APPLIED),
    ("refers to what is not there", |_| (PURCHASE, insert(purchase("mine", "south", "nobody"))), "foreign_key"),
    ("breaks a check", |_| (CUSTOMER, insert(customer("mine", "south", "y", "bad"))), "check"),
    ("makes a trigger talk", |_| (CUSTOMER, insert(customer("mine", "south", "y", "nosy"))), "trigger"),
    (
        "brings on a conflict of his own",
        |_| (PURCHASE, update(purchase("ep1", "south", "a0"), purchase("ep1", "south", "a0"))),
        "conflict",
    ),
    (
        "hides a key in a row of another type",
        |_| {
            let row = [Value::text("a0"), Value::Int(7), Value::Null, Value::Null, Value::Null, Value::Null];
            (CUSTOMER, insert(row.into()))
        },
        "partition",
    ),
];

fn attacks() -> impl Iterator<Item = Attack> {
    ATTACKS.into_iter().chain(parents::ATTACKS)
}

pub(crate) fn names(receipt: &Receipt) -> Vec<&'static str> {
    receipt.outcomes.iter().map(|(_, outcome)| name(outcome)).collect()
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Refused(refusal) => refusal.code.name(),
        Outcome::Conflict(_) => "conflict",
    }
}

pub(crate) fn receipt_in(answer: &[u8]) -> Result<Receipt> {
    let frames = frames_in(&body_of(answer));
    let frame = frames.iter().find(|frame| frame.kind == FrameKind::Receipt).context("no receipt")?;
    Ok(Receipt::from_payload(&frame.payload(1 << 20)?)?)
}

#[test]
fn uploads_that_reach_for_anothers_rows_are_refused_and_told_nothing() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let before = stage.victims_rows()?;
        for (number, (name, change, outcome)) in (1..).zip(attacks()) {
            let context = || format!("{kind:?}: {name}");
            let body = stage.upload(stage.hello(number), &[change(&stage.marker)]);
            // The second time it is a repetition, answered from what was kept.
            for _ in 0..2 {
                let answer = stage.sync(&stage.eve, &body)?;
                let found = stage.marker.found_in(&answer);
                ensure!(found.is_empty(), "{}: {found:?}", context());
                let receipt = receipt_in(&answer).with_context(context)?;
                let expected: &[&str] = if outcome == APPLIED { &[] } else { &[outcome] };
                ensure!(names(&receipt) == expected, "{}: {:?}", context(), receipt.outcomes);
                ensure!(stage.victims_rows()? == before, "{}: the victim's rows were changed", context());
            }
        }
    }
    Ok(())
}

/// All at once: what is refused is found by halving, among changes that are not.
#[test]
fn an_upload_of_all_the_attacks_is_told_nothing_either() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let before = stage.victims_rows()?;
        let changes: Vec<_> = attacks().map(|(_, change, _)| change(&stage.marker)).collect();
        let answer = stage.sync(&stage.eve, &stage.upload(stage.hello(1), &changes))?;
        let found = stage.marker.found_in(&answer);
        ensure!(found.is_empty(), "{kind:?}: {found:?}");
        let receipt = receipt_in(&answer)?;
        for (ordinal, (attack, _, outcome)) in
            (0..).zip(attacks()).filter(|(_, (_, _, outcome))| *outcome == "partition")
        {
            let found = receipt.outcomes.iter().find(|(refused, _)| *refused == ordinal);
            ensure!(found.is_some_and(|(_, found)| name(found) == outcome), "{kind:?}: {attack}: {found:?}");
        }
        ensure!(stage.victims_rows()? == before, "{kind:?}: the victim's rows were changed");
    }
    Ok(())
}
