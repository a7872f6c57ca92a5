//! A server asked what is on the way to it: for `headwater doctor`.
//!
//! Nothing is logged in and nothing is synced. A piece of an upload is answered by its head alone (401, as it names no user); whoever
//! answers something else stands in between.

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::http::{Client, Credentials, Server, explained};

/// How long a silence may last.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// The size of a piece, unless the server is configured otherwise.
const PIECE_BYTES: usize = 1_000_000;
/// The server pauses for 250 ms between two pieces of its four; a pause counts if this much of it is left.
const PAUSE: Duration = Duration::from_millis(100);
/// So many pauses make a streamed answer: one may be this machine's own.
const PAUSES_MIN: usize = 2;
/// How often an answer must come at once before somebody keeps it back: this machine may have been slow instead.
const TRIES: usize = 3;

/// What was seen on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// What answered instead of Headwater; nothing: Headwater did.
    pub stranger: Option<String>,
    /// What a piece of an upload, of 1 MB, got instead of the server's own answer.
    pub piece: Option<String>,
    /// Whether a streamed answer came all at once.
    pub is_buffered: bool,
    /// The coding that was put on an answer which had none.
    pub coding: Option<String>,
}

/// Asks the server at this address, a few seconds at the most where it answers. `ca_file`: certificates to trust instead of the
/// system's.
pub fn probe(url: &str, ca_file: Option<&Path>) -> Result<Probe, Error> {
    let credentials = Credentials::Token(String::new());
    let server = Server { url: url.to_owned(), credentials, ca_file: ca_file.map(Path::to_owned) };
    let client = Client::new(&server, IDLE_MAX)?;
    let mut probe = Probe { stranger: client.stranger()?, ..Probe::default() };
    if probe.stranger.is_some() {
        return Ok(probe);
    }
    probe.piece = client.piece_refused();
    probe.is_buffered = true;
    for _ in 0..TRIES {
        let (pauses, coding) = client.stream()?;
        probe.coding = coding;
        if pauses >= PAUSES_MIN {
            probe.is_buffered = false;
            break;
        }
    }
    Ok(probe)
}

impl Client<'_> {
    fn network(&self, error: &ureq::Error) -> Error {
        Error::Network { server: self.url(""), source: explained(error).into() }
    }

    fn stranger(&self) -> Result<Option<String>, Error> {
        let mut answer = self.agent().get(self.url("/health")).call().map_err(|error| self.network(&error))?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(64 * 1024).read_to_string().unwrap_or_default();
        let is_ours = status == 200 && text == "alive\n";
        Ok((!is_ours).then(|| format!("status {status}, {:?}", text.chars().take(60).collect::<String>())))
    }

    fn piece_refused(&self) -> Option<String> {
        let url = self.url("/v1/upload/00000000000000000000000000000000?offset=0");
        match self.agent().put(url).header("Expect", "100-continue").send(&vec![0; PIECE_BYTES][..]) {
            Ok(answer) if answer.status().as_u16() == 401 => None,
            Ok(answer) => Some(format!("status {}", answer.status().as_u16())),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The pauses between the pieces of a streamed answer, and its coding.
    fn stream(&self) -> Result<(usize, Option<String>), Error> {
        let request = self.agent().get(self.url("/health/stream")).header("Accept-Encoding", "gzip, deflate, br");
        let answer = request.call().map_err(|error| self.network(&error))?;
        let coding = answer.headers().get("content-encoding").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut body = answer.into_body().into_reader();
        let (mut last, mut pauses, mut buffer) = (None::<Instant>, 0, [0; 4096]);
        while body.read(&mut buffer).map_err(|error| self.network(&error.into()))? > 0 {
            pauses += usize::from(last.is_some_and(|last| last.elapsed() >= PAUSE));
            last = Some(Instant::now());
        }
        Ok((pauses, coding.filter(|coding| coding != "identity")))
    }
}
