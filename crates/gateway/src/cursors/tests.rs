//! Cursors over a SQLite file, and a pipe in the place of a socket.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use headwater_access::{Access, Settings as AccessSettings};
use headwater_bufferpool::{Config as PoolConfig, Pools};
use headwater_consolidated::sqlite::Sqlite;
use headwater_protocol::cursor::{Client, Event, Question};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::query::Query;
use crate::service::Settings;

const MANY: &str = "-- public = true\n-- [parameters]\n-- count = { type = \"int\" }\n\
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) SELECT i FROM n";

struct Stand {
    client: Client,
    pipe: DuplexStream,
    events: Vec<Event>,
    /// Messages and rows that have come of each cursor.
    came: BTreeMap<u64, (usize, u64)>,
    packing: Knobs,
    _folder: tempfile::TempDir,
    stop: watch::Sender<Option<Instant>>,
}

impl Stand {
    fn new(settings: CursorSettings) -> Stand {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("central.db");
        rusqlite::Connection::open(&file).expect("a file");
        let backend = Arc::new(Sqlite::new(&file));
        let pool = QueryPool::for_queries(backend, settings.cursors_max);
        let queries = [("many.sql", MANY), ("known.sql", "SELECT 1 AS a")];
        let queries = queries.map(|(file, text)| Query::parse(file, text).expect("sound")).to_vec();
        let access = Access::without_accounts(AccessSettings::default());
        let pools = Arc::new(Pools::new(&PoolConfig::default(), None).expect("a pool"));
        let service = Arc::new(Service::new(queries, pool.clone(), access, Settings::default(), pools));
        let cursors = Arc::new(Cursors::new(service, settings, pool, None, None));
        let packing = cursors.packing().clone();
        let (near, far) = tokio::io::duplex(1 << 16);
        let (stop, stopping) = watch::channel(None);
        let asker = Asker::new(&HeaderMap::new(), None);
        tokio::spawn(Connection::new(cursors, asker, Some(stopping)).serve(near));
        Stand {
            client: Client::new(1 << 22),
            pipe: far,
            events: Vec::new(),
            came: BTreeMap::new(),
            packing,
            _folder: folder,
            stop,
        }
    }

    async fn open(&mut self, count: u64, window: u64) -> u64 {
        let question = Question::Named("many".to_owned(), vec![("count".to_owned(), count.to_string())]);
        self.ask(question, window).await
    }

    async fn ask(&mut self, question: Question, window: u64) -> u64 {
        let cursor = self.client.open(question, window).expect("small");
        self.send().await;
        cursor
    }

    async fn send(&mut self) {
        let out = self.client.take_out();
        // Credit for what has come may be too late.
        let _ = self.pipe.write_all(&out).await;
    }

    /// The next event; `None`: the other side has closed the pipe.
    async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.client.poll().expect("a sound server") {
                if let Event::Rows(cursor, batch) = &event {
                    let (messages, rows) = self.came.entry(*cursor).or_default();
                    (*messages, *rows) = (*messages + 1, *rows + batch.len());
                }
                return Some(event);
            }
            let mut buffer = [0; 4_096];
            let count = tokio::time::timeout(Duration::from_mins(1), self.pipe.read(&mut buffer));
            match count.await.expect("it answers").expect("a pipe") {
                0 => return None,
                count => self.client.push(&buffer[..count]),
            }
        }
    }

    /// All of a cursor up to its end; rows are consumed as they come. The number of its messages and rows, and its fault.
    async fn drain(&mut self, cursor: u64) -> (usize, u64, Option<String>) {
        loop {
            let event = self.event().await.expect("it goes on");
            let (messages, rows) = self.came.get(&cursor).copied().unwrap_or_default();
            match event {
                Event::Rows(of, batch) if of == cursor => {
                    self.client.consumed(of, batch.bytes());
                    self.send().await;
                }
                Event::End(of, all) if of == cursor => {
                    assert_eq!(rows, all);
                    return (messages, rows, None);
                }
                Event::Failed(failed) if failed.cursor == cursor => return (messages, rows, Some(failed.code)),
                other => self.events.push(other),
            }
        }
    }
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn until_dropped(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let layout = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        tracing::subscriber::set_default(layout.with_writer(move || log.clone()).finish())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn rows_come_in_few_messages_and_the_first_alone() {
    let mut stand = Stand::new(CursorSettings::default());
    let cursor = stand.open(100_000, 1 << 20).await;
    let first = loop {
        if let Event::Rows(_, batch) = stand.event().await.expect("it goes on") {
            stand.client.consumed(cursor, batch.bytes());
            break batch;
        }
    };
    assert_eq!(first.len(), 1);
    let (messages, rows, fault) = stand.drain(cursor).await;
    assert_eq!((rows, fault), (100_000, None));
    assert!(messages < 40, "{messages}");
}

#[tokio::test]
async fn a_cursor_without_credit_holds_up_no_other() {
    let mut stand = Stand::new(CursorSettings::default());
    let stuck = stand.open(1_000_000, 1_000).await;
    let other = stand.open(50_000, 1 << 20).await;
    assert_eq!(stand.drain(other).await.1, 50_000);
    // What has come of the other is what its credit allows, and the message that began within it.
    let of_stuck = |event: &Event| match event {
        Event::Rows(of, batch) if *of == stuck => Some(batch.bytes()),
        _ => None,
    };
    let came: Vec<usize> = stand.events.iter().filter_map(of_stuck).collect();
    let last = came.last().copied().unwrap_or(0);
    assert!(came.iter().sum::<usize>() - last < 1_000, "{came:?}");
    stand.client.cancel(stuck);
    stand.send().await;
    assert_eq!(stand.drain(stuck).await.2.as_deref(), Some("cancelled"));
}

#[tokio::test]
async fn limits_are_told_of_the_cursor_and_the_rest_goes_on() {
    let mut stand = Stand::new(CursorSettings { connection_cursors_max: 2, ..CursorSettings::default() });
    let stuck = [stand.open(1_000_000, 1).await, stand.open(1_000_000, 1).await];
    let third = stand.open(1, 1).await;
    assert_eq!(stand.drain(third).await.2.as_deref(), Some("too_many_cursors"));
    stand.client.cancel(stuck[0]);
    stand.send().await;
    assert_eq!(stand.drain(stuck[0]).await.2.as_deref(), Some("cancelled"));
    for (question, code) in [
        (Question::Named("none".to_owned(), vec![]), "not_found"),
        (Question::Named("many".to_owned(), vec![]), "arguments"),
        (Question::Named("known".to_owned(), vec![]), "unauthenticated"),
        (Question::Sql("SELECT 1".to_owned(), vec![]), "forbidden"),
    ] {
        let cursor = stand.ask(question, 100).await;
        assert_eq!(stand.drain(cursor).await.2.as_deref(), Some(code));
    }
    let more = stand.open(1_000_001, 1 << 20).await;
    let (_, rows, fault) = stand.drain(more).await;
    assert_eq!((rows, fault.as_deref()), (1_000_000, Some("too_large")));
    let good = stand.open(3, 100).await;
    assert_eq!(stand.drain(good).await.1, 3);
}

#[tokio::test]
async fn who_makes_no_use_of_it_is_told_to_go() {
    let idle = Duration::from_millis(200);
    let mut stand = Stand::new(CursorSettings { idle, ..CursorSettings::default() });
    let stuck = stand.open(1_000_000, 1).await;
    let mut told = Vec::new();
    while let Some(event) = stand.event().await {
        if let Event::Failed(failed) | Event::Over(failed) = event {
            told.push((failed.cursor, failed.code));
        }
    }
    // A cursor that gets no credit, and then a connection without cursors.
    assert_eq!(told, [(stuck, "idle".to_owned()), (0, "idle".to_owned())]);
}

/// What is written finds no room in the pipe, whatever the credit.
#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
    let idle = Duration::from_millis(400);
    let mut stand = Stand::new(CursorSettings { idle, ..CursorSettings::default() });
    let log = Log::default();
    let _told = log.until_dropped();
    stand.open(1_000_000, 1 << 22).await;
    // Some bytes now and then, for much longer than it may take none.
    let mut some = [0; 2_000];
    for _ in 0..20 {
        tokio::time::sleep(idle / 4).await;
        stand.pipe.read_exact(&mut some).await.expect("it is not cut");
    }
    assert_eq!(log.text(), "");
    // It hangs in its write: that it ends is seen by what the log says.
    let until = std::time::Instant::now() + Duration::from_mins(1);
    while !log.text().contains("a connection of cursors is cut") {
        assert!(std::time::Instant::now() < until, "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = log.text();
    assert!(text.contains("query=\"many\" fault=\"idle\"") && text.contains("taken for 4"), "{text}");
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_mins(1), stand.pipe.read_to_end(&mut rest)).await.expect("it ends");
    assert!(read.expect("a pipe") < 200_000, "what was in the pipe, and no more");
}

#[tokio::test]
async fn a_server_that_stops_lets_cursors_end_and_opens_no_more() {
    let mut stand = Stand::new(CursorSettings::default());
    let running = stand.open(1_000_000, 10_000).await;
    while !matches!(stand.event().await, Some(Event::Rows(..))) {}
    stand.stop.send_replace(Some(Instant::now() + Duration::from_mins(1)));
    // It is told before what comes next is read.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let late = stand.open(1, 100).await;
    assert_eq!(stand.drain(late).await.2.as_deref(), Some("stopping"));
    // What has come of the other is consumed only now.
    stand.client.consumed(running, 1 << 20);
    stand.send().await;
    let (_, rows, fault) = stand.drain(running).await;
    assert_eq!((rows, fault), (1_000_000, None));
    let over = stand.event().await;
    assert!(matches!(over, Some(Event::Over(ref failed)) if failed.code == "stopping"), "{over:?}");
    assert_eq!(stand.event().await, None);
}

/// Shortly before the server ends for good; whoever takes nothing then can't be told, and the log has it.
#[tokio::test]
async fn what_is_open_at_the_end_of_a_stop_is_told_and_counted() {
    let log = Log::default();
    let _told = log.until_dropped();
    let mut stand = Stand::new(CursorSettings::default());
    let stuck = [stand.open(1_000_000, 10_000).await, stand.open(1_000_000, 10_000).await];
    while stand.came.len() < 2 {
        stand.event().await;
    }
    let until = Instant::now() + Duration::from_secs(2);
    stand.stop.send_replace(Some(until));
    let mut told = Vec::new();
    while let Some(event) = stand.event().await {
        if let Event::Failed(failed) | Event::Over(failed) = event {
            told.push((failed.cursor, failed.code));
        }
    }
    assert_eq!(told, [stuck[0], stuck[1], 0].map(|cursor| (cursor, "stopping".to_owned())));
    assert!(Instant::now() < until, "it was told too late");
    assert!(log.text().contains("cursors=2"), "{}", log.text());

    let mut stand = Stand::new(CursorSettings::default());
    stand.open(1_000_000, 1 << 22).await;
    stand.pipe.read_exact(&mut [0; 2_000]).await.expect("rows come");
    stand.stop.send_replace(Some(Instant::now() + Duration::from_millis(400)));
    let until = Instant::now() + Duration::from_mins(1);
    while !log.text().contains("a connection of cursors is cut fault=\"stopping\"") {
        assert!(Instant::now() < until, "it goes on: {}", log.text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn an_upgrade_is_asked_for_by_its_name() {
    let asked = |connection: &str, upgrade: &str| {
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::CONNECTION, connection), (header::UPGRADE, upgrade)] {
            headers.insert(name, HeaderValue::from_str(value).expect("a header"));
        }
        asks_for(&headers)
    };
    assert!(asked("Upgrade", UPGRADE) && asked("keep-alive, upgrade", "x, Headwater-Cursor/1"));
    assert!(!asked("keep-alive", UPGRADE) && !asked("Upgrade", "websocket") && !asked("Upgrade", "headwater-cursor/2"));
}

#[tokio::test]
async fn knobs_count_from_the_next_message_on() {
    use headwater_knobs::{Knobs as All, contract};

    let mut stand = Stand::new(CursorSettings::default());
    let all = All::new(crate::knobs::of_packing(&Knobs::new(Packing::FULL), Some(&stand.packing)));
    contract::check(&all, |_| Vec::new()).expect("sound");
    let set = |name: &str, value: &str| all.change(&[(format!("gateway.cursor.{name}"), value.to_owned())]);
    let before = stand.open(1_000, 1 << 20).await;
    assert!(stand.drain(before).await.0 < 20, "1, 2, 4, ...");
    set("records", "1").expect("within its range");
    let small = stand.open(1_000, 1 << 20).await;
    assert_eq!(stand.drain(small).await, (1_000, 1_000, None));
    // One that is open already, and whose client takes little.
    let open = stand.open(100_000, 100).await;
    while stand.came.get(&open).is_none_or(|(messages, _)| *messages < 10) {
        if let Event::Rows(_, batch) = stand.event().await.expect("it goes on") {
            stand.client.consumed(open, batch.bytes());
            stand.send().await;
        }
    }
    assert_eq!(stand.came[&open].0 as u64, stand.came[&open].1);
    set("records", "100").expect("within its range");
    let (messages, rows, fault) = stand.drain(open).await;
    assert_eq!((rows, fault), (100_000, None));
    assert!(messages < 50_000, "{messages}");
}
