//! The server that does nothing does what the self-test needs of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use headwater_lab::campaign::Campaign;
use headwater_lab::experiment::Experiment;
use headwater_lab::null::{self, Behaviour};
use headwater_lab::plan::Plan;
use headwater_lab::results::{self, CellSummary, Writer};
use tokio::sync::watch;

/// Serves until the tests end.
fn serve(behaviour: Behaviour) -> SocketAddr {
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            sender.send(listener.local_addr().expect("an address")).expect("told");
            null::serve(listener, behaviour).await.expect("served");
        });
    });
    address.recv().expect("an address")
}

fn measure(address: SocketAddr, scenario: &str) -> CellSummary {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("name = \"null\"\nscenario.name = \"{scenario}\"\nload.clients = 4\nstop.iterations = 100\n");
    let experiment = Experiment::parse("x.toml", &text, &|_| Err("none".to_owned())).expect("valid");
    let plan = Plan::new(&experiment, 1);
    let path = folder.path().join("x.lab");
    let writer = Writer::create(&path, &experiment, &plan).expect("results");
    let target = format!("postgres://lab@{address}/null");
    let campaign = Campaign::new(&experiment, &plan, Some(&target), folder.path()).expect("a campaign");
    let (_never, interrupt) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(campaign.run(&writer, &interrupt, &mut |_| {})).expect("it runs");
    results::Campaign::open(&path).expect("results").summary().expect("a summary").remove(0)
}

#[test]
fn every_statement_is_answered() {
    let address = serve(Behaviour::default());
    for scenario in ["read_simple", "tpcb"] {
        let cell = measure(address, scenario);
        assert_eq!((cell.operations, cell.errors, cell.failures.as_slice()), (100, 0, &[][..]), "{scenario}");
    }
}

#[test]
fn what_it_does_not_understand_ends_that_connection_alone() {
    let address = serve(Behaviour::default());
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 8, 0, 9, 0, 0], &[0, 0, 0, 3]] {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(said).expect("said");
        stream.shutdown(std::net::Shutdown::Write).expect("ended");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{said:?}: {answer:?}");
    }
    assert_eq!(measure(address, "read_simple").operations, 100);
}

#[test]
fn it_takes_the_time_that_it_is_told() {
    let slow = serve(Behaviour { delay: Duration::from_millis(10), stall: None });
    assert!(measure(slow, "read_simple").response.quantile(0.01) >= Duration::from_millis(10));
    let stall = Some((Duration::ZERO, Duration::from_millis(300)));
    let stalled = measure(serve(Behaviour { stall, ..Behaviour::default() }), "read_simple");
    assert!(stalled.response.max() >= Duration::from_millis(290), "{:?}", stalled.response.max());
}
