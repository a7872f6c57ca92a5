//! `POST /v1/file`: is there a ready file for this new remote? `GET /v1/file/ID?offset=N`: its bytes from there on, compressed where the
//! client takes that and asks from the beginning of a block on.
//!
//! Both read the memberships anew, by a worker; the bytes go out without one, at the client's speed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use headwater_access::User;
use headwater_consolidated::download::ready::{self, Asked, Kept};
use headwater_consolidated::system::{self, Greeting, Life, SealRequest};
use headwater_consolidated::{Connection, Error, Plan};
use headwater_protocol::message::{ErrorCode, Hello, READY_BLOCK_BYTES, ReadyFile};
use headwater_protocol::{Frame, Kind};

use super::make::Making;
use super::{Key, Next, Ready};
use crate::failure::{CONTENT_TYPE, Failure};
use crate::places::Size;
use crate::receive::{self, Received};
use crate::resume::{Rest, hex16, remote_id};
use crate::state::Shared;

/// How long a remote waits for a worker, and for a file that is being made, before it takes the ordinary way; nothing is sent to it meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Answers whether there is a file.
pub(crate) async fn post_file(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, mut body) = request.into_parts();
    let asked = async {
        if shared.is_stopping() {
            return Err(Failure::shutting_down());
        }
        let user = shared.authenticate(&head.headers).await?;
        let received = {
            let _place = shared.admission.admit(None)?;
            receive::receive(&shared, &mut body).await?
        };
        offer(&shared, &user, received).await
    };
    match asked.await {
        Ok(frames) => {
            let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            ([(header::CONTENT_TYPE, CONTENT_TYPE), no_store], frames).into_response()
        }
        Err(failure) => {
            let detail = failure.detail.as_deref().unwrap_or(&failure.message);
            tracing::info!(target: "headwater::sync", outcome = failure.code.name(), detail, "no ready file");
            failure.to_frame_response()
        }
    }
}

/// The answer's frames.
async fn offer(shared: &Arc<Shared>, user: &User, received: Received) -> Result<Vec<u8>, Failure> {
    let Received { hello, plan, upload, .. } = received;
    if upload.is_some() || !is_new(&hello) {
        let message = "a ready file is for a remote that has neither seen nor sent anything: sync it instead";
        return Err(Failure::new(ErrorCode::Malformed, message));
    }
    let nothing = Frame::new(Kind::End, Vec::new()).to_bytes();
    if shared.ready_files.builder().is_none() || !ready::is_possible(&plan) {
        return Ok(nothing);
    }
    let claim = shared.remotes.claim(hello.remote_id).ok_or_else(Failure::remote_busy)?;
    let asking = Arc::new(Asking { shared: Arc::clone(shared), user: user.name().to_owned(), hello, plan });
    for may_make in [true, false] {
        let Some(asked) = asking.ask().await? else { break };
        let told = match shared.ready_files.next(asked.key, asking.hello.remote_id, may_make) {
            Next::Nothing => break,
            Next::Take(ready) => return Ok(asking.give(ready, asked.life).await?.unwrap_or(nothing)),
            Next::Wait(told) => told,
            Next::Make(tell, told) => {
                let (shared, plan, key) = (Arc::clone(shared), Arc::clone(&asking.plan), asked.key);
                tokio::spawn(Making { shared, plan, key, partitions: asked.partitions, tell }.run());
                told
            }
        };
        ended(told).await;
    }
    drop(claim);
    Ok(nothing)
}

/// Waits until the making of a file has ended: whoever makes it lets the other end go. Who has waited for too long goes on without.
async fn ended(mut told: tokio::sync::watch::Receiver<()>) {
    let ended = async { while told.changed().await.is_ok() {} };
    let _ = tokio::time::timeout(WAIT_MAX, ended).await;
}

/// Whether a remote has neither seen nor sent anything, as far as it says.
fn is_new(hello: &Hello) -> bool {
    let has_seen = hello.incarnation != [0; 16] || !hello.watermarks.entries.is_empty();
    !has_seen && hello.upload_sequence == 0 && hello.uploads.is_empty() && hello.download_applied == [0; 16]
}

/// Who asks.
struct Asking {
    shared: Arc<Shared>,
    user: String,
    hello: Hello,
    plan: Arc<Plan>,
}

impl Asking {
    /// What it is to hold, and that what is kept for that is still of use: what is not is forgotten. `None`: nothing is kept for several.
    async fn ask(self: &Arc<Self>) -> Result<Option<Asked>, Failure> {
        let who = (self.user.clone(), self.hello.remote_id);
        ask(&self.shared, &self.plan, who).await
    }

    /// Greets the remote, promises the file, seals its watermarks; `None`: the database knows the remote better than it says.
    async fn give(self: &Arc<Self>, ready: Arc<Ready>, life: Life) -> Result<Option<Vec<u8>>, Failure> {
        let asking = Arc::clone(self);
        let given = working(&self.shared, move |connection| asking.sealed(connection, &ready, &life)).await?;
        match given {
            Given::Frames(frames) => Ok(Some(frames)),
            Given::Nothing => Ok(None),
            Given::WrongSecret => {
                let message = "the remote ID belongs to another remote: its secret is not this one";
                Err(Failure::new(ErrorCode::WrongSecret, message))
            }
        }
    }

    /// `life`: in which the file was found to be current.
    fn sealed(&self, connection: &mut dyn Connection, ready: &Arc<Ready>, life: &Life) -> Result<Given, Error> {
        let Asking { shared, user, hello, plan } = self;
        let greeted = match system::greet(connection, plan, user, hello)? {
            Greeting::WrongSecret => return Ok(Given::WrongSecret),
            Greeting::Welcome(greeted) => greeted,
        };
        if greeted.life != *life {
            return Err(Error::OtherLife);
        }
        let welcome = greeted.welcome;
        if welcome.restart || welcome.upload_sequence > 0 || greeted.is_copy {
            return Ok(Given::Nothing);
        }
        let request = SealRequest { plan, user, hello, greeted: &greeted };
        let seen = system::seal_watermarks(connection, &request, ready.seen.clone())?;
        let kept_s = u32::try_from(shared.ready_files.kept_for().as_secs()).unwrap_or(u32::MAX);
        let id = shared.ready_files.promise(user, hello.remote_id, ready);
        let file = ReadyFile { id, digest: ready.digest, bytes: ready.file.bytes(), rows: ready.rows, kept_s };
        let end = Frame::new(Kind::End, Vec::new());
        let frames = [welcome.to_frame(), file.to_frame(), seen.to_frame(), end];
        Ok(Given::Frames(frames.iter().flat_map(Frame::to_bytes).collect()))
    }
}

enum Given {
    Frames(Vec<u8>),
    Nothing,
    WrongSecret,
}

/// Reads somebody's memberships; forgets what is kept for them where it is of no use any more.
async fn ask(
    shared: &Arc<Shared>,
    plan: &Arc<Plan>,
    (user, remote_id): (String, [u8; 16]),
) -> Result<Option<Asked>, Failure> {
    let (files, plan) = (Arc::clone(shared), Arc::clone(plan));
    working(shared, move |connection| {
        let incarnation = system::identity(connection)?.incarnation;
        let mut kept = |key: &Key| {
            let ready = files.ready_files.find(key)?;
            Some(Kept { mark: ready.seen.marks.first().cloned().unwrap_or_default(), note: ready.note })
        };
        let asked = ready::ask(connection, &plan, (&user, &remote_id), &incarnation, &mut kept)?;
        if let Some(Asked { key, is_current: Some(false), .. }) = &asked {
            tracing::info!("a ready file can't be brought up to date any more: it goes");
            files.ready_files.forget(key);
        }
        Ok(asked)
    })
    .await
}

/// Does something short with the database, by a worker.
async fn working<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&mut dyn Connection) -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    let limit = Duration::from_millis(shared.config.now().wait_ms_max).min(WAIT_MAX);
    let waiting = shared.admission.wait();
    let permits = tokio::time::timeout(limit, shared.admission.permits(false, Size::Small))
        .await
        .map_err(|_| shared.admission.overloaded(None, format!("no worker was free for {} ms", limit.as_millis())))?;
    drop(waiting);
    let (pool, patience) = (shared.pool.clone(), Duration::from_millis(shared.config.now().connect_ms_max));
    let worked = tokio::task::spawn_blocking(move || {
        let _permits = permits;
        let mut connection = pool.checkout(patience)?;
        let worked = work(&mut *connection);
        connection.note(worked)
    });
    worked.await.map_err(|error| Failure::internal(format!("the worker panicked: {error}")))?.map_err(Failure::from)
}

/// Answers with the file's bytes from the offset on.
pub(crate) async fn get_file(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Query(rest): Query<Rest>,
    headers: HeaderMap,
) -> Response {
    match find(&shared, &id, &rest, &headers).await {
        Ok((ready, offset)) => {
            let block = (offset / READY_BLOCK_BYTES) as usize;
            let is_packed = takes_zstd(&headers) && offset % READY_BLOCK_BYTES == 0;
            let rest =
                if is_packed { ready.file.kept() - ready.file.start(block) } else { ready.file.bytes() - offset };
            tracing::info!(target: "headwater::sync", offset, bytes = rest, "a ready file goes out");
            let mut heads = HeaderMap::new();
            heads.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            heads.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            heads.insert(header::CONTENT_LENGTH, HeaderValue::from(rest));
            heads.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            let skip = if is_packed {
                heads.insert(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                None
            } else {
                Some((offset % READY_BLOCK_BYTES) as usize)
            };
            (heads, body_from(&shared, ready, block, skip)).into_response()
        }
        Err(failure) => {
            let detail = failure.detail.as_deref().unwrap_or(&failure.message);
            tracing::info!(target: "headwater::sync", outcome = failure.code.name(), detail, "no ready file");
            failure.to_frame_response()
        }
    }
}

async fn find(shared: &Arc<Shared>, id: &str, rest: &Rest, headers: &HeaderMap) -> Result<(Arc<Ready>, u64), Failure> {
    if shared.is_stopping() {
        return Err(Failure::shutting_down());
    }
    let user = shared.authenticate(headers).await?;
    let offset = rest.offset()?;
    let remote_id = remote_id(headers)?;
    let gone = || Failure::new(ErrorCode::Gone, "the file is not kept here, or not any more: sync, the rows come down");
    let promised = hex16(id).and_then(|id| shared.ready_files.promised(&id, user.name(), &remote_id));
    let promised = promised.filter(|ready| offset <= ready.file.bytes()).ok_or_else(gone)?;
    let plan = shared.plans.iter().find(|plan| plan.fingerprint == promised.fingerprint).ok_or_else(gone)?;
    let asked = ask(shared, plan, (user.name().to_owned(), remote_id)).await?;
    let is_theirs = asked.is_some_and(|asked| asked.key == promised.key && asked.is_current != Some(false));
    if is_theirs { Ok((promised, offset)) } else { Err(gone()) }
}

/// Whether the client names zstd among the codings that it takes.
fn takes_zstd(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_refused = |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("zstd")) && !parts.any(is_refused)
    })
}

/// A body that is the file from a block on: as it lies, or unpacked and without the first bytes. Whoever takes nothing is cut by the
/// connection.
fn body_from(shared: &Shared, ready: Arc<Ready>, block: usize, skip: Option<usize>) -> Body {
    let sending = shared.admission.sending.enter();
    let next = |(ready, block, skip, sending): (Arc<Ready>, usize, Option<usize>, _)| async move {
        if block >= ready.file.blocks() {
            return Ok(None);
        }
        let of = Arc::clone(&ready);
        let reading = tokio::task::spawn_blocking(move || match skip {
            None => of.file.packed(block).map(Bytes::from),
            Some(skip) => of.file.plain(block).map(|plain| Bytes::from(plain).slice(skip..)),
        });
        let bytes = reading.await.map_err(io::Error::other).flatten()?;
        Ok::<_, io::Error>(Some((bytes, (ready, block + 1, skip.map(|_| 0), sending))))
    };
    Body::from_stream(futures_util::stream::try_unfold((ready, block, skip, sending), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstd_is_for_those_who_name_it() {
        let takes = |value: &'static str| {
            takes_zstd(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(takes("zstd") && takes("gzip, ZSTD;q=0.5") && !takes_zstd(&HeaderMap::new()));
        assert!(!takes("gzip") && !takes("zstd;q=0") && !takes("*") && !takes("zstdx"));
    }
}
