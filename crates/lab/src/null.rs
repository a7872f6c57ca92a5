//! A server that speaks PostgreSQL's protocol and does nothing: what the lab measures against it is the lab itself.
//!
//! Every statement is answered with no rows. It can take its time for each execution, and stand still for a while once.
//!
//! *Caveats.* It knows just what the lab's own sessions say (version 3.0 of the protocol, no TLS, no authentication), and ends a
//! connection that says anything else. Delays are kept to about a millisecond.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// A message longer than this is none of the lab's.
const MESSAGE_MAX: u32 = 16 << 20;
/// The number that a start begins with, for version 3.0.
const VERSION: u32 = 3 << 16;
/// The number by which a client asks for TLS before it starts.
const TLS_REQUEST: u32 = 80_877_103;
/// The type of every parameter: text.
const TEXT: u32 = 25;

/// How it behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// How long each execution of a prepared statement takes.
    pub delay: Duration,
    /// When, after the first execution, it stands still, and for how long.
    pub stall: Option<(Duration, Duration)>,
}

/// Serves all who come, until it is dropped.
pub async fn serve(listener: TcpListener, behaviour: Behaviour) -> std::io::Result<()> {
    let first: Arc<OnceLock<Instant>> = Arc::default();
    let serve = |stream| {
        let first = first.clone();
        // Whoever goes has no more to say.
        async move { drop(session(stream, behaviour, &first).await) }
    };
    serve_each(listener, serve).await
}

/// Serves each connection by itself, until it is dropped.
pub(crate) async fn serve_each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream));
    }
}

async fn session(stream: TcpStream, behaviour: Behaviour, first: &OnceLock<Instant>) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut start = body(&mut read).await?;
    if start == TLS_REQUEST.to_be_bytes() {
        write.write_all(b"N").await?;
        start = body(&mut read).await?;
    }
    if start.get(..4) != Some(&VERSION.to_be_bytes()) {
        return Ok(());
    }
    let mut answer = Vec::new();
    message(&mut answer, b'R', &0u32.to_be_bytes());
    message(&mut answer, b'K', &[0; 8]);
    message(&mut answer, b'Z', b"I");
    write.write_all(&answer).await?;
    answer.clear();
    loop {
        let kind = read.read_u8().await?;
        let body = body(&mut read).await?;
        match kind {
            b'P' => {
                message(&mut answer, b'1', &[]);
                parameters(&mut answer, &body);
            }
            b'B' => message(&mut answer, b'2', &[]),
            b'D' => message(&mut answer, b'n', &[]),
            b'C' => message(&mut answer, b'3', &[]),
            b'E' => {
                behave(behaviour, *first.get_or_init(Instant::now)).await;
                message(&mut answer, b'C', b"SELECT 0\0");
            }
            b'Q' => {
                message(&mut answer, b'C', b"SELECT 0\0");
                message(&mut answer, b'Z', b"I");
            }
            b'S' => message(&mut answer, b'Z', b"I"),
            _ => return Ok(()),
        }
        if matches!(kind, b'Q' | b'S') {
            write.write_all(&answer).await?;
            answer.clear();
        }
    }
}

async fn behave(behaviour: Behaviour, first: Instant) {
    if !behaviour.delay.is_zero() {
        tokio::time::sleep(behaviour.delay).await;
    }
    if let Some((after, span)) = behaviour.stall {
        let (from, to) = (first + after, first + after + span);
        if (from..to).contains(&Instant::now()) {
            tokio::time::sleep_until(to).await;
        }
    }
}

/// A message's body, with its length before it.
async fn body(read: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let length = read.read_u32().await?;
    if !(4..=MESSAGE_MAX).contains(&length) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize - 4];
    read.read_exact(&mut body).await?;
    Ok(body)
}

fn message(answer: &mut Vec<u8>, kind: u8, body: &[u8]) {
    answer.push(kind);
    answer.extend((body.len() as u32 + 4).to_be_bytes());
    answer.extend(body);
}

/// As many parameters as the statement that is parsed has: each a text. The lab asks for them with each statement that it prepares.
fn parameters(answer: &mut Vec<u8>, parse: &[u8]) {
    let statement = parse.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    let numbers = statement.split(|byte| *byte == b'$').skip(1);
    let number = |text: &[u8]| -> u16 {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0u16, |number, digit| number.saturating_mul(10).saturating_add(u16::from(digit - b'0')))
    };
    let count = numbers.map(number).max().unwrap_or(0);
    let mut body = count.to_be_bytes().to_vec();
    (0..count).for_each(|_| body.extend(TEXT.to_be_bytes()));
    message(answer, b't', &body);
}
