//! Requests, as `headwater lab` makes and counts them: against the lab's own server, a real Squid, and servers that fail.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_lab::Error;
use headwater_lab::campaign::{Campaign, Event};
use headwater_lab::experiment::Experiment;
use headwater_lab::harness::{Measured, RunFailure};
use headwater_lab::plan::Plan;
use headwater_lab::results::{self, CellSummary, CellTable, Writer};
use headwater_testkit::{Squid, free_port};
use tokio::sync::watch;

/// What became of an experiment.
struct Ran {
    cells: Vec<CellSummary>,
    table: CellTable,
    /// Of each run, in the order of the experiment.
    measured: Vec<Option<Measured>>,
    failures: Vec<Option<RunFailure>>,
    /// Failures by cell and class.
    errors: BTreeMap<(u64, String), (u64, String)>,
    ended: Result<(), Error>,
}

fn run(rest: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("name = \"http\"\norder = \"abba\"\nscenario.name = \"http\"\nseed = 7\n{rest}");
    let experiment = Experiment::parse("x.toml", &text, &|_| Err("none".to_owned()));
    let experiment = experiment.unwrap_or_else(|errors| panic!("{errors:#?}"));
    let plan = Plan::new(&experiment, 7);
    let path = folder.path().join("x.lab");
    let writer = Writer::create(&path, &experiment, &plan).expect("results");
    let campaign = Campaign::new(&experiment, &plan, None, folder.path()).expect("a campaign");
    let (_never, interrupt) = watch::channel(false);
    let (mut measured, mut failures) = (Vec::new(), Vec::new());
    let mut watch = |event: Event<'_>| {
        if let Event::Ended(_, outcome, _) = event {
            measured.push(outcome.measured.clone());
            failures.push(outcome.failure.clone());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ended = runtime.block_on(campaign.run(&writer, &interrupt, &mut watch)).map(|_| ());
    let campaign = results::Campaign::open(&path).expect("results");
    let cells = campaign.summary().expect("a summary");
    let table = CellTable::of(&cells, &campaign.varied().expect("keys"));
    let errors = campaign.errors().expect("errors").into_iter();
    let errors = errors.map(|(cell, class, count, said)| ((cell, class), (count, said))).collect();
    Ran { cells, table, measured, failures, errors, ended }
}

#[test]
fn every_level_of_compression_brings_the_same_content() {
    let ran = run("scenario.compression = [0, 1, 5, 9]\nscenario.column = [\"int\", \"blob\"]\n\
                   scenario.compressed = [\"once\", \"each\"]\nscenario.hit_ratio = 0.5\ntarget.url = \"origin:\"\n\
                   load.clients = 3\nstop.iterations = 20");
    assert_eq!(ran.failures, vec![None; 16]);
    for cell in &ran.cells {
        let traffic = cell.traffic;
        assert_eq!((cell.operations, cell.errors), (20, 0), "{:?}", cell.values);
        assert_eq!(traffic.content_bytes, 20 * 30_000);
        let heads = traffic.received_bytes - traffic.body_bytes;
        assert!(20 * 50 < heads && heads < 20 * 400, "{heads} bytes of heads");
        assert!(20 * 40 < traffic.sent_bytes && traffic.sent_bytes < 20 * 400, "{traffic:?}");
        assert_eq!(cell.hit_percent(), None, "there is no cache");
        let percent = cell.payload_percent().expect("something came");
        match (cell.value("scenario.compression"), cell.value("scenario.column")) {
            ("0", _) => assert!((percent - 100.0).abs() < 1e-9, "{percent}"),
            // Random bytes don't become fewer; whole numbers below a million have a byte that is 0.
            (_, "blob") => assert!((100.0..102.0).contains(&percent), "{percent}"),
            _ => assert!((50.0..90.0).contains(&percent), "{percent}"),
        }
    }
    assert_eq!(ran.table.head[ran.table.head.len() - 7..][5..], ["body %", "hits %"]);
}

/// The share of hits that the file asks for is what Squid has, and only the others come to the server.
#[test]
fn squid_hits_what_the_experiment_says() {
    let squid = Squid::start().expect("Squid");
    let ran = run(&format!(
        "scenario.hit_ratio = [0.9, 0.0, 1.0]\nscenario.payload_bytes = 2000\ntarget.url = \"origin:\"\n\
         target.proxy = {:?}\nload.clients = 4\nstop.iterations = 1000",
        squid.url()
    ));
    assert_eq!(ran.failures, [None, None, None], "what Squid calls a hit did not come to the server");
    let told = |cell: &CellSummary| (cell.operations, cell.traffic.hits, cell.traffic.misses);
    let (operations, hits, misses) = told(&ran.cells[0]);
    assert_eq!((operations, hits + misses), (1000, 1000), "Squid tells of each");
    assert!((870..=930).contains(&hits), "{hits} of 1000 with a ratio of 0.9");
    assert_eq!((told(&ran.cells[1]), told(&ran.cells[2])), ((1000, 0, 1000), (1000, 1000, 0)));
    // What Squid writes down itself, with the requests before the runs, one each.
    let answers = squid.answers("/int/2000/0");
    let all = |what: &str| answers.iter().filter(|answer| answer.contains(what)).count() as u64;
    assert_eq!((all("HIT/200"), all("MISS/200")), (hits + 1000, misses + 1000 + 3), "{:?}", answers.first());
    assert_eq!(answers.len(), 3003);
}

/// A request's head; none: the client is gone.
fn head(stream: &mut TcpStream) -> Option<String> {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    while !heard.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => heard.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    }
    String::from_utf8(heard).ok()
}

/// A server of which each answer is what `answers` says by its number, over a connection that is closed after it.
fn serve(answers: impl Fn(usize) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/rows", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut number = 0;
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            if head(&mut stream).is_some() {
                let _ = stream.write_all(&answers(number));
                number += 1;
            }
        }
    });
    url
}

/// A proxy that fetches each answer anew, and says that it had it.
fn liar() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let Some(heard) = head(&mut stream) else { continue };
            let Some((place, path)) = heard.strip_prefix("GET http://").and_then(|rest| rest.split_once('/')) else {
                continue;
            };
            let path = path.split(' ').next().unwrap_or_default();
            let mut server = TcpStream::connect(place).expect("the server");
            write!(server, "GET /{path} HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\n\r\n").expect("asked");
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).expect("an answer");
            let line = answer.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
            let _ = stream.write_all(&[&answer[..line], b"x-cache: HIT from liar\r\n", &answer[line..]].concat());
        }
    });
    url
}

#[test]
fn hits_that_came_to_the_server_fail_the_run() {
    let ran = run(&format!(
        "scenario.hit_ratio = 0.5\ntarget.url = \"origin:\"\ntarget.proxy = {:?}\nstop.iterations = 10",
        liar()
    ));
    let [Some(RunFailure::Verify(faults))] = &ran.failures[..] else { panic!("{:?}", ran.failures) };
    let said =
        "not so: what caches call hits never came to the server (10 requests came to the server, of 10 with 10 hits)";
    assert_eq!(faults, &[said]);
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n123456789";

#[test]
fn what_is_no_whole_answer_fails_in_its_class() {
    let gzip = |length: &str| format!("HTTP/1.1 200 OK\r\n{length}content-encoding: gzip\r\nconnection: close\r\n\r\n");
    let of = |text: &str, rest: &[u8]| [text.as_bytes(), rest].concat();
    let cut = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let cases: [(&str, Vec<u8>); 9] = [
        ("HTTP 404", of("HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone", b"")),
        ("HTTP 503", of("HTTP/1.1 503 Overloaded\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", b"")),
        ("truncated", of("HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n1234", b"")),
        (
            "truncated",
            of("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n9\r\n123456789\r\n", b""),
        ),
        ("truncated", of(&gzip(""), &cut)),
        ("checksum", of(&gzip("content-length: 10\r\n"), &cut)),
        ("checksum", of(&WHOLE.replace("123456789", "123456780"), b"")),
        ("size", of(&WHOLE.replace("content-length: 9", "content-length: 8"), b"")),
        ("lost", Vec::new()),
    ];
    for (class, answer) in cases {
        // Each second answer is right; the request before the run has the first.
        let url = serve(move |number| if number % 2 == 0 { WHOLE.into() } else { answer.clone() });
        let ran = run(&format!(
            "scenario.expect_bytes = 9\nscenario.expect_crc32 = \"cbf43926\"\ntarget.url = {url:?}\n\
             scenario.connection = \"new\"\nstop.iterations = 10"
        ));
        let cell = &ran.cells[0];
        assert_eq!((cell.operations, cell.errors, cell.failures.as_slice()), (5, 5, &[][..]), "{class}");
        assert_eq!(ran.errors.keys().collect::<Vec<_>>(), [&(1, class.to_owned())], "{:?}", ran.errors);
        assert!((cell.failed_percent() - 50.0).abs() < 1e-9);
        assert_eq!(cell.traffic.content_bytes, 5 * 9, "only what succeeded is counted");
    }
}

/// How many connections come of ten requests by two clients; one comes from the look before anything is run, and one with the first request.
fn connections(kind: &str) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/rows", listener.local_addr().expect("an address"));
    let (count, counted) = (Arc::new(AtomicU64::new(0)), WHOLE.replace("connection: close\r\n", ""));
    let seen = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            let (mut stream, answer) = (stream, counted.clone());
            std::thread::spawn(
                move || while head(&mut stream).is_some() && stream.write_all(answer.as_bytes()).is_ok() {},
            );
        }
    });
    let ran = run(&format!(
        "scenario.connection = {kind:?}\nscenario.expect_bytes = 9\ntarget.url = {url:?}\nload.clients = 2\nstop.iterations = 10"
    ));
    assert_eq!((ran.cells[0].operations, ran.cells[0].errors), (10, 0), "{:?}", ran.errors);
    seen.load(Ordering::Relaxed)
}

#[test]
fn connections_are_kept_or_not_as_the_experiment_says() {
    assert_eq!(connections("kept"), 2 + 2);
    // Clients come with one, for their first request.
    assert_eq!(connections("new"), 2 + 10);
}

#[test]
fn a_server_that_says_nothing_is_timed_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let ran = run(&format!("target.url = {url:?}\nload.timeout = \"100ms\"\nstop.iterations = 3"));
    assert_eq!(ran.errors[&(1, "time-out".to_owned())].0, 3, "{:?}", ran.errors);
    assert!(matches!(&ran.failures[..], [Some(RunFailure::NothingDone(_))]), "{:?}", ran.failures);
    drop(listener);
}

#[test]
fn nobody_there_is_told_before_anything_is_run() {
    let url = format!("http://127.0.0.1:{}/", free_port().expect("a port"));
    let ran = run(&format!("target.url = {url:?}\nstop.iterations = 3"));
    let Err(Error::Target(failure)) = ran.ended else { panic!("{:?}", ran.ended) };
    assert_eq!(failure.class.to_string(), "refused", "{failure}");
    assert!(ran.measured.is_empty());
}

/// A server that stops listening meanwhile: clients are refused, and then it is lost.
#[test]
fn a_server_that_goes_is_refused_and_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        // The look, the request before the run, and the client's first.
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(WHOLE.as_bytes());
        }
    });
    let ran = run(&format!("target.url = {url:?}\nload.timeout = \"200ms\"\nstop.iterations = 3000000"));
    assert!(matches!(ran.ended, Err(Error::Lost(_))), "{:?}", ran.ended);
    assert!(ran.errors.keys().any(|(_, class)| class == "refused"), "{:?}", ran.errors);
    assert_eq!(ran.measured[0].as_ref().map(|measured| measured.operations), Some(1));
}

/// As many bytes as the links let through in the time that it took, and no more than the bucket keeps beside.
#[test]
fn links_are_held() {
    let ran = run("scenario.link_bits_per_s = 2_000_000\nscenario.payload_bytes = 50_000\ntarget.url = \"origin:\"\n\
                   load.clients = 2\nstop.iterations = 8");
    let measured = ran.measured[0].as_ref().expect("measured");
    let bytes = measured.attempts.traffic.received_bytes as f64;
    let most = 2.0 * 250_000.0 * (measured.elapsed + Duration::from_millis(10)).as_secs_f64();
    assert!(8.0 * 50_000.0 < bytes && bytes <= most, "{bytes} bytes in {:?}", measured.elapsed);
}
