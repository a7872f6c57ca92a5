//! Attacks by whole requests: who asks, for what, with which token, and in what form.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use headwater_protocol::message::{Hello, ServerError, WatermarkEntry, Watermarks};
use headwater_protocol::{Frame, Kind as FrameKind};
use headwater_testkit::Random;
use headwater_tests::KINDS;

use super::marker::{body_of, frames_in};
use super::stage::{CUSTOMER, Stage, customer, insert, request, update};

/// The remote of the victim's that the server knows.
const ANNS: u8 = 200;

/// What is asked, and how it ends: `answered`, with the code of an ERROR frame, or with a status.
type Attack = (&'static str, fn(&Stage) -> Result<Vec<u8>>, &'static str);

const ATTACKS: [Attack; 39] = [
    ("syncs as usual", |s| s.sync(&s.eve, &request(&s.hello(100))), "answered"),
    // Remote IDs
    (
        "takes the victim's remote ID",
        |s| s.sync(&s.eve, &request(&Hello { secret: [9; 32], ..s.hello(ANNS) })),
        "wrong_secret",
    ),
    ("knows its secret too", |s| s.sync(&s.eve, &request(&s.hello(ANNS))), "answered"),
    (
        "uses its secret for his own",
        |s| s.sync(&s.eve, &request(&Hello { secret: [ANNS; 32], ..s.hello(100) })),
        "wrong_secret",
    ),
    ("repeats the victim's upload", |s| s.sync(&s.eve, &anns_upload(s, [9; 32])), "wrong_secret"),
    ("repeats it with the secret", |s| s.sync(&s.eve, &anns_upload(s, [ANNS; 32])), "answered"),
    // Watermarks
    ("claims to hold another partition", |s| s.sync(&s.eve, &claiming(s, 0, "region")?), "answered"),
    ("claims a table that there is not", |s| s.sync(&s.eve, &claiming(s, 99, "region")?), "answered"),
    (
        "forges a watermark",
        |s| {
            let south = vec![1, 5, b's', b'o', b'u', b't', b'h'];
            let entries = (0..2).map(|table| WatermarkEntry { table, partition: south.clone(), mark: 0 });
            let watermarks = Watermarks { marks: vec![vec![1, 0, 0]], entries: entries.collect() };
            s.sync(&s.eve, &request(&Hello { watermarks, ..s.hello(102) }))
        },
        "answered",
    ),
    (
        "sends a watermark of nonsense",
        |s| {
            let watermarks = Watermarks { marks: vec![vec![0xff; 1000]], entries: Vec::new() };
            s.sync(&s.eve, &request(&Hello { watermarks, ..s.hello(103) }))
        },
        "answered",
    ),
    // Models, tables, SQL
    (
        "asks for another model",
        |s| s.sync(&s.eve, &request(&Hello { model: "member".into(), ..s.hello(104) })),
        "model_unknown",
    ),
    (
        "asks for another version",
        |s| s.sync(&s.eve, &request(&Hello { model_version: 2, ..s.hello(104) })),
        "model_unknown",
    ),
    (
        "asks with another fingerprint",
        |s| s.sync(&s.eve, &request(&Hello { fingerprint: 1, ..s.hello(105) })),
        "model_changed",
    ),
    (
        "uses SQL as a name",
        |s| s.sync(&s.eve, &request(&Hello { model: "shop' OR '1' = '1".to_owned(), ..s.hello(106) })),
        "model_unknown",
    ),
    (
        "uploads SQL as values",
        |s| {
            let sql = "'; UPDATE customer SET region = 'south'; --";
            let row = customer(sql, "south", "\"; DROP TABLE customer; --", "$1");
            s.sync(&s.eve, &s.upload(s.hello(107), &[(CUSTOMER, insert(row))]))
        },
        "answered",
    ),
    ("names the table of memberships", |s| s.sync(&s.eve, &naming(s, "member")), "malformed"),
    ("names the table of accounts", |s| s.sync(&s.eve, &naming(s, "headwater_account")), "malformed"),
    // Headers and parameters
    ("asks as another by parameter", |s| s.sync_with("?user=ann&region=*", &bearer(&s.eve), &asking(s)), "answered"),
    (
        "asks as another by header",
        |s| {
            let headers = "X-User: ann\r\nX-Forwarded-User: ann\r\nRemote-User: ann\r\nCookie: user=ann";
            s.sync_with("", &format!("{}\r\n{headers}", bearer(&s.eve)), &asking(s))
        },
        "answered",
    ),
    (
        "has two tokens",
        |s| {
            let none = unsigned(&s.ann);
            s.sync_with("", &format!("{}\r\nAuthorization: Bearer {none}", bearer(&s.eve)), &asking(s))
        },
        "400",
    ),
    // Tokens
    ("shows no token", |s| s.sync_with("", "Accept: */*", &asking(s)), "unauthenticated"),
    ("shows an empty token", |s| s.sync("", &asking(s)), "unauthenticated"),
    ("shows a token without a signature", |s| s.sync(&unsigned(&s.ann), &asking(s)), "unauthenticated"),
    (
        "shows a token that is cut off",
        |s| s.sync(s.ann.rsplit_once('.').map_or("", |(signed, _)| signed), &asking(s)),
        "unauthenticated",
    ),
    (
        "changes a token's user",
        |s| {
            let (eve, ann): (Vec<_>, Vec<_>) = (s.eve.split('.').collect(), s.ann.split('.').collect());
            s.sync(&format!("{}.{}.{}", eve[0], ann[1], eve[2]), &asking(s))
        },
        "unauthenticated",
    ),
    ("signs a token himself", |s| s.sync(&s.forged(Some([7; 32]), SystemTime::now())?, &asking(s)), "unauthenticated"),
    (
        "has found an old token",
        |s| s.sync(&s.forged(None, SystemTime::now() - Duration::from_hours(2))?, &asking(s)),
        "unauthenticated",
    ),
    ("uses a disabled user's token", |s| s.sync(&s.world.token("off")?, &asking(s)), "forbidden"),
    ("uses a token of nobody", |s| s.sync(&s.world.token("nobody")?, &asking(s)), "unauthenticated"),
    // ann:ann
    ("guesses a password", |s| s.sync_with("", "Authorization: Basic YW5uOmFubg==", &asking(s)), "unauthenticated"),
    ("guesses one for a token", |s| s.send("POST /v1/token HTTP/1.1\r\nAuthorization: Basic YW5uOmFubg==", &[]), "401"),
    (
        "makes another's token of his own",
        |s| s.send(&format!("POST /v1/token?user=ann HTTP/1.1\r\n{}", bearer(&s.eve)), &[]),
        "401",
    ),
    // Other paths
    ("reads the model", |s| s.send(&format!("GET /v1/model HTTP/1.1\r\n{}", bearer(&s.eve)), &[]), "200"),
    (
        "reads the model of a user",
        |s| s.send(&format!("GET /v1/model?name=ann HTTP/1.1\r\n{}", bearer(&s.eve)), &[]),
        "404",
    ),
    (
        "asks for a download that is not his",
        |s| {
            let remote = format!("Headwater-Remote-Id: {}", "00".repeat(16));
            s.send(&format!("GET /v1/download/{} HTTP/1.1\r\n{remote}\r\n{}", "0".repeat(32), bearer(&s.eve)), &[])
        },
        "gone",
    ),
    (
        "sends a piece under a ticket that is not his",
        |s| s.send(&format!("PUT /v1/upload/{}?offset=0 HTTP/1.1\r\n{}", "0".repeat(32), bearer(&s.eve)), b"x"),
        "404",
    ),
    ("looks around", |s| s.send("GET /../../central.db HTTP/1.1", &[]), "404"),
    ("asks how the server is", |s| s.send("GET /ready HTTP/1.1", &[]), "200"),
    // Frames
    (
        "announces a frame without end",
        |s| {
            let mut body = s.hello(110).to_frame().to_bytes();
            body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, FrameKind::Changes as u8, 0, 0, 0, 0, 0, 0, 0]);
            s.sync(&s.eve, &body)
        },
        "too_large",
    ),
];

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

/// What a remote that is new asks.
fn asking(stage: &Stage) -> Vec<u8> {
    request(&stage.hello(99))
}

/// The same claims under `{"alg":"none","typ":"JWT"}`.
fn unsigned(token: &str) -> String {
    format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.", token.split('.').nth(1).unwrap_or_default())
}

/// The upload of the victim's that the server keeps a receipt of: a conflict, and a change that was refused.
fn anns_upload(stage: &Stage, secret: [u8; 32]) -> Vec<u8> {
    let region = stage.marker.region();
    let changes = [
        (CUSTOMER, update(customer("a1", &region, "other", "other"), customer("a1", &region, "other", "ann's"))),
        (CUSTOMER, insert(customer("a9", &region, "code1", "no two of one code"))),
    ];
    stage.upload(Hello { secret, ..stage.hello(ANNS) }, &changes)
}

/// A request of one who has synced and says that he holds a further partition.
fn claiming(stage: &Stage, table: u32, region: &str) -> Result<Vec<u8>> {
    let mut hello = stage.synced(&stage.eve, 101)?;
    let mut partition = vec![1, region.len() as u8];
    partition.extend_from_slice(region.as_bytes());
    hello.watermarks.entries.push(WatermarkEntry { table, partition, mark: 0 });
    Ok(request(&hello))
}

/// An upload to a table that the model doesn't have.
fn naming(stage: &Stage, table: &str) -> Vec<u8> {
    let mut header = stage.world.plan.tables[CUSTOMER].header.clone();
    table.clone_into(&mut header.name);
    let mut body = Hello { has_upload: true, ..stage.hello(108) }.to_frame().to_bytes();
    header.to_frame().write(&mut body);
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    body
}

/// How a request ended: `answered`, the code of the ERROR frame, or the status.
fn outcome(answer: &[u8]) -> Result<String> {
    for frame in frames_in(&body_of(answer)) {
        match frame.kind {
            FrameKind::Error => {
                return Ok(ServerError::from_payload(&frame.payload(1 << 20)?)?.code.name().to_owned());
            }
            FrameKind::Watermarks => return Ok("answered".to_owned()),
            _ => {}
        }
    }
    Ok(String::from_utf8_lossy(answer.get(9..12).context("no status")?).into_owned())
}

#[test]
fn requests_of_every_kind_are_told_nothing_of_another() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        stage.sync(&stage.ann, &anns_upload(&stage, [ANNS; 32]))?;
        let before = stage.victims_rows()?;
        for (name, ask, expected) in ATTACKS {
            let answer = ask(&stage).with_context(|| format!("{kind:?}: {name}"))?;
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{kind:?}: {name}: {found:?}");
            let actual = outcome(&answer)?;
            ensure!(actual == expected, "{kind:?}: {name}: {actual}, expected {expected}");
            ensure!(stage.victims_rows()? == before, "{kind:?}: {name}: the victim's rows were changed");
        }
    }
    Ok(())
}

/// Who knows the partition's very name, and the victim's watermarks, is told to leave it and sent nothing of it.
#[test]
fn a_partition_that_is_only_claimed_is_left() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let anns = stage.synced(&stage.ann, ANNS)?;
        stage.world.central.execute("UPDATE customer SET credit = credit WHERE id = 'a0'")?;
        let hellos = [stage.hello(1), stage.synced(&stage.eve, 1)?];
        for hello in hellos {
            let watermarks = anns.watermarks.clone();
            let asked = Hello { incarnation: anns.incarnation, note: anns.note, watermarks, ..hello };
            let found = stage.marker.found_in(&stage.sync(&stage.eve, &request(&asked))?);
            // The name alone, which he said himself.
            ensure!(found.iter().all(|found| found.starts_with("region ")), "{kind:?}: {found:?}");
            ensure!(found.iter().any(|found| found == "region Partition"), "{kind:?}: not told to leave: {found:?}");
        }
    }
    Ok(())
}

/// A request broken at any place is refused, and what is said of it quotes nothing of another's.
#[test]
fn broken_requests_are_told_nothing() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        let before = stage.victims_rows()?;
        let whole = stage.upload(stage.hello(1), &[(CUSTOMER, insert(customer("t", "south", "t", "t")))]);
        let mut random = Random::seeded(2);
        for round in 0..60 {
            let mut body = whole.clone();
            let place = random.below(body.len() as u64) as usize;
            match round % 3 {
                0 => body.truncate(place),
                1 => body[place] ^= 1 << random.below(8),
                _ => body.insert(place, 0xff),
            }
            let answer = stage.sync(&stage.eve, &body)?;
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{kind:?}: round {round}, byte {place}: {found:?}");
            ensure!(stage.victims_rows()? == before, "{kind:?}: round {round}, byte {place}: rows were changed");
        }
    }
    Ok(())
}
