//! The proxy breaks connections exactly as its plan says, and not otherwise.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater_testkit::proxy::{Chaos, Counters, Cut, Direction, Fault};
use headwater_testkit::{FaultProxy, Plan, wait_until};

const LONG: Duration = Duration::from_secs(30);

/// What a server saw of one connection: the bytes, and how it ended.
type Seen = (Vec<u8>, Option<ErrorKind>);

/// A server that first sends these bytes, then reads to the end, and tells what it saw of each connection.
fn server(greeting: &'static [u8]) -> Result<(SocketAddr, Receiver<Seen>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (sender, seen) = channel();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let refused = socket.write_all(greeting).err().map(|error| error.kind());
                let (bytes, error) = read_all(&mut socket);
                let _ = sender.send((bytes, error.or(refused)));
            });
        }
    });
    Ok((address, seen))
}

fn read_all(socket: &mut TcpStream) -> Seen {
    let mut bytes = Vec::new();
    let error = socket.read_to_end(&mut bytes).err().map(|error| error.kind());
    (bytes, error)
}

fn connect(proxy: &FaultProxy) -> Result<TcpStream> {
    let socket = TcpStream::connect(proxy.address())?;
    socket.set_read_timeout(Some(LONG))?;
    Ok(socket)
}

/// Sends 0, 1, 2, ... 9 and ends; what the client saw.
fn exchange(proxy: &FaultProxy) -> Result<Seen> {
    let mut socket = connect(proxy)?;
    let refused = socket.write_all(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).err().map(|error| error.kind());
    let _ = socket.shutdown(Shutdown::Write);
    let (bytes, error) = read_all(&mut socket);
    Ok((bytes, error.or(refused))) // the system reports a reset once, to the write or to the read
}

#[test]
fn without_a_plan_all_bytes_pass_both_ways() -> Result<()> {
    let (address, seen) = server(b"hello")?;
    let proxy = FaultProxy::start(address)?;
    proxy.record(true);
    assert_eq!(exchange(&proxy)?, (b"hello".to_vec(), None));
    assert_eq!(seen.recv_timeout(LONG)?, ((0..10).collect(), None));
    assert!(wait_until(LONG, || proxy.connections().iter().all(|traffic| traffic.ended)));
    assert_eq!(proxy.counters(), Counters { connections: 1, up: 10, down: 5, faults: 0 });
    let recorded = proxy.connections().remove(0).recorded;
    assert_eq!(recorded, Some(((0..10).collect(), b"hello".to_vec())));
    Ok(())
}

#[test]
fn a_cut_on_the_way_up_falls_on_its_byte() -> Result<()> {
    let (address, seen) = server(b"")?;
    let proxy = FaultProxy::start(address)?;
    for after in [0_u8, 1, 7] {
        for cut in [Cut::Reset, Cut::Fin] {
            proxy.next([Plan::clean().cut(Direction::Up, u64::from(after), cut)]);
            let (_, client_error) = exchange(&proxy)?;
            let (bytes, server_error) = seen.recv_timeout(LONG)?;
            assert_eq!(bytes, (0..after).collect::<Vec<_>>(), "{cut:?} after {after}");
            let expected = (cut == Cut::Reset).then_some(ErrorKind::ConnectionReset);
            assert_eq!((client_error, server_error), (expected, expected), "{cut:?} after {after}");
            let traffic = proxy.connections().pop().expect("a connection");
            assert_eq!((traffic.up, traffic.faults), (u64::from(after), vec![Fault::Cut(cut)]));
        }
    }
    assert_eq!(exchange(&proxy)?.1, None, "the plans are used up");
    Ok(())
}

#[test]
fn a_cut_on_the_way_down_falls_on_its_byte() -> Result<()> {
    let (address, seen) = server(b"0123456789")?;
    let proxy = FaultProxy::start(address)?;
    for after in [0_usize, 1, 7] {
        for cut in [Cut::Reset, Cut::Fin] {
            proxy.next([Plan::clean().cut(Direction::Down, after as u64, cut)]);
            let mut socket = connect(&proxy)?;
            let (bytes, client_error) = read_all(&mut socket);
            drop(socket);
            assert_eq!(bytes, b"0123456789"[..after], "{cut:?} after {after}");
            let expected = (cut == Cut::Reset).then_some(ErrorKind::ConnectionReset);
            let (_, server_error) = seen.recv_timeout(LONG)?;
            assert_eq!((client_error, server_error), (expected, expected), "{cut:?} after {after}");
        }
    }
    Ok(())
}

#[test]
fn one_byte_is_flipped_and_only_that() -> Result<()> {
    let (address, seen) = server(b"hello")?;
    let proxy = FaultProxy::start(address)?;
    proxy.next([Plan::clean().flip(Direction::Up, 3).flip(Direction::Down, 0)]);
    assert_eq!(exchange(&proxy)?.0, [!b'h', b'e', b'l', b'l', b'o']);
    assert_eq!(seen.recv_timeout(LONG)?.0, [0, 1, 2, !3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(proxy.counters().faults, 2);
    Ok(())
}

#[test]
fn a_black_hole_tells_nobody_until_it_is_cleaned() -> Result<()> {
    let (address, seen) = server(b"hello")?;
    let proxy = FaultProxy::start(address)?;
    proxy.next([Plan::clean().black_hole(Direction::Down, 2)]);
    let mut socket = connect(&proxy)?;
    let mut start = [0; 2];
    socket.read_exact(&mut start)?;
    assert_eq!(&start, b"he");
    assert!(wait_until(LONG, || proxy.counters().faults == 1));
    socket.write_all(b"anybody there?")?;
    socket.shutdown(Shutdown::Write)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let silent = socket.read(&mut start).expect_err("neither bytes nor an end").kind();
    assert!(matches!(silent, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");
    assert!(seen.try_recv().is_err(), "the server is not told either");

    proxy.go_clean();
    socket.set_read_timeout(Some(LONG))?;
    assert_eq!(read_all(&mut socket), (vec![], Some(ErrorKind::ConnectionReset)));
    assert_eq!(seen.recv_timeout(LONG)?, (vec![], Some(ErrorKind::ConnectionReset)));
    assert_eq!(exchange(&proxy)?, (b"hello".to_vec(), None));
    Ok(())
}

#[test]
fn what_is_held_passes_when_the_proxy_is_cleaned() -> Result<()> {
    let (address, seen) = server(b"hello")?;
    let proxy = FaultProxy::start(address)?;
    proxy.next([Plan::clean().hold(Direction::Up, 4)]);
    let mut socket = connect(&proxy)?;
    socket.write_all(&[0, 1, 2, 3, 4, 5])?;
    socket.shutdown(Shutdown::Write)?;
    let mut greeting = [0; 5];
    socket.read_exact(&mut greeting)?;
    assert!(wait_until(LONG, || proxy.counters().up == 4));
    assert!(seen.try_recv().is_err(), "the server waits for the rest");
    proxy.go_clean();
    assert_eq!(seen.recv_timeout(LONG)?, (vec![0, 1, 2, 3, 4, 5], None));
    assert_eq!(proxy.counters().faults, 0);
    Ok(())
}

#[test]
fn slow_and_late_connections_take_their_time_and_lose_nothing() -> Result<()> {
    let (address, seen) = server(b"hello")?;
    let proxy = FaultProxy::start(address)?;
    proxy.next([Plan::clean().throttle(Direction::Up, 50).delay(Direction::Down, Duration::from_millis(100))]);
    let begin = Instant::now();
    assert_eq!(exchange(&proxy)?, (b"hello".to_vec(), None));
    assert_eq!(seen.recv_timeout(LONG)?, ((0..10).collect(), None));
    assert!(begin.elapsed() >= Duration::from_millis(150), "10 bytes at 50 a second");
    let mut faults = proxy.connections().remove(0).faults;
    faults.sort_by_key(|fault| *fault == Fault::Throttle);
    assert_eq!(faults, [Fault::Delay, Fault::Throttle]);
    Ok(())
}

#[test]
fn a_throttled_connection_speeds_up_when_told_to_go_clean() -> Result<()> {
    static MUCH: [u8; 100_000] = [7; 100_000];
    let (address, _seen) = server(&MUCH)?;
    let proxy = FaultProxy::start(address)?;
    proxy.next([Plan::clean().throttle(Direction::Down, 1)]); // a day, were it to go on so
    let mut socket = connect(&proxy)?;
    let mut first = [0];
    socket.read_exact(&mut first)?;
    proxy.go_clean();
    socket.shutdown(Shutdown::Write)?;
    assert_eq!(read_all(&mut socket).0.len(), MUCH.len() - 1);
    Ok(())
}

#[test]
fn all_open_connections_can_be_cut_at_once() -> Result<()> {
    let (address, seen) = server(b"")?;
    let proxy = FaultProxy::start(address)?;
    let mut sockets = [connect(&proxy)?, connect(&proxy)?];
    for socket in &mut sockets {
        socket.write_all(b"x")?;
    }
    assert!(wait_until(LONG, || proxy.counters().up == 2));
    proxy.cut_all();
    for socket in &mut sockets {
        assert_eq!(read_all(socket).1, Some(ErrorKind::ConnectionReset));
        assert_eq!(seen.recv_timeout(LONG)?, (b"x".to_vec(), Some(ErrorKind::ConnectionReset)));
    }
    assert_eq!(exchange(&proxy)?.1, None, "later ones are carried");
    Ok(())
}

#[test]
fn the_target_can_move_and_a_missing_one_is_a_reset() -> Result<()> {
    let (first, _seen) = server(b"first")?;
    let (second, _seen_too) = server(b"second")?;
    let proxy = FaultProxy::start(first)?;
    assert_eq!(exchange(&proxy)?.0, b"first");
    proxy.set_target(second)?;
    assert_eq!(exchange(&proxy)?.0, b"second");
    proxy.set_target((Ipv4Addr::LOCALHOST, headwater_testkit::free_port()?))?;
    assert_eq!(exchange(&proxy)?, (vec![], Some(ErrorKind::ConnectionReset)));
    Ok(())
}

#[test]
fn chance_follows_the_seed() -> Result<()> {
    let run = || -> Result<Vec<Vec<Fault>>> {
        let (address, _seen) = server(&[1; 64])?;
        let proxy = FaultProxy::start(address)?;
        proxy.random(42, Chaos { offset_max: 5, ..Chaos::default() });
        for _ in 0..30 {
            exchange(&proxy)?;
        }
        assert!(wait_until(LONG, || proxy.connections().iter().all(|traffic| traffic.ended)));
        Ok(proxy.connections().into_iter().map(|traffic| traffic.faults).collect())
    };
    let faults = run()?;
    assert_eq!(faults, run()?);
    assert!(faults.iter().any(Vec::is_empty) && faults.iter().any(|faults| !faults.is_empty()), "{faults:?}");
    Ok(())
}

#[test]
fn a_dropped_proxy_closes_what_is_open() -> Result<()> {
    let (address, seen) = server(b"x")?;
    let proxy = FaultProxy::start(address)?;
    let mut socket = connect(&proxy)?;
    socket.read_exact(&mut [0])?;
    drop(proxy);
    assert_eq!(read_all(&mut socket).0, b"");
    assert_eq!(seen.recv_timeout(LONG)?.0, b"");
    Ok(())
}
