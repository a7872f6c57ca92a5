//! How full the frames of a download get.

use headwater_consolidated::Plan;
use headwater_consolidated::download::{DownloadRequest, write};
use headwater_consolidated::rows::Echo;
use headwater_protocol::Kind;
use headwater_protocol::frame::ROWS_BYTES_TARGET;
use headwater_protocol::packer::{Knobs, Packing};

use super::database::Database;
use super::replica::Replica;

/// The payloads of all ROWS, read while `each` is told of every one.
fn rows(database: &Database, plan: &Plan, packing: Option<&Knobs>, mut each: impl FnMut()) -> Vec<Vec<u8>> {
    let anna = Replica::new("anna");
    let request = DownloadRequest {
        plan,
        user: &anna.user,
        remote_id: anna.id,
        watermarks: &anna.watermarks,
        restart: false,
        life: None,
        own: &[],
        echo: &Echo::default(),
        conflicted: &[],
        refresh: &[],
        extended: &[],
        packing,
        snapshots: None,
        keeps_marks: false,
        tells_leaving: false,
    };
    let mut payloads = Vec::new();
    let written = write(&mut *database.connect(), &request, &mut |frame| {
        if frame.kind == Kind::Rows {
            payloads.push(frame.payload(1 << 20).expect("our own frame").into_owned());
            each();
        }
        Ok(())
    });
    written.expect("a download");
    payloads
}

/// Knobs that are turned while a download is read count from the next frame on, and change nothing of what comes.
pub(crate) fn a_knob_changes_how_full_frames_are_and_nothing_else(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO customer SELECT i, 'c' || i, 'a note of some bytes', i FROM \
         (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i FROM n) AS n",
    );
    let full = rows(database, &plan, None, || {});
    assert!(full.len() > 3 && full[..full.len() - 1].iter().all(|frame| frame.len() >= ROWS_BYTES_TARGET));
    let knobs = Knobs::frames();
    let mut seen = 0;
    let turned = rows(database, &plan, Some(&knobs), || {
        seen += 1;
        if seen == 2 {
            knobs.set(Packing { message_size: 1_000, ..Packing::FULL }).expect("within the ranges");
        }
    });
    assert_eq!(full[..2], turned[..2]);
    // Whoever turned them was told of the second frame when the packer had begun the third.
    let small = &turned[3..turned.len() - 1];
    assert!(small.len() > 50 && small.iter().all(|frame| (1_000..1_100).contains(&frame.len())), "{}", small.len());
    assert_eq!(full.concat(), turned.concat());
}
