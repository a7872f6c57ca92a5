//! What a sync is when all is well.

use headwater_access::{Credentials, Secret};
use headwater_protocol::client::{AnswerReader, Expected};
use headwater_protocol::message::{AppliedUpload, Change, ErrorCode, Hello, Receipt, ServerError, Welcome};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Frame, Kind, Limits, Type, Value};

use crate::support::{Answer, Stand, anna, bytes, config, end, request, upload_after};

/// Reads an answer as a remote does: order, limits and all.
fn read_as_a_remote(answer: &Answer, expected: Expected) {
    let mut reader = AnswerReader::new(Limits::ANSWER, expected);
    reader.push(&answer.body);
    while reader.poll().expect("what the protocol says").is_some() {}
    reader.finish().expect("whole");
}

#[test]
fn an_upload_is_applied_answered_and_not_sent_back() {
    let stand = Stand::start(config());
    stand.database().execute("INSERT INTO item VALUES (100, 'there before')", []).expect("a row");
    let answer = stand.sync(&stand.upload(1, &[(1, "one"), (2, "two")]));
    assert_eq!((answer.status, answer.is_complete()), (200, true));
    read_as_a_remote(&answer, Expected { receipt: true, download: true, chunks: false });
    let receipt = Receipt::from_payload(&answer.payload(Kind::Receipt)).expect("a receipt");
    assert_eq!(receipt, Receipt { sequence: 1, changes: 2, outcomes: Vec::new() });
    assert_eq!(stand.items(), 3);
    for (name, value) in
        [("content-type", "application/vnd.headwater.sync"), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
    {
        assert_eq!(answer.header(name), Some(value));
    }
    stand.wait_until_idle();
}

#[test]
fn the_same_upload_again_gives_the_same_receipt_and_nothing_else() {
    let stand = Stand::start(config());
    let body = stand.upload(1, &[(1, "one")]);
    let (first, second) = (stand.sync(&body), stand.sync(&body));
    assert!(first.is_complete() && second.is_complete());
    assert_eq!(first.payload(Kind::Receipt), second.payload(Kind::Receipt));
    let welcome = |answer: &Answer| Welcome::from_payload(&answer.payload(Kind::Welcome)).expect("a welcome");
    assert_eq!((welcome(&first).upload_sequence, welcome(&second).upload_sequence), (0, 1));
    assert_eq!(welcome(&first).incarnation, welcome(&second).incarnation);
    assert_eq!(stand.items(), 1);
}

/// It may have been counted for another database than this one: it comes again under the count that WELCOME names.
#[test]
fn no_upload_is_applied_before_its_remote_has_started_afresh() {
    let stand = Stand::start(config());
    assert!(stand.sync(&stand.download(1)).is_complete());
    let mut row = Vec::new();
    Change { old: None, new: Some(vec![Value::Int(1), Value::text("one")]) }.write(&mut row, &[Type::Int, Type::Text]);
    let upload = [stand.plan.tables[0].header.to_frame(), Frame::packed(Kind::Changes, row)];
    let known = Hello { has_upload: true, ..stand.hello(1) };
    for hello in [Hello { incarnation: [9; 16], ..known.clone() }, Hello { upload_sequence: 5, ..known.clone() }] {
        let answer = stand.sync(&upload_after(&hello, 1, &upload));
        assert_eq!(answer.kinds(), [Kind::Welcome, Kind::Error]);
        let welcome = Welcome::from_payload(&answer.payload(Kind::Welcome)).expect("a welcome");
        assert!(welcome.restart && welcome.upload_sequence == 0);
        let error = ServerError::from_payload(&answer.payload(Kind::Error)).expect("an error");
        assert_eq!((error.code, stand.items()), (ErrorCode::Behind, 0));
    }
    assert!(stand.sync(&upload_after(&known, 1, &upload)).is_complete());
    assert_eq!(stand.items(), 1);
    stand.wait_until_idle();
}

/// Another file's upload has the number of one of its own: it is told what of its uploads is there, and to take a new remote ID.
#[test]
fn a_file_whose_uploads_another_has_replaced_is_told() {
    let stand = Stand::start(config());
    let item = |id: i64| {
        let mut row = Vec::new();
        let new = Some(vec![Value::Int(id), Value::text("x")]);
        Change { old: None, new }.write(&mut row, &[Type::Int, Type::Text]);
        [stand.plan.tables[0].header.to_frame(), Frame::packed(Kind::Changes, row)]
    };
    let upload = |number: u64, frames: &[Frame]| {
        let mut digest = Digest::new();
        for frame in frames {
            digest.add(frame.kind, &frame.payload(1 << 20).expect("a payload"));
        }
        AppliedUpload::new(number, &digest.finish())
    };
    let after = |number: u64| Hello { has_upload: true, upload_sequence: number, ..stand.hello(1) };
    for number in 0..3 {
        assert!(stand.sync(&upload_after(&after(number), 1, &item(number as i64))).is_complete());
    }
    let common = upload(1, &item(0));
    let cases = [
        (3, vec![upload(3, &item(7)), upload(2, &item(8)), common], Some(1)),
        (2, vec![upload(2, &item(8)), common], Some(1)),
        (4, vec![upload(4, &item(6)), upload(3, &item(7)), common], Some(1)),
        (3, vec![upload(3, &item(7))], Some(0)),
        (3, vec![upload(3, &item(2)), upload(2, &item(1)), common], None),
        (3, Vec::new(), None),
    ];
    for (number, uploads, common) in cases {
        for has_upload in [true, false] {
            let hello = Hello { uploads: uploads.clone(), has_upload, ..after(number) };
            let body = match (has_upload, common) {
                (true, Some(_)) => upload_after(&hello, 1, &item(9)),
                _ => bytes(&[Hello { has_upload: false, ..hello }.to_frame(), end()]),
            };
            let answer = stand.sync(&body);
            let welcome = Welcome::from_payload(&answer.payload(Kind::Welcome)).expect("a welcome");
            assert_eq!(
                (welcome.restart, welcome.upload_sequence),
                (common.is_some(), common.unwrap_or(3)),
                "{uploads:?}"
            );
            assert_eq!(answer.is_complete(), common.is_none(), "{uploads:?}");
            if common.is_some() {
                let error = ServerError::from_payload(&answer.payload(Kind::Error)).expect("an error");
                assert_eq!((answer.kinds().len(), error.code), (2, ErrorCode::Copy));
            }
        }
    }
    assert_eq!(stand.items(), 3, "nothing of it is applied");
    stand.wait_until_idle();
}

#[test]
fn a_download_larger_than_memory_goes_through_a_file() {
    let config = headwater_server::Config { spool_memory_bytes: 10_000, ..config() };
    let stand = Stand::start(config);
    stand.fill(20_000);
    let answer = stand.sync(&stand.download(1));
    assert!(answer.is_complete());
    read_as_a_remote(&answer, Expected { receipt: false, download: true, chunks: false });
    assert_eq!(answer.rows(), 20_000);
    stand.wait_until_idle();
}

#[test]
fn an_upload_larger_than_memory_goes_through_a_file() {
    let stand = Stand::start(headwater_server::Config { spool_memory_bytes: 10_000, ..config() });
    let rows: Vec<(i64, String)> =
        (0..5_000_i64).map(|id| (id, format!("name {:x}", id.wrapping_mul(0x9E37_79B9_7F4A)))).collect();
    let rows: Vec<(i64, &str)> = rows.iter().map(|(id, name)| (*id, name.as_str())).collect();
    assert!(stand.sync(&stand.upload(1, &rows)).is_complete());
    assert_eq!(stand.items(), 5_000);
    stand.wait_until_idle();
}

#[test]
fn a_body_in_small_chunks_is_the_same() {
    let stand = Stand::start(config());
    let body = stand.upload(1, &[(1, "one"), (2, "two")]);
    let mut client = crate::support::Client::connect(stand.address);
    client.send(&crate::support::head("POST", "/v1/sync", Some(&anna()), None));
    for piece in body.chunks(7) {
        client.send(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
    }
    client.send(b"0\r\n\r\n");
    assert!(client.answer().is_complete());
    // The connection goes on.
    client.send(&crate::support::head("GET", "/health", None, Some(0)));
    assert_eq!(client.answer().status, 200);
    assert_eq!(stand.items(), 2);
}

#[test]
fn a_token_stands_for_the_password() {
    let stand = Stand::start(config());
    let answer = request(stand.address, "POST", "/v1/token", Some(&anna()));
    let json = answer.json();
    assert_eq!((answer.status, &json["expires_in_s"]), (200, &serde_json::json!(900)));
    let token = Credentials::Token(Secret::new(json["token"].as_str().expect("a token")));
    let model = stand.get("/v1/model", Some(&token));
    assert_eq!(String::from_utf8(model.body).expect("text"), stand.plan.model.to_json());
    let again = request(stand.address, "POST", "/v1/token", Some(&token));
    assert_eq!(again.status, 401, "a token does not prolong itself");
}

#[test]
fn models_are_found_by_name_and_version() {
    let stand = Stand::start(config());
    for (query, status) in [
        ("", 200),
        ("?name=shop", 200),
        ("?name=shop&version=3", 200),
        ("?version=3", 200),
        ("?name=shop&version=4", 404),
        ("?name=other", 404),
        ("?version=x", 400),
    ] {
        assert_eq!(stand.get(&format!("/v1/model{query}"), Some(&anna())).status, status, "{query}");
    }
    assert_eq!(stand.get("/v1/model", None).status, 401);
}

#[test]
fn readiness_shows_the_load() {
    let stand = Stand::start(config());
    assert_eq!(stand.get("/health", None).status, 200);
    let answer = stand.get("/ready", None);
    let json = answer.json();
    assert_eq!((answer.status, &json["ready"], &json["database"]), (200, &true.into(), &true.into()));
    let load = |name: &str| json["load"][name].as_u64();
    assert_eq!((load("workers"), load("workers_max"), load("workers_busy")), (Some(4), Some(32), Some(0)));
    assert_eq!(json["connections"], 1);
}
