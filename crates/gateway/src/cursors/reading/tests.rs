use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use headwater_consolidated::results::ReadOptions;
use headwater_protocol::packer::{Packing, Records};

use super::*;
use crate::pace::Least;
use crate::query::QueryLimits;

const WINDOW: u64 = 1 << 20;

fn statement(limits: QueryLimits) -> Statement {
    let time_out = Duration::from_mins(1);
    Statement {
        name: "test".to_owned(),
        sql: String::new(),
        parameters: Vec::new(),
        options: ReadOptions { time_out, types: BTreeMap::new() },
        limits,
        client_sql: None,
    }
}

fn packed<'a>(reading: &'a Reading, statement: &'a Statement) -> Packed<'a> {
    let least = Least { bytes_per_s: 0, others: Arc::default(), window: Duration::from_secs(5) };
    let pace = Pace::new(least, reading.taken.clone());
    let deadline = Instant::now() + statement.options.time_out;
    let mut packed = Packed { reading, statement, deadline, types: Vec::new(), rows: 0, bytes: 0, pace, fault: None };
    let column = ResultColumn { name: "a".to_owned(), kind: Some(Type::Bytes), declared: String::new() };
    packed.begin(&[column]).expect("columns");
    packed
}

fn messages(reading: &Reading, now: Instant) -> Vec<u64> {
    let mut rows = Vec::new();
    loop {
        match reading.next(true, now) {
            Next::Columns(_) => {}
            Next::Message(message) => rows.push(message.rows),
            Next::Nothing(_) | Next::End(_) => return rows,
            Next::Failed(fault) => panic!("{fault:?}"),
        }
    }
}

#[test]
fn what_has_begun_goes_by_itself_after_a_while() {
    let wait = Duration::from_secs(7);
    let knobs = Knobs::new(Packing { idle_wait: wait, ..Packing::default() });
    let (reading, statement) = (Reading::new(&knobs, WINDOW, Arc::default()), statement(QueryLimits::default()));
    let mut packed = packed(&reading, &statement);
    for _ in 0..2 {
        packed.row(&[ValueRef::Bytes(b"x")]).expect("there is room");
    }
    let now = Instant::now();
    assert_eq!(messages(&reading, now), [1], "the first goes at once, alone");
    let Next::Nothing(Some(at)) = reading.next(true, now) else { panic!("it goes at some time") };
    assert!(at <= now + wait && at > now);
    assert!(matches!(reading.next(false, at), Next::Nothing(None)), "but not without credit");
    assert!(reading.has_rows());
    assert_eq!(messages(&reading, at), [1]);
    assert!(!reading.has_rows());
    reading.end(Ok(2));
    assert!(matches!(reading.next(false, at), Next::End(2)));
}

#[test]
fn what_is_left_goes_before_the_end_and_a_fault_at_once() {
    let packing = Packing { records: Records::Exactly(10), delay_first: true, ..Packing::default() };
    let (reading, statement) = (
        Reading::new(&Knobs::new(packing), WINDOW, Arc::default()),
        statement(QueryLimits { rows_max: 3, ..QueryLimits::default() }),
    );
    let mut packed = packed(&reading, &statement);
    for _ in 0..3 {
        packed.row(&[ValueRef::Bytes(b"x")]).expect("there is room");
    }
    packed.row(&[ValueRef::Bytes(b"x")]).expect_err("one too many");
    let fault = packed.fault.take().expect("why");
    assert_eq!(fault.code, "too_large");
    reading.end(Err(fault));
    let now = Instant::now();
    assert!(matches!(reading.next(false, now), Next::Columns(_)));
    assert!(matches!(reading.next(false, now), Next::Failed(_)), "rows that wait for credit don't keep it back");
    assert!(matches!(reading.next(true, now), Next::Message(Message { rows: 3, .. })));
    assert!(matches!(reading.next(true, now), Next::Failed(_)));
}

/// A thread that reads rows of 1,000 bytes for ever; it tells how many it has read each time, and how it ended.
fn endless(reading: &Arc<Reading>) -> (Receiver<u64>, std::thread::JoinHandle<Result<(), Error>>) {
    let (tell, told) = channel();
    let reading = Arc::clone(reading);
    let reads = std::thread::spawn(move || {
        let statement = statement(QueryLimits::default());
        let mut packed = packed(&reading, &statement);
        loop {
            packed.row(&[ValueRef::Bytes(&[7; 1_000])])?;
            tell.send(packed.rows).expect("somebody counts");
        }
    });
    (told, reads)
}

/// What a thread has read once it reads no more.
fn settled(told: &Receiver<u64>) -> u64 {
    let mut rows = told.recv_timeout(Duration::from_mins(1)).expect("it reads");
    while let Ok(more) = told.recv_timeout(Duration::from_millis(700)) {
        assert!(more < 100_000, "it reads on and on");
        rows = more;
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_takes_rows_no_more_are_read() {
    let reading = Reading::new(&Knobs::default(), WINDOW, Arc::default());
    let (told, reads) = endless(&reading);
    let first = settled(&told);
    let most = (BYTES_MAX + 3 * Packing::default().message_size) as u64 / 1_000;
    assert!(first <= most, "{first} rows are in memory, at most {most} may be");
    let Next::Columns(_) = reading.next(true, Instant::now()) else { panic!("columns first") };
    let Next::Message(_) = reading.next(true, Instant::now()) else { panic!("there are rows") };
    assert!(settled(&told) > first, "as rows are taken it goes on");
    reading.give_up();
    while told.recv().is_ok() {}
    reads.join().expect("no panic").expect_err("nobody wants them");
}

#[test]
fn columns_that_no_client_takes_are_refused_by_their_own_fault() {
    let column = |name: &str| ResultColumn { name: name.to_owned(), kind: None, declared: "é".repeat(NAME_BYTES_MAX) };
    let refused = |columns: &[ResultColumn]| {
        let reading = Reading::new(&Knobs::default(), WINDOW, Arc::default());
        let statement = statement(QueryLimits::default());
        let mut packed = packed(&reading, &statement);
        packed.begin(columns).map_err(|_| packed.fault.take().expect("why"))
    };
    for (columns, words) in [
        (vec![], "the query gives no columns"),
        (vec![column("a"); COLUMNS_MAX + 1], "gives 4097 columns, expected at most 4096"),
        (vec![column("a"), column(&"x".repeat(NAME_BYTES_MAX + 1))], "the name of column 2 has 4097 bytes"),
    ] {
        let fault = refused(&columns).expect_err(words);
        assert!(fault.code == "unfit" && fault.message.contains(words), "{fault:?}");
    }
    assert_eq!(refused(&[column(&"x".repeat(NAME_BYTES_MAX))]), Ok(()));
}
