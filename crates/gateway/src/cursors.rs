//! Remote cursors: `GET /cursor`, upgraded to a connection on which rows of queries come prefetched ([`headwater_protocol::cursor`]).
//!
//! ```text
//! connection  one task: frames in, frames out, who may send how much, when it has been idle for too long
//!   question  what is asked, by whom, and where it is run
//!   reading   one thread a cursor: reads rows and packs them, as many as are waited for
//! ```
//!
//! It is an upgrade of an HTTP/1.1 connection, and no request with a long body and a long answer: credit flows up while rows flow down, which
//! proxies let through after an upgrade and hold back before. So it has the server's address, its TLS, its limits of connections and its users.
//!
//! *Caveats.* Nothing that comes by a cursor is kept, compressed or shared with others: each cursor runs its query, on a connection to the
//! database of its own, for as long as it is open.

mod connection;
mod question;
mod reading;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use headwater_consolidated::QueryPool;
use headwater_protocol::cursor::UPGRADE;
use headwater_protocol::packer::{Knobs, Packing};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use crate::client_sql::ClientSql;
use crate::fault::Fault;
use crate::frontier_routes::FrontierSettings;
use crate::lane::Lane;
use crate::service::Service;
use connection::Connection;
use question::Asker;

/// Cursors that wait for a place at a time; beyond, they fail.
const WAITING_MAX: usize = 64;

/// What cursors may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorSettings {
    /// Cursors that are open at a time, each on a connection to the database of its own; 0: there are none.
    pub cursors_max: usize,
    /// Of them, those of one connection.
    pub connection_cursors_max: usize,
    /// How long a cursor may be open, its statement and its client's time together.
    pub time_out: Duration,
    /// How long a connection may be without cursors, and a cursor with rows that its client gives no credit for.
    pub idle: Duration,
    /// Whether those whose SQL the Frontier protocol runs may open cursors by SQL.
    pub sql: bool,
    /// How full messages get.
    pub packing: Packing,
}

impl Default for CursorSettings {
    fn default() -> CursorSettings {
        CursorSettings {
            cursors_max: 8,
            connection_cursors_max: 8,
            time_out: Duration::from_hours(1),
            idle: Duration::from_mins(1),
            sql: false,
            packing: Packing::default(),
        }
    }
}

/// Whether the server is stopping, and until when what is open may end then, by a request's extensions; `None`: nobody says.
pub type Stopping = fn(&Extensions) -> Option<watch::Receiver<Option<Instant>>>;

/// What all cursors share.
pub(crate) struct Cursors {
    service: Arc<Service>,
    settings: CursorSettings,
    /// How full messages get.
    knobs: Knobs,
    /// Connections of the server's own role.
    pool: QueryPool,
    /// Whose SQL is run, where it is.
    sql: Option<(FrontierSettings, ClientSql)>,
    places: Lane,
    stopping: Option<Stopping>,
}

impl Cursors {
    pub(crate) fn new(
        service: Arc<Service>,
        settings: CursorSettings,
        pool: QueryPool,
        sql: Option<(FrontierSettings, ClientSql)>,
        stopping: Option<Stopping>,
    ) -> Cursors {
        let places = Lane::new(settings.cursors_max);
        let sql = sql.filter(|_| settings.sql);
        Cursors { service, knobs: Knobs::new(settings.packing), settings, pool, sql, places, stopping }
    }

    /// How full messages get, whoever turns these knobs.
    pub(crate) fn packing(&self) -> &Knobs {
        &self.knobs
    }
}

/// The route of cursors.
pub(crate) fn router(cursors: Arc<Cursors>) -> Router {
    Router::new().route("/cursor", get(upgrade)).with_state(cursors)
}

/// Turns a request into a connection of cursors.
async fn upgrade(State(cursors): State<Arc<Cursors>>, mut request: Request) -> Response {
    let asks = asks_for(request.headers());
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>().filter(|_| asks) else {
        let message = format!("expected a request of HTTP/1.1 with Connection: Upgrade and Upgrade: {UPGRADE}");
        let mut response = Fault::upgrade_required(message).into_response(false);
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
        return response;
    };
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    let stopping = cursors.stopping.and_then(|stopping| stopping(request.extensions()));
    let asker = Asker::new(request.headers(), peer);
    // Whoever is not let in is told so in the words of HTTP.
    if let Err(fault) = asker.user(&cursors.service).await {
        return fault.into_response(false);
    }
    tokio::spawn(async move {
        match upgrade.await {
            Ok(stream) => Connection::new(cursors, asker, stopping).serve(TokioIo::new(stream)).await,
            Err(error) => tracing::debug!(%error, "a connection of cursors did not come about"),
        }
    });
    let head = [(header::CONNECTION, "Upgrade"), (header::UPGRADE, UPGRADE)];
    (StatusCode::SWITCHING_PROTOCOLS, head).into_response()
}

/// Whether a request's head asks for this upgrade.
fn asks_for(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &str| {
        let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted)))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, UPGRADE)
}

#[cfg(test)]
mod tests;
