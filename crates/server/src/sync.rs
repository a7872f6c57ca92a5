//! `POST /v1/sync`: from the request's head to the last byte of the answer.
//!
//! ```text
//! handler   authenticate, admit, receive ──200──> body: drains the spool
//! task      claim the remote, wait for a turn (large frames) and a worker ──> worker fills the spool ──> watch the client take it ──> one line in the log
//! ```
//!
//! The answer's head goes out as soon as the request is whole; whatever goes wrong after that is an ERROR frame. The task lives until
//! the client has taken everything, has gone, or is cut for taking nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use headwater_access::User;
use headwater_protocol::message::{ErrorCode, Hello, Ticket, UploadEnd};
use headwater_protocol::server::RequestError;
use headwater_protocol::{Frame, Kind};

use crate::admission::Turn;
use crate::failure::{CONTENT_TYPE, Failure};
use crate::log::{Line, Outcome};
use crate::places::Size;
use crate::receive::{self, Received, Upload};
use crate::resume;
use crate::spool::download::{Left, Reader, Writer, spool};
use crate::state::{Shared, Task};
use crate::work::{Done, Source, Stop, Work};

/// Uploads up to this size are small: they don't wait for large ones.
const SMALL_BYTES: u64 = 1 << 20;

/// Answers one sync.
pub(crate) async fn post_sync(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let started = Instant::now();
    let (head, mut body) = request.into_parts();
    let mut line = Line::begin(&head.headers);
    match admit_and_receive(&shared, &head.headers, &mut body, &mut line).await {
        Ok((user, received)) => {
            line.receive = started.elapsed();
            answer(&shared, user, received, line)
        }
        Err(failure) => {
            let failure = shared.admission.paced(resume::remote_id(&head.headers).ok(), failure);
            line.receive = started.elapsed();
            line.write(&Outcome::Refused(&failure));
            if !body.is_end_stream() {
                receive::drain(body);
            }
            failure.to_frame_response()
        }
    }
}

/// Everything before the answer's head. Who sends it is known and a place is held before a byte of the body is asked for.
async fn admit_and_receive(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    body: &mut Body,
    line: &mut Line,
) -> Result<(User, Received), Failure> {
    if shared.is_stopping() {
        return Err(Failure::shutting_down());
    }
    let user = shared.authenticate(headers).await?;
    user.name().clone_into(&mut line.user);
    let limit = shared.config.now().upload_bytes_max;
    if let Some(length) = body.size_hint().exact().filter(|length| *length > limit) {
        let message = format!("the request has {length} bytes, above the limit of {limit} (upload_bytes_max)");
        return Err(Failure::new(ErrorCode::TooLarge, message));
    }
    let _place = shared.admission.admit(resume::remote_id(headers).ok())?;
    let received = receive::receive(shared, body).await?;
    line.received(&received);
    Ok((user, received))
}

/// Sends the head, and starts the task that fills the body.
fn answer(shared: &Arc<Shared>, user: User, received: Received, line: Line) -> Response {
    let (writer, reader) = spool(&shared.spools, shared.config.now().heartbeat());
    let sync = Sync { shared: Arc::clone(shared), user, line, writer, _task: shared.syncs.enter() };
    tokio::spawn(sync.run(Box::new(received)));
    (stream_headers(), body_of(reader)).into_response()
}

/// The headers of an answer that comes little by little.
pub(crate) fn stream_headers() -> [(HeaderName, HeaderValue); 3] {
    [
        (header::CONTENT_TYPE, CONTENT_TYPE),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ]
}

/// A body that is what a spool has.
pub(crate) fn body_of(reader: Reader) -> Body {
    let next =
        |mut reader: Reader| async move { Ok::<_, std::io::Error>(reader.next().await?.map(|bytes| (bytes, reader))) };
    Body::from_stream(futures_util::stream::try_unfold(reader, next))
}

/// An upload that waits for no more than a worker.
struct Ready {
    end: UploadEnd,
    source: Source,
    turn: Option<Turn>,
    is_large: bool,
}

/// A sync from the answer's head on.
struct Sync {
    shared: Arc<Shared>,
    user: User,
    line: Line,
    writer: Writer,
    _task: Task,
}

impl Sync {
    async fn run(mut self, received: Box<Received>) {
        let remote_id = received.hello.remote_id;
        let outcome = self.database_part(received).await.map_err(|stop| match stop {
            Stop::Failed(failure) => {
                let failure = self.shared.explained(failure);
                Stop::Failed(self.shared.admission.paced(Some(remote_id), failure))
            }
            Stop::Left => Stop::Left,
        });
        if outcome.is_err() {
            self.shared.downloads.failed(&self.writer);
        }
        let end = match &outcome {
            Ok(()) => Frame::new(Kind::End, Vec::new()),
            Err(Stop::Failed(failure)) => failure.to_server_error().to_frame(),
            Err(Stop::Left) => return self.gone(),
        };
        self.writer.end_with(&end);
        let sending = Instant::now();
        let left = {
            let _sending = self.shared.admission.sending.enter();
            self.writer.watch(self.shared.config.now().idle_limit()).await
        };
        self.shared.downloads.left(&remote_id);
        self.line.send = sending.elapsed();
        self.line.bytes_out = self.writer.taken();
        match (outcome, left) {
            (Err(Stop::Failed(failure)), _) => self.line.write(&Outcome::Failed(&failure)),
            (_, Left::Whole) => self.line.write(&Outcome::Whole),
            _ => self.gone(),
        }
    }

    fn gone(mut self) {
        self.line.bytes_out = self.writer.taken();
        let cut = self.writer.left() == Some(Left::Cut);
        self.line.write(if cut { &Outcome::Cut } else { &Outcome::Gone });
    }

    /// Waits for a worker and lets it work. The client is watched meanwhile: for one that has gone nobody waits any more. What is done before
    /// and after the wait lies in boxes of its own: thousands may wait, and have nothing of it.
    async fn database_part(&mut self, mut received: Box<Received>) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let claim = shared.remotes.claim(received.hello.remote_id).ok_or_else(Failure::remote_busy)?;
        let mut size = if is_first_download(&received.hello) { Size::Large } else { Size::Small };
        let (mut upload, mut turn) = (None, None);
        // Whatever else it brings, it ends in a commit.
        let commits = received.upload.is_some() || is_first_download(&received.hello);
        if commits {
            shared.commits_end()?;
        }
        if let Some((end, came)) = received.upload.take() {
            let ready = Box::pin(self.ready(received.hello.remote_id, end, came)).await?;
            if ready.is_large {
                size = Size::Large;
            }
            (upload, turn) = (Some((ready.end, ready.source)), ready.turn);
        }
        let permits = self.waited("no worker was free", shared.admission.permits(upload.is_some(), size)).await?;
        if commits {
            shared.commits_end()?;
        }
        let Received { hello, plan, key_ranges, .. } = *received;
        let work = Work {
            shared: Arc::clone(&shared),
            user: self.user.name().to_owned(),
            hello,
            plan,
            upload,
            key_ranges,
            writer: self.writer.clone(),
            permits,
            turn,
            claim,
        };
        let working = Instant::now();
        let (done, result) = Box::pin(self.watched(work)).await?;
        if result.is_ok() {
            shared.admission.note(&done.worked(working.elapsed()));
        }
        self.line.done(&done);
        result
    }

    /// An upload that may be given to a worker: all of it is there, and it has its turn.
    async fn ready(&mut self, remote_id: [u8; 16], end: UploadEnd, came: Upload) -> Result<Ready, Stop> {
        let shared = Arc::clone(&self.shared);
        let (mut source, frame_bytes) = self.measured(remote_id, &end, came).await?;
        let is_large = source.spool().bytes() > SMALL_BYTES;
        let turn = self
            .waited("its turn, after others with large frames, did not come", shared.admission.turn(frame_bytes))
            .await?;
        let source = self.whole(&end, source).await?;
        Ok(Ready { end, source, turn, is_large })
    }

    /// Waits for something to be free, as long as the client does and as is allowed.
    async fn waited<T>(&mut self, otherwise: &str, free: impl Future<Output = T>) -> Result<T, Stop> {
        let waiting = Instant::now();
        let admission = &self.shared.admission;
        let _place = admission.wait();
        let limit = Duration::from_millis(self.shared.config.now().wait_ms_max);
        let had = tokio::select! {
            had = free => had,
            _ = self.writer.watch(self.shared.config.now().idle_limit()) => return Err(Stop::Left),
            () = tokio::time::sleep(limit) => {
                return Err(admission.overloaded(None, format!("{otherwise} for {} ms", limit.as_millis())).into());
            }
        };
        self.line.wait += waiting.elapsed();
        Ok(had)
    }

    /// The upload's frames, as they came or came before, in pieces; and how large the largest is.
    async fn measured(&self, remote_id: [u8; 16], end: &UploadEnd, upload: Upload) -> Result<(Source, u64), Stop> {
        let source = match upload {
            Upload::Here(spool) => Source::Here(spool),
            Upload::Pieces(ticket) => {
                let spool = self.shared.tickets.open(&ticket, self.user.name(), remote_id, end)?;
                Source::Pieces(ticket, spool)
            }
        };
        let (largest, source) = blocking(source, |source| source.spool().largest_frame()).await?;
        Ok((source, largest))
    }

    /// Finds the frames of an upload that came in pieces, and that they are all there.
    async fn whole(&self, end: &UploadEnd, source: Source) -> Result<Source, Stop> {
        let Source::Pieces(Ticket { ticket, .. }, _) = source else { return Ok(source) };
        let limits = self.shared.config.now().pieces_limits();
        let (found, mut source) = blocking(source, move |source| source.spool().index(limits)).await?;
        let found = found.and_then(|digest| if digest == end.digest { Ok(()) } else { Err(RequestError::Digest) });
        let Err(error) = found else { return Ok(source) };
        if error.code() == ErrorCode::Damaged {
            self.shared.tickets.added(&ticket, source.spool().bytes());
        } else {
            self.shared.tickets.forget(&ticket);
        }
        Err(Failure::from(&error).into())
    }

    /// Runs the work on a thread of its own; a panic there ends this sync alone.
    async fn watched(&self, work: Work) -> Result<(Done, Result<(), Stop>), Stop> {
        let mut working = tokio::task::spawn_blocking(move || work.run());
        let ended = tokio::select! {
            ended = &mut working => ended,
            // The worker notices by itself that nobody waits; what it has begun it ends in order.
            _ = self.writer.watch(self.shared.config.now().idle_limit()) => working.await,
        };
        ended.map_err(|error| Failure::internal(format!("the worker panicked: {error}")).into())
    }
}

/// Whether a remote has seen nothing: whatever there is for it comes whole.
fn is_first_download(hello: &Hello) -> bool {
    hello.wants_download && hello.watermarks.entries.is_empty()
}

/// Reads an upload on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    mut source: Source,
    read: impl FnOnce(&mut Source) -> std::io::Result<T> + Send + 'static,
) -> Result<(T, Source), Failure> {
    let reading = tokio::task::spawn_blocking(move || read(&mut source).map(|found| (found, source)));
    reading.await.map_err(|error| Failure::internal(error.to_string()))?.map_err(|error| Failure::spool(&error))
}
