//! Requests that are not what they should be: each has its code, and nothing of it is applied.

use headwater_protocol::message::{ErrorCode, Hello};
use headwater_protocol::{Frame, Kind};
use headwater_server::Config;

use crate::support::{Client, Stand, anna, bytes, config, end, head};

struct Case {
    name: &'static str,
    body: Vec<u8>,
    status: u16,
    code: ErrorCode,
}

fn case(name: &'static str, status: u16, code: ErrorCode, body: Vec<u8>) -> Case {
    Case { name, body, status, code }
}

fn changed(body: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = body.to_vec();
    change(&mut body);
    body
}

/// What can be wrong with a request whose upload would insert two rows.
fn cases(stand: &Stand) -> Vec<Case> {
    use ErrorCode::{Damaged, Malformed, ModelChanged, ModelUnknown, TooLarge, UnsupportedVersion};
    let good = stand.upload(1, &[(1, "one"), (2, "two")]);
    let hello = stand.hello(1);
    let hello_bytes = hello.to_frame().wire_bytes();
    let last = end().wire_bytes();
    let with = |hello: Hello| bytes(&[hello.to_frame(), end()]);
    let version = |number: u8| {
        let payload = hello.to_frame().payload(1 << 20).expect("a payload").into_owned();
        bytes(&[Frame::new(Kind::Hello, changed(&payload, |payload| payload[0] = number)), end()])
    };
    vec![
        case("empty", 400, Damaged, Vec::new()),
        case("no frames", 400, Malformed, b"\x08\0\0\0 and other noise".to_vec()),
        case("text", 413, TooLarge, b"GET / HTTP/1.1".to_vec()),
        case("a length of 4 GiB", 413, TooLarge, changed(&good, |b| b[..4].fill(0xff))),
        case("a length of 4 GiB later", 413, TooLarge, changed(&good, |b| b[hello_bytes..hello_bytes + 4].fill(0xff))),
        case("a flipped bit in a payload", 400, Damaged, changed(&good, |b| b[hello_bytes + 20] ^= 0x10)),
        case("a flipped bit in a checksum", 400, Damaged, changed(&good, |b| b[hello_bytes + 9] ^= 0x10)),
        case("cut before END", 400, Damaged, good[..good.len() - last].to_vec()),
        case("cut in a frame", 400, Damaged, good[..good.len() - last - 5].to_vec()),
        case("bytes after END", 400, Malformed, [good.clone(), bytes(&[end()])].concat()),
        case("no HELLO", 400, Malformed, bytes(&[end()])),
        case("an unknown kind", 400, Malformed, changed(&good, |b| b[4] = 0x7f)),
        case("version 0", 400, UnsupportedVersion, version(0)),
        case("version 2", 400, UnsupportedVersion, version(2)),
        case("an unknown model", 404, ModelUnknown, with(Hello { model: "other".into(), ..hello.clone() })),
        case("an unknown version", 404, ModelUnknown, with(Hello { model_version: 4, ..hello.clone() })),
        case("another fingerprint", 409, ModelChanged, with(Hello { fingerprint: 1, ..hello.clone() })),
        case("another digest", 400, Malformed, other_digest(stand)),
    ]
}

/// The frames of one upload under the digest of another.
fn other_digest(stand: &Stand) -> Vec<u8> {
    let (one, other) = (stand.upload(1, &[(1, "one")]), stand.upload(1, &[(1, "two")]));
    let (mut one, other) = (crate::support::frames(&one), crate::support::frames(&other));
    one[3] = other[3].clone();
    bytes(&one)
}

#[test]
fn each_has_its_status_and_code_and_nothing_is_applied() {
    let stand = Stand::start(config());
    for case in cases(&stand) {
        let answer = stand.sync(&case.body);
        let error = answer.error();
        assert_eq!((answer.status, error.code), (case.status, case.code), "{}: {}", case.name, error.message);
        assert_eq!(answer.frames().len(), 1, "{}", case.name);
    }
    assert_eq!(stand.items(), 0);
    stand.wait_until_idle();
    assert!(stand.sync(&stand.upload(1, &[(1, "one")])).is_complete(), "nothing is left of it");
}

#[test]
fn what_only_shows_when_it_is_applied_is_an_error_frame() {
    let stand = Stand::start(config());
    let header = stand.plan.tables[0].header.to_frame();
    let mut other_table = stand.plan.tables[0].header.clone();
    other_table.name = "account".into();
    let noise = Frame::new(Kind::Changes, vec![1, 0xff, 0xff, 0xff]);
    for (name, frames) in
        [("changes that are none", vec![header.clone(), noise]), ("another table's name", vec![other_table.to_frame()])]
    {
        let answer = stand.sync(&stand.upload_frames(1, 1, &frames));
        assert_eq!((answer.status, answer.error().code), (200, ErrorCode::Malformed), "{name}");
        assert!(!answer.kinds().contains(&Kind::Receipt), "{name}");
    }
    assert_eq!(stand.items(), 0);
    stand.wait_until_idle();
}

#[test]
fn limits_are_held_while_the_body_comes() {
    let limits = Config { upload_bytes_max: 50_000, frame_bytes_max: 20_000, upload_frames_max: 100, ..config() };
    let stand = Stand::start(limits);
    let frames = |count: usize, bytes_each: usize| {
        let mut frames = vec![stand.plan.tables[0].header.to_frame()];
        frames.extend((0..count).map(|_| Frame::new(Kind::Changes, vec![0; bytes_each])));
        stand.upload_frames(1, 1, &frames)
    };
    let zeros = vec![stand.plan.tables[0].header.to_frame(), Frame::packed(Kind::Changes, vec![0; 30_000])];
    for (name, body) in [
        ("one large frame", frames(1, 20_001)),
        ("one that is large uncompressed", stand.upload_frames(1, 1, &zeros)),
        ("many frames", frames(101, 1)),
        ("much in all", frames(3, 19_000)),
    ] {
        // Chunked, so that no length is announced.
        let mut client = Client::connect(stand.address);
        client.send(&head("POST", "/v1/sync", Some(&anna()), None));
        client.send(&[format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat());
        let answer = client.answer();
        assert_eq!((answer.status, answer.error().code), (413, ErrorCode::TooLarge), "{name}");
    }
    // Announced, it is refused before anything of it comes.
    let mut client = Client::connect(stand.address);
    client.send(&head("POST", "/v1/sync", Some(&anna()), Some(50_001)));
    client.answer().expect_error(413, ErrorCode::TooLarge);
    stand.wait_until_idle();
}

#[test]
fn a_remote_id_with_another_secret_is_refused() {
    let stand = Stand::start(config());
    assert!(stand.sync(&stand.download(1)).is_complete());
    let stranger = Hello { secret: [9; 32], ..stand.hello(1) };
    let answer = stand.sync(&bytes(&[stranger.to_frame(), end()]));
    assert_eq!((answer.status, answer.error().code), (200, ErrorCode::WrongSecret));
    assert_eq!(answer.kinds(), [Kind::Error]);
}

#[test]
fn paths_and_methods_that_there_are_not() {
    let stand = Stand::start(config());
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v1/sync", 405),
        ("GET", "/v1/token", 405),
        ("POST", "/v1/model", 405),
        ("GET", "/v1/sync/../../etc/passwd", 404),
    ] {
        let answer = crate::support::request(stand.address, method, path, Some(&anna()));
        assert_eq!(answer.status, status, "{method} {path}");
    }
}
