//! Downloads that break are resumed by their ID: by those whom they were read for, for a while, within bounds.

use headwater_access::{Credentials, Secret, hash_password};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, system};
use headwater_protocol::message::{Download, ErrorCode, Hello};
use headwater_protocol::{Frame, Kind};
use headwater_server::Config;

use crate::support::{Answer, Client, Stand, anna, bytes, config, end, frames};

const ROWS: u64 = 300_000;

fn keeping() -> Config {
    Config { kept_ms: 60_000, ..config() }
}

/// A download whose client goes after so many bytes of the answer's body: what came.
fn broken(stand: &Stand, remote: u8, bytes: usize) -> Vec<u8> {
    let mut client = stand.post(&stand.download(remote));
    assert_eq!(client.head().0, 200);
    let mut body = Vec::new();
    while body.len() < bytes {
        body.extend(client.chunk().expect("more"));
    }
    body
}

fn download_of(body: &[u8]) -> Download {
    let frame = frames(body).into_iter().find(|frame| frame.kind == Kind::Download).expect("DOWNLOAD");
    Download::from_payload(&frame.payload(100).expect("a payload")).expect("a download")
}

/// Bytes of the download in an answer that breaks off, whole frames alone.
fn offset_of(body: &[u8]) -> usize {
    frames(body).iter().filter(|frame| frame.kind != Kind::Welcome).map(Frame::wire_bytes).sum()
}

struct Ask {
    id: String,
    offset: String,
    remote: String,
    credentials: Option<Credentials>,
}

impl Ask {
    fn of(download: &Download, offset: usize, remote: u8) -> Ask {
        let hex = |bytes: [u8; 16]| format!("{:032x}", u128::from_be_bytes(bytes));
        Ask { id: hex(download.id), offset: offset.to_string(), remote: hex([remote; 16]), credentials: Some(anna()) }
    }

    fn send(&self, stand: &Stand) -> Client {
        let authorization = self
            .credentials
            .as_ref()
            .map_or_else(String::new, |who| format!("Authorization: {}\r\n", who.to_header().expose()));
        let mut client = Client::connect(stand.address);
        let head = format!(
            "GET /v1/download/{}?offset={} HTTP/1.1\r\nHost: headwater\r\n{authorization}Headwater-Remote-Id: {}\r\n\r\n",
            self.id, self.offset, self.remote
        );
        client.send(head.as_bytes());
        client
    }

    fn answer(&self, stand: &Stand) -> Answer {
        self.send(stand).answer()
    }
}

#[test]
fn the_rest_of_a_broken_download_is_all_that_is_sent() {
    let stand = Stand::start(keeping());
    stand.fill(ROWS);
    let mut body = broken(&stand, 1, 3 << 20);
    let download = download_of(&body);
    assert_eq!(download.resumable_s, 60);
    // It breaks again, and again; the last answer is taken whole.
    for _ in 0..3 {
        let whole = frames(&body).iter().map(Frame::wire_bytes).sum();
        body.truncate(whole);
        let mut client = Ask::of(&download, offset_of(&body), 1).send(&stand);
        let (status, headers) = client.head();
        assert_eq!(status, 200);
        assert!(headers.contains(&("x-accel-buffering".to_owned(), "no".to_owned())), "{headers:?}");
        for _ in 0..20 {
            body.extend(client.chunk().expect("more"));
        }
    }
    let whole = frames(&body).iter().map(Frame::wire_bytes).sum();
    body.truncate(whole);
    let rest = Ask::of(&download, offset_of(&body), 1).answer(&stand);
    assert!(rest.is_complete());
    assert!(rest.body.len() < 9 << 20, "{} bytes came again", rest.body.len());
    let all = Answer { body: [body, rest.body].concat(), ..rest };
    assert_eq!((all.rows(), all.kinds().first(), all.kinds().last()), (ROWS, Some(&Kind::Welcome), Some(&Kind::End)));
    // Its end may have been lost: that is to be had as well, and from the midst of a frame too.
    let end = Ask::of(&download, offset_of(&all.body) - end().wire_bytes(), 1).answer(&stand);
    assert_eq!(end.kinds(), [Kind::End]);
    let part = Ask::of(&download, 7, 1).answer(&stand);
    assert!(all.body.ends_with(&part.body));
}

/// The worker goes on although the client has gone.
#[test]
fn a_download_is_read_to_its_end_for_a_client_that_comes_back() {
    let stand = Stand::start(keeping());
    stand.fill(ROWS);
    let download = download_of(&broken(&stand, 1, 1000));
    let ready = stand.wait_until("the worker given back", |ready| ready["load"]["workers_busy"] == 0);
    let held = |what: &str| ready[what].as_u64().expect("a count");
    assert!(held("spool_memory_bytes") + held("spool_file_bytes") > ROWS * 10, "{ready}");
    assert_eq!(Ask::of(&download, 0, 1).answer(&stand).rows(), ROWS);
}

#[test]
fn it_is_gone_for_everybody_else() {
    let stand = Stand::start(keeping());
    stand.fill(ROWS);
    let hash = hash_password(&Secret::new("secret")).expect("a hash");
    let mut connection = Sqlite::new(stand.file()).connect().expect("a connection");
    assert!(system::add_account(&mut *connection, "bert", &hash).expect("an account"));
    let download = download_of(&broken(&stand, 1, 1 << 20));
    let ask = || Ask::of(&download, 0, 1);
    let bert = Credentials::Password { user: "bert".into(), password: Secret::new("secret") };
    let gone = [
        ("another user", Ask { credentials: Some(bert), ..ask() }),
        ("another remote", Ask { remote: "02".repeat(16), ..ask() }),
        ("another ID", Ask { id: "ab".repeat(16), ..ask() }),
        ("more than there is", Ask { offset: u64::MAX.to_string(), ..ask() }),
        ("more than there is yet", Ask { offset: (1u64 << 40).to_string(), ..ask() }),
    ];
    for (what, ask) in gone {
        let error = ask.answer(&stand).expect_error(410, ErrorCode::Gone);
        assert!(error.message.contains("not kept here"), "{what}: {}", error.message);
    }
    let malformed = [
        ("offset \"-1\"", Ask { offset: "-1".into(), ..ask() }),
        ("offset \"x\"", Ask { offset: "x".into(), ..ask() }),
        ("download ID \"12\"", Ask { id: "12".into(), ..ask() }),
        ("Headwater-Remote-Id", Ask { remote: "zz".repeat(16), ..ask() }),
        ("Headwater-Remote-Id", Ask { remote: String::new(), ..ask() }),
    ];
    for (what, ask) in malformed {
        let error = ask.answer(&stand).expect_error(400, ErrorCode::Malformed);
        assert!(error.message.contains(what) && error.message.contains("expected"), "{what}: {}", error.message);
    }
    Ask { credentials: None, ..ask() }.answer(&stand).expect_error(401, ErrorCode::Unauthenticated);
    assert!(ask().answer(&stand).is_complete(), "it is still there for whom it is");
}

#[test]
fn whoever_only_names_the_remote_does_not_end_it() {
    let stand = Stand::start(keeping());
    stand.fill(ROWS);
    let download = download_of(&broken(&stand, 1, 1 << 20));
    stand.wait_until("the worker given back", |ready| ready["load"]["workers_busy"] == 0);
    let thief = Hello { secret: [9; 32], ..stand.hello(1) };
    let answer = stand.sync(&bytes(&[Hello { wants_download: true, ..thief }.to_frame(), end()]));
    assert_eq!(answer.error().code, ErrorCode::WrongSecret);
    assert!(Ask::of(&download, 0, 1).answer(&stand).is_complete());
}

#[test]
fn it_is_gone_after_another_sync_and_after_its_time() {
    let stand = Stand::start(keeping());
    stand.fill(ROWS);
    let download = download_of(&broken(&stand, 1, 1 << 20));
    let other = download_of(&broken(&stand, 2, 1 << 20));
    stand.wait_until("the workers given back", |ready| ready["load"]["workers_busy"] == 0);
    assert!(stand.sync(&stand.download(1)).is_complete());
    Ask::of(&download, 0, 1).answer(&stand).expect_error(410, ErrorCode::Gone);
    assert!(Ask::of(&other, 0, 2).answer(&stand).is_complete(), "another remote's is kept");

    let stand = Stand::start(Config { kept_ms: 1, ..keeping() });
    stand.fill(ROWS);
    let download = download_of(&broken(&stand, 1, 1 << 20));
    stand.wait_until_idle();
    Ask::of(&download, 0, 1).answer(&stand).expect_error(410, ErrorCode::Gone);
    assert_eq!(stand.ready()["downloads_kept"], 0);
}

#[test]
fn what_is_kept_is_bounded() {
    let few = Config { kept_downloads_max: 1, ..keeping() };
    let small = Config { kept_bytes_max: 10_000_000, ..keeping() };
    for config in [few, small] {
        let stand = Stand::start(config);
        stand.fill(ROWS);
        let first = download_of(&broken(&stand, 1, 1 << 20));
        stand.wait_until("the first kept", |ready| ready["syncs"] == 0 && ready["load"]["workers_busy"] == 0);
        let second = download_of(&broken(&stand, 2, 1 << 20));
        stand.wait_until("one kept", |ready| ready["syncs"] == 0 && ready["downloads_kept"] == 1);
        Ask::of(&first, 0, 1).answer(&stand).expect_error(410, ErrorCode::Gone);
        assert!(Ask::of(&second, 0, 2).answer(&stand).is_complete());
    }
}

#[test]
fn nothing_is_left_of_one_that_got_too_large_to_keep() {
    let stand = Stand::start(Config { kept_bytes_max: 1 << 20, ..keeping() });
    stand.fill(ROWS);
    assert!(download_of(&broken(&stand, 1, 1 << 20)).resumable_s > 0);
    stand.wait_until("nothing kept", |ready| ready["syncs"] == 0 && ready["downloads_kept"] == 0);
}

#[test]
fn small_downloads_and_those_of_a_server_that_keeps_none_say_so() {
    let stand = Stand::start(keeping());
    stand.fill(10);
    assert_eq!(download_of(&stand.sync(&stand.download(1)).body).resumable_s, 0);
    assert_eq!(stand.ready()["downloads_kept"], 0);
    let stand = Stand::start(config());
    stand.fill(ROWS);
    assert_eq!(download_of(&stand.sync(&stand.download(1)).body).resumable_s, 0);
}
