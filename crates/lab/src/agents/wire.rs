//! What conductor and agents say to each other: JSON, each message after its length in four bytes, the highest first.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

/// Conductor and agent must have the same.
pub(crate) const PROTOCOL: u32 = 1;
/// No message is longer: the starts of a million clients are some 20 MB.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// What an agent is told. Moments are of its own clock: nanoseconds since it connected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// Who knows the key can answer it.
    Challenge { nonce: [u8; 32], protocol: u32 },
    /// It takes part; as which, from 1.
    Welcome { number: usize },
    /// It does not.
    Refused { why: String },
    /// What time is it?
    Ping,
    /// A run begins: have the clients connect.
    Task(Box<Task>),
    /// All are connected: clients begin then.
    Begin { at: u64 },
    /// The next set, and whether it counts; none: there is none any more.
    Set { is_measured: Option<bool> },
    /// Its operations begin then.
    Go { at: u64 },
    /// All have done theirs.
    Restore,
    /// No operation begins any more.
    Finish,
    /// The run ends now.
    Abort,
    /// There is no further run.
    Farewell,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// It wants to take part.
    Hello { protocol: u32, version: String, name: String, proof: [u8; 32] },
    /// The time, by its own clock and by the wall's, in nanoseconds since 1970.
    Pong { at: u64, wall: u64 },
    /// All its clients are connected.
    Connected,
    /// They are not, or can't be.
    Failed(Told),
    /// All its clients wait for what comes next.
    Arrived,
    /// When each of its clients began, and when the last one ended.
    SetDone { starts: Vec<u64>, ended: u64 },
    /// What was recorded since it was told last.
    Recorded(Recorded),
    /// All its clients have ended.
    Over { waits: [u64; 3], report: serde_json::Value, used: Option<Used> },
}

/// What an agent's clients took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Used {
    /// Processor time since the part began.
    pub(crate) cpu_ns: u64,
    /// Time since then.
    pub(crate) span_ns: u64,
    /// Threads that the clients shared.
    pub(crate) threads: usize,
}

/// Part of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The experiment, without secrets, and the files beside it that it names.
    pub(crate) text: String,
    pub(crate) files: BTreeMap<String, String>,
    /// Which of its cells.
    pub(crate) cell: usize,
    /// Of the run.
    pub(crate) seed: u64,
    /// Which of its clients.
    pub(crate) clients: Range<usize>,
    /// The target's address as people may see it.
    pub(crate) target: String,
    /// What the preparation found out.
    pub(crate) handover: serde_json::Value,
}

/// A failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) class: String,
    pub(crate) detail: String,
    pub(crate) is_usage: bool,
}

/// What was recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) seconds: Vec<Second>,
    /// Operations that succeeded and failed, in all.
    pub(crate) tally: [u64; 2],
    pub(crate) last_success: Option<u64>,
    pub(crate) unreachable: Option<String>,
    pub(crate) defect: Option<String>,
}

/// What ended in one second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Second {
    /// Which, from the beginning of measuring.
    pub(crate) number: u64,
    /// Nanoseconds, and how often.
    pub(crate) service: Vec<(u64, u64)>,
    pub(crate) response: Vec<(u64, u64)>,
    /// Class, how often, and an example.
    pub(crate) errors: Vec<(String, u64, String)>,
    /// Refusals and retries.
    pub(crate) attempts: [u64; 2],
    /// Bytes sent, received, of bodies, of their content; hits and misses.
    pub(crate) traffic: [u64; 6],
    /// Queries, rows that were read, updates, deletes, inserts.
    pub(crate) work: [u64; 5],
    pub(crate) last: Option<u64>,
}

/// Sends one message.
pub(crate) async fn write<W: AsyncWrite + Unpin>(to: &mut W, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    to.write_all(&frame).await?;
    to.flush().await
}

/// Sends what it is given, one message after the other, in a task of its own. That nobody is there any more is seen where it is listened to.
pub(crate) fn sender<M: Serialize + Send + Sync + 'static>(
    mut to: impl AsyncWrite + Unpin + Send + 'static,
) -> mpsc::UnboundedSender<M> {
    let (sender, mut to_send) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = to_send.recv().await {
            if write(&mut to, &message).await.is_err() {
                return;
            }
        }
    });
    sender
}

/// Reads the next message. An error: the connection ended, or somebody else speaks.
pub(crate) async fn read<R: AsyncRead + Unpin, M: DeserializeOwned>(from: &mut R, longest: u32) -> io::Result<M> {
    let length = from.read_u32().await?;
    if length > longest.min(MESSAGE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no message of the lab's"));
    }
    let mut body = Vec::new();
    // What is announced is not allocated before it comes.
    from.take(length.into()).read_to_end(&mut body).await?;
    if body.len() as u32 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The longest message of one who has not shown yet that it knows the key.
pub(crate) const STRANGER_BYTES_MAX: u32 = 4_096;
/// The longest of all others.
pub(crate) const FRIEND_BYTES_MAX: u32 = MESSAGE_BYTES_MAX;

/// What shows that one knows the key, without saying it.
pub(crate) fn proof(key: &str, nonce: &[u8; 32]) -> [u8; 32] {
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(nonce);
    mac.finalize().into_bytes().into()
}

/// Whether this is the proof; as fast for all that are not.
pub(crate) fn is_proof(key: &str, nonce: &[u8; 32], proof: &[u8; 32]) -> bool {
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(nonce);
    mac.verify_slice(proof).is_ok()
}
