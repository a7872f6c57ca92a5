//! A cheap generator: GETs over kept connections. Bodies are read to their end and thrown away, but for the last bytes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// How much is read at a time, and kept of a body's end.
const READ_BYTES: usize = 256 * 1024;
const TAIL_BYTES: usize = 256;

/// What one turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// Of the bodies.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// An answer without its body.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// In small letters but for values.
    pub(super) head: String,
    pub(super) bytes: u64,
    /// Line ends in the body.
    pub(super) lines: u64,
    /// The end of the body.
    pub(super) tail: Vec<u8>,
}

impl Answer {
    /// A field of the head.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// A GET, ready to be sent.
pub(super) fn request(target: &str, fields: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: bench\r\n{fields}\r\n").into_bytes()
}

/// One connection.
pub(super) struct Connection {
    stream: TcpStream,
    /// Read, and not looked at yet: from `at` on.
    buffer: Vec<u8>,
    at: usize,
    counts_lines: bool,
    line: Option<Line>,
}

/// A line of so many bytes a second: what came earlier than it carries is waited for.
struct Line {
    bytes_per_s: f64,
    /// When it has carried all that came.
    free: Instant,
}

impl Line {
    /// What the client's socket and the pieces that it reads hold of it, in seconds of the line.
    const HELD_S: f64 = 0.02;
    /// The least of that.
    const HELD_BYTES_MIN: u32 = 16 * 1024;
    /// How late a sleep may end.
    const MADE_UP_FOR: Duration = Duration::from_millis(5);

    fn held_bytes(bytes_per_s: f64) -> u32 {
        ((bytes_per_s * Line::HELD_S) as u32).max(Line::HELD_BYTES_MIN)
    }

    async fn carry(&mut self, bytes: usize) {
        // A sleep that took too long is made up for; a line that nobody used is not.
        let earliest = Instant::now().checked_sub(Line::MADE_UP_FOR).unwrap_or(self.free);
        self.free = self.free.max(earliest) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        tokio::time::sleep_until(self.free.into()).await;
    }
}

impl Connection {
    pub(super) async fn open(place: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(place).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(8 * 1024), at: 0, counts_lines: false, line: None })
    }

    /// By a line of so many bytes a second, whose small buffers make the server feel it.
    async fn open_by_line(place: SocketAddr, bytes_per_s: f64) -> Result<Connection> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(Line::held_bytes(bytes_per_s))?;
        let stream = socket.connect(place).await?;
        stream.set_nodelay(true)?;
        let line = Some(Line { bytes_per_s, free: Instant::now() });
        Ok(Connection { stream, buffer: Vec::with_capacity(8 * 1024), at: 0, counts_lines: false, line })
    }

    /// Asks, and reads the answer to its last byte. An error: it broke, or is no HTTP; the connection is of no use then.
    pub(super) async fn get(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await?;
        let mut answer = self.head().await?;
        if answer.status == 304 {
            return Ok(answer);
        }
        if let Some(length) = answer.field("content-length") {
            let length = length.parse()?;
            self.body(length, &mut answer).await?;
        } else if answer.field("transfer-encoding") == Some("chunked") {
            while let length @ 1.. = self.chunk_length().await? {
                self.body(length, &mut answer).await?;
                self.line().await?;
            }
            ensure!(self.line().await?.is_empty(), "a trailer");
        } else {
            bail!("an answer without its length: {}", answer.head);
        }
        Ok(answer)
    }

    async fn more(&mut self) -> Result<()> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        self.buffer.reserve(if self.buffer.capacity() < READ_BYTES && self.at == 0 { 8 * 1024 } else { READ_BYTES });
        let Some(line) = &mut self.line else {
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the answer ends too early");
            return Ok(());
        };
        let most = Line::held_bytes(line.bytes_per_s) / 4;
        let came = (&mut self.stream).take(most.into()).read_buf(&mut self.buffer).await?;
        ensure!(came > 0, "the answer ends too early");
        line.carry(came).await;
        Ok(())
    }

    async fn head(&mut self) -> Result<Answer> {
        let end = loop {
            if let Some(end) = self.buffer[self.at..].windows(4).position(|four| four == b"\r\n\r\n") {
                break self.at + end;
            }
            self.more().await?;
        };
        let head = String::from_utf8_lossy(&self.buffer[self.at..end]).into_owned();
        self.at = end + 4;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("an answer without a status")?;
        Ok(Answer { status, head, ..Answer::default() })
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.buffer[self.at..].windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[self.at..self.at + end]).into_owned();
                self.at += end + 2;
                return Ok(line);
            }
            self.more().await?;
        }
    }

    async fn chunk_length(&mut self) -> Result<u64> {
        let line = self.line().await?;
        u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16).context("no chunk")
    }

    async fn body(&mut self, length: u64, answer: &mut Answer) -> Result<()> {
        let mut left = length;
        while left > 0 {
            if self.at == self.buffer.len() {
                self.more().await?;
            }
            let part = &self.buffer[self.at..];
            let part = &part[..part.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            if self.counts_lines {
                answer.lines += part.split(|byte| *byte == b'\n').count() as u64 - 1;
            }
            let last = &part[part.len().saturating_sub(TAIL_BYTES)..];
            let kept = answer.tail.len().min(TAIL_BYTES - last.len());
            answer.tail.drain(..answer.tail.len() - kept);
            answer.tail.extend_from_slice(last);
            (left, self.at) = (left - part.len() as u64, self.at + part.len());
        }
        answer.bytes += length;
        Ok(())
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// One request over a connection of its own, its lines counted.
pub(super) fn get(place: SocketAddr, request: &[u8]) -> Result<Answer> {
    runtime()?.block_on(async {
        let mut connection = Connection::open(place).await?;
        connection.counts_lines = true;
        connection.get(request).await
    })
}

/// These requests one after the other, by one client on a line of so many bytes a second.
pub(super) fn by_line(place: SocketAddr, requests: &[Vec<u8>], bytes_per_s: f64) -> Result<Load> {
    runtime()?.block_on(async {
        let mut connection = Connection::open_by_line(place, bytes_per_s).await?;
        let (mut load, begin) = (Load::default(), Instant::now());
        for request in requests {
            let answer = connection.get(request).await?;
            ensure!(answer.status == 200, "expected 200: {}", answer.head);
            (load.requests, load.bytes) = (load.requests + 1, load.bytes + answer.bytes);
        }
        Ok(Load { seconds: begin.elapsed().as_secs_f64(), ..load })
    })
}

/// A client for each request, which it sends again and again for so long. Any other status than that is an error.
pub(super) fn again(place: SocketAddr, requests: &[Vec<u8>], status: u16, time: Duration) -> Result<Load> {
    runtime()?.block_on(async {
        let mut clients = JoinSet::new();
        let begin = Instant::now();
        for request in requests {
            let request = request.clone();
            clients.spawn(async move {
                let mut connection = Connection::open(place).await?;
                let mut load = Load::default();
                while begin.elapsed() < time {
                    let answer = connection.get(&request).await?;
                    ensure!(answer.status == status, "expected {status}: {}", answer.head);
                    (load.requests, load.bytes) = (load.requests + 1, load.bytes + answer.bytes);
                }
                anyhow::Ok(load)
            });
        }
        let load = sum(&mut clients).await?;
        Ok(Load { seconds: begin.elapsed().as_secs_f64(), ..load })
    })
}

/// Every request once, by so many clients at a time. One that breaks, or whose answer is not 200 and good, has failed; the reasons go to stderr.
pub(super) fn once(
    place: SocketAddr,
    requests: Vec<Vec<u8>>,
    clients: usize,
    is_good: fn(&Answer) -> bool,
) -> Result<Load> {
    let queue = Arc::new(Mutex::new(VecDeque::from(requests)));
    runtime()?.block_on(async {
        let mut all = JoinSet::new();
        let begin = Instant::now();
        for _ in 0..clients {
            all.spawn(client(place, queue.clone(), is_good));
        }
        let load = sum(&mut all).await?;
        Ok(Load { seconds: begin.elapsed().as_secs_f64(), ..load })
    })
}

async fn client(place: SocketAddr, queue: Arc<Mutex<VecDeque<Vec<u8>>>>, is_good: fn(&Answer) -> bool) -> Result<Load> {
    let (mut load, mut kept) = (Load::default(), None);
    loop {
        let Some(request) = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else { return Ok(load) };
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(place).await?,
        };
        load.requests += 1;
        match connection.get(&request).await {
            Ok(answer) if answer.status == 200 && is_good(&answer) => {
                load.bytes += answer.bytes;
                kept = Some(connection);
            }
            Ok(answer) => {
                eprintln!("failed: {}", answer.head.lines().next().unwrap_or_default());
                load.failed += 1;
                kept = Some(connection);
            }
            Err(error) => {
                eprintln!("failed: {error:#}");
                load.failed += 1;
            }
        }
    }
}

async fn sum(clients: &mut JoinSet<Result<Load>>) -> Result<Load> {
    let mut sum = Load::default();
    while let Some(load) = clients.join_next().await {
        let load = load??;
        sum.requests += load.requests;
        sum.failed += load.failed;
        sum.bytes += load.bytes;
    }
    Ok(sum)
}
