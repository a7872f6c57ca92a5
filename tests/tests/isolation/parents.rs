//! Rows that lie in the partition of the row that they refer to, parcels of customers and scans of parcels: whoever reaches for another's
//! parent reaches for what is below it too.

use anyhow::{Result, ensure};
use headwater_protocol::message::{Change, Outcome};
use headwater_tests::KINDS;

use super::stage::{CUSTOMER, PARCEL, SCAN, Stage, below, customer, delete, insert, request, update};
use super::uploads::{Attack, names, receipt_in};

/// One change each, sent with those of `uploads`.
pub(crate) const ATTACKS: [Attack; 18] = [
    ("inserts a row where another's is below his own", |_| (PARCEL, insert(below("ak0", "e1", "x"))), "partition"),
    (
        "inserts one under a key that says much",
        |m| (PARCEL, insert(below(&format!("{}k0", m.secret), "e1", "x"))),
        "partition",
    ),
    ("inserts the very row below another's", |m| (PARCEL, insert(below("ak0", "a0", &note(&m.secret)))), "foreign_key"),
    ("inserts a row below another's", |_| (PARCEL, insert(below("new", "a0", "x"))), "foreign_key"),
    (
        "inserts one below a key that says much",
        |m| (PARCEL, insert(below("new", &format!("{}0", m.secret), "x"))),
        "foreign_key",
    ),
    ("inserts a row below what is not there", |_| (PARCEL, insert(below("new", "nobody", "x"))), "foreign_key"),
    (
        "moves another's row below his own",
        |_| (PARCEL, update(below("ak0", "e1", "x"), below("ak0", "e1", "mine"))),
        "partition",
    ),
    (
        "moves it, knowing it",
        |m| (PARCEL, update(below("ak0", "a0", &note(&m.secret)), below("ak0", "e1", "mine"))),
        "partition",
    ),
    (
        "changes another's row in its place",
        |m| (PARCEL, update(below("ak0", "a0", &note(&m.secret)), below("ak0", "a0", "x"))),
        "foreign_key",
    ),
    (
        "moves his own row below another's",
        |_| (PARCEL, update(below("ek1", "e1", "hers"), below("ek1", "a0", "hers"))),
        "foreign_key",
    ),
    (
        "says that his own row was below another's",
        |_| (PARCEL, update(below("ek1", "a0", "x"), below("ek1", "e1", "kept"))),
        "conflict",
    ),
    ("deletes another's row below his own", |_| (PARCEL, delete(below("ak0", "e1", "x"))), "partition"),
    ("deletes it, knowing it", |m| (PARCEL, delete(below("ak0", "a0", &note(&m.secret)))), "partition"),
    ("inserts two steps below another's", |_| (SCAN, insert(below("new", "ak0", "x"))), "foreign_key"),
    ("inserts where another's is, two steps below", |_| (SCAN, insert(below("as0", "ek1", "x"))), "partition"),
    (
        "moves another's row two steps below his own",
        |_| (SCAN, update(below("as0", "ek1", "x"), below("as0", "ek1", "mine"))),
        "partition",
    ),
    (
        "moves his own row two steps below another's",
        |_| (SCAN, update(below("es1", "ek1", "hers"), below("es1", "ak0", "hers"))),
        "foreign_key",
    ),
    ("deletes two steps below another's", |_| (SCAN, delete(below("as0", "ek1", "x"))), "partition"),
];

fn note(secret: &str) -> String {
    format!("note {secret}")
}

/// Parents and what is below them in one upload: the changes, and what the receipt has against each of them that is in it.
type Together = (&'static str, Vec<(usize, Change)>, &'static [&'static str]);

fn together(region: &str) -> Vec<Together> {
    let own = || customer("e1", "south", "e-code", "Eve's own");
    vec![
        (
            "moves his parent to another, and writes below it",
            vec![
                (CUSTOMER, update(own(), customer("e1", region, "e-code", "x"))),
                (PARCEL, insert(below("n1", "e1", "x"))),
            ],
            &["partition"],
        ),
        (
            "makes a parent of another's, and writes below it",
            vec![(CUSTOMER, insert(customer("n2", region, "n2", "x"))), (PARCEL, insert(below("n3", "n2", "x")))],
            &["partition", "foreign_key"],
        ),
        (
            "takes another's parent, and writes below it",
            vec![(CUSTOMER, insert(customer("a0", "south", "x", "x"))), (PARCEL, insert(below("n4", "a0", "x")))],
            &["partition", "foreign_key"],
        ),
        (
            "takes another's parent and what is below it",
            vec![
                (CUSTOMER, update(customer("a0", region, "code0", "x"), customer("a0", "south", "code0", "x"))),
                (PARCEL, update(below("ak0", "a0", "x"), below("ak0", "e1", "x"))),
                (SCAN, insert(below("n5", "ak0", "x"))),
            ],
            &["partition", "partition", "foreign_key"],
        ),
    ]
}

#[test]
fn parents_and_what_is_below_them_are_out_of_reach_together() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let before = stage.victims_rows()?;
        for (number, (attack, changes, expected)) in (1..).zip(together(&stage.marker.region())) {
            let answer = stage.sync(&stage.eve, &stage.upload(stage.hello(number), &changes))?;
            let mut found = stage.marker.found_in(&answer);
            // What he said himself.
            found.retain(|found| !found.starts_with("region "));
            ensure!(found.is_empty(), "{kind:?}: {attack}: {found:?}");
            let receipt = receipt_in(&answer)?;
            ensure!(names(&receipt) == expected, "{kind:?}: {attack}: {:?}", receipt.outcomes);
            ensure!(stage.victims_rows()? == before, "{kind:?}: {attack}: the victim's rows were changed");
        }
    }
    Ok(())
}

/// Whether there is such a parent he is not told.
#[test]
fn another_parent_and_none_are_refused_alike() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        for (table, another) in [(PARCEL, "a0"), (SCAN, "ak0")] {
            let said = |number, parent| -> Result<Vec<Outcome>> {
                let body = stage.upload(stage.hello(number), &[(table, insert(below("new", parent, "x")))]);
                let receipt = receipt_in(&stage.sync(&stage.eve, &body)?)?;
                Ok(receipt.outcomes.into_iter().map(|(_, outcome)| outcome).collect())
            };
            let (theirs, nobodys) = (said(10 + table as u8, another)?, said(20 + table as u8, "nobody")?);
            ensure!(theirs.len() == 1 && theirs == nobodys, "{kind:?}: {theirs:?}, and of none {nobodys:?}");
        }
    }
    Ok(())
}

/// A parent goes over to the victim, who writes below it; and one of the victim's comes and goes back.
#[test]
fn what_is_below_a_row_is_seen_only_where_the_row_is() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        let (region, secret) = (stage.marker.region(), &stage.marker.secret);
        stage.world.central.execute(
            "INSERT INTO customer VALUES ('e2', 'south', 'e2', 'e2', NULL, NULL);
             INSERT INTO parcel VALUES ('ek2', 'e2', 'hers'), ('ek3', 'e1', 'hers');
             INSERT INTO scan VALUES ('es2', 'ek2', 'hers'), ('es3', 'ek3', 'hers')",
        )?;
        let hello = stage.synced(&stage.eve, 1)?;
        // One parent is moved, and one child to another parent; what is below both goes with them.
        stage.world.central.execute(&format!(
            "BEGIN; UPDATE customer SET region = '{region}' WHERE id = 'e2'; UPDATE parcel SET customer = 'a0' WHERE id = 'ek3';
             UPDATE parcel SET note = '{secret}' WHERE id IN ('ek2', 'ek3'); UPDATE scan SET note = '{secret}' WHERE id IN ('es2', 'es3');
             INSERT INTO scan VALUES ('{secret}', 'ek2', 'new'); UPDATE scan SET note = '{secret}' WHERE id = '{secret}'; COMMIT"
        ))?;
        let before = stage.victims_rows()?;
        let late = |table, id, parent| (table, update(below(id, parent, "hers"), below(id, parent, "late")));
        let changes =
            [late(PARCEL, "ek2", "e2"), late(SCAN, "es2", "ek2"), late(PARCEL, "ek3", "e1"), late(SCAN, "es3", "ek3")];
        for asked in [request(&hello), stage.upload(hello.clone(), &changes)] {
            let answer = stage.sync(&stage.eve, &asked)?;
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{kind:?}: {found:?}");
            for gone in ["ek2", "es2", "ek3", "es3"] {
                ensure!(has(&answer, gone), "{kind:?}: no deletion of {gone} either");
            }
            ensure!(stage.victims_rows()? == before, "{kind:?}: the victim's rows were changed");
        }
        // With the parent everything below it comes, and is found; without it nothing does.
        stage.world.central.execute("UPDATE customer SET region = 'south' WHERE id = 'a0'")?;
        let answer = stage.sync(&stage.eve, &request(&hello))?;
        ensure!(has(&answer, "ak0") && has(&answer, "as0"), "{kind:?}: what is below a0 did not come with it");
        ensure!(
            stage.marker.found_in(&answer).iter().any(|found| found == "secret Rows"),
            "{kind:?}: it was not found"
        );
        stage.world.central.execute(&format!("UPDATE customer SET region = '{region}' WHERE id = 'a0'"))?;
        let answer = stage.sync(&stage.eve, &request(&hello))?;
        ensure!(has(&answer, "ak0") && has(&answer, "as0"), "{kind:?}: no deletions of what is below a0");
        let found = stage.marker.found_in(&answer);
        ensure!(found.is_empty(), "{kind:?}: once it is gone again: {found:?}");
    }
    Ok(())
}

/// In an answer so small that nothing is compressed.
fn has(answer: &[u8], id: &str) -> bool {
    answer.windows(id.len()).any(|window| window == id.as_bytes())
}
