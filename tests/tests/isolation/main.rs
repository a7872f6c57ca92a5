//! Isolation: whatever a user tries, no byte that marks another's data is ever in what he is sent, and nothing of another's changes.
//!
//! The victim's data carry a marker in every column, key and partition value. The attacker speaks the protocol as he likes, by two
//! tables of attacks. What the server sends is searched as it travels and frame by frame uncompressed; the search is shown to find
//! the marker where it is.

mod liar;
mod marker;
mod parents;
mod requests;
mod stage;
mod uploads;

use anyhow::{Result, ensure};
use headwater_tests::KINDS;
use marker::{body_of, frames_in};
use stage::{CUSTOMER, Stage, customer, request, update};

/// A row that went over to the victim, a new key and values with it, is no more than a deletion to who had it.
#[test]
fn what_is_no_longer_the_attackers_comes_no_more() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        let (region, secret) = (stage.marker.region(), &stage.marker.secret);
        stage.world.central.execute(
            "INSERT INTO customer VALUES ('e2', 'south', 'e2', 'e2', NULL, NULL), ('e3', 'south', 'e3', 'e3', NULL, NULL)",
        )?;
        let hello = stage.synced(&stage.eve, 1)?;
        stage.world.central.execute(&format!(
            "UPDATE customer SET id = '{secret}', region = '{region}', name = '{secret}' WHERE id = 'e2';
             UPDATE customer SET region = '{region}', name = '{secret}' WHERE id = 'e3'"
        ))?;
        let before = stage.victims_rows()?;
        let late = |id| (CUSTOMER, update(customer(id, "south", id, id), customer(id, "south", id, "late")));
        let asked = [request(&hello), stage.upload(hello, &[late("e2"), late("e3")])];
        for asked in asked {
            let answer = stage.sync(&stage.eve, &asked)?;
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{kind:?}: {found:?}");
            ensure!(answer.windows(2).any(|window| window == b"e3"), "{kind:?}: no deletion either");
            ensure!(stage.victims_rows()? == before, "{kind:?}: the victim's rows were changed");
        }
    }
    Ok(())
}

/// Who is no member any more is sent no row that was changed since.
#[test]
fn a_membership_that_ended_gives_nothing_more() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        let secret = &stage.marker.secret;
        stage.world.central.execute(
            "INSERT INTO member VALUES ('eve', 'once'); UPDATE customer SET region = 'once' WHERE id = 'e1'; \
             UPDATE purchase SET region = 'once' WHERE id = 'ep1'",
        )?;
        let hello = stage.synced(&stage.eve, 1)?;
        stage.world.central.execute(&format!(
            "DELETE FROM member WHERE user_name = 'eve' AND region = 'once'; \
             UPDATE customer SET name = '{secret}' WHERE id = 'e1'; INSERT INTO purchase VALUES ('{secret}', 'once', 'e1', '{secret}')"
        ))?;
        let found = stage.marker.found_in(&stage.sync(&stage.eve, &request(&hello))?);
        ensure!(found.is_empty(), "{kind:?}: {found:?}");
        // With the membership it would have come.
        stage.world.central.execute("INSERT INTO member VALUES ('eve', 'once')")?;
        let found = stage.marker.found_in(&stage.sync(&stage.eve, &request(&hello))?);
        ensure!(
            found.iter().any(|found| found == "secret Rows"),
            "{kind:?}: the changed rows were not found: {found:?}"
        );
    }
    Ok(())
}

/// A remote of an honest user leaves what its user lost.
#[test]
fn a_remote_leaves_the_partition_of_a_membership_that_ended() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        let mut remote = stage.world.remote("eve", "eve")?;
        stage.world.sync(&mut remote)?;
        ensure!(stage.world.rows("eve", "SELECT id FROM customer")?.len() == 1, "{kind:?}: not even her own row");
        stage.world.central.execute("DELETE FROM member WHERE user_name = 'eve'")?;
        stage.world.sync(&mut remote)?;
        let rows = stage.world.rows("eve", "SELECT id, name FROM customer")?;
        ensure!(rows.is_empty(), "{kind:?}: {rows:?}");
    }
    Ok(())
}

/// The search finds the marker where it is: in a small answer as it travels, in a large one only in the uncompressed frames.
#[test]
fn the_search_finds_what_it_looks_for() -> Result<()> {
    for kind in KINDS {
        for rows in [1, 40] {
            let stage = Stage::new(kind, rows)?;
            let answer = stage.sync(&stage.ann, &request(&stage.hello(1)))?;
            let found = stage.marker.found_in(&answer);
            for place in ["secret Rows", "bytes Rows", "packed digits Rows", "region Rows", "region Partition"] {
                ensure!(found.iter().any(|found| found == place), "{rows} rows: {place} was not found: {found:?}");
            }
            let rows_sent =
                frames_in(&body_of(&answer)).into_iter().filter(|frame| format!("{:?}", frame.kind) == "Rows");
            let packed = rows_sent
                .filter(|frame| frame.payload(1 << 20).is_ok_and(|whole| whole.len() + 12 > frame.wire_bytes()));
            ensure!(
                (packed.count() > 0) == (rows == 40),
                "{rows} rows: compressed or not, against what this test is for"
            );
            // And so would a membership that the attacker should not have.
            stage.world.central.execute(&format!("INSERT INTO member VALUES ('eve', '{}')", stage.marker.region()))?;
            let leak = stage.sync(&stage.eve, &request(&stage.hello(2)))?;
            ensure!(!stage.marker.found_in(&leak).is_empty(), "the leak was not noticed");
        }
    }
    Ok(())
}
