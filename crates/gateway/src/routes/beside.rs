//! What is asked for beside answers: the document of all queries; and URLs and methods that there are not.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;

use super::{VARY_ALL, authenticated, not_modified, whole};
use crate::fault::{Fault, set};
use crate::openapi;
use crate::packing::Form;
use crate::query::{Query, Who};
use crate::service::Service;
use crate::{coding::Coding, tag};

/// How the document is told apart: it lists what the one who asks may ask.
const VARY: &str = "Authorization";

/// What the one who asks may ask, as an OpenAPI document.
pub(super) async fn document(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let is_anonymous = !headers.contains_key(header::AUTHORIZATION);
    let user = match authenticated(&service, &headers).await {
        Ok(user) => Some(user),
        Err(_) if is_anonymous => None,
        Err(fault) => {
            let mut response = fault.into_response(false);
            set(response.headers_mut(), header::VARY, VARY);
            return response;
        }
    };
    let may = |query: &&Query| match (&query.who, &user) {
        (Who::Public, _) | (Who::Known, Some(_)) => true,
        (Who::Users(users), Some(user)) => users.contains(user),
        (Who::Known | Who::Users(_), None) => false,
    };
    let document = openapi::document(service.queries.values().map(|query| &**query).filter(may)).to_string();
    let tag = format!("\"{}\"", tag::digest(&document));
    let mut response = match tag::known(&headers, &tag, Coding::Identity, || None) {
        Some(_) => not_modified(),
        None => whole(&Bytes::from(document).into(), Form::PLAIN),
    };
    let headers = response.headers_mut();
    set(headers, header::CONTENT_TYPE, "application/vnd.oai.openapi+json;version=3.1");
    set(headers, header::CACHE_CONTROL, if is_anonymous { "public, max-age=60" } else { "private, max-age=60" });
    set(headers, header::ETAG, &tag);
    set(headers, header::VARY, VARY);
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

/// A URL below `/q` that is none of a query.
pub(super) async fn nothing() -> Response {
    let mut response = Fault::unknown("expected /q, /q.json, or /q/NAME with an ending or without").into_response(true);
    set(response.headers_mut(), header::VARY, VARY_ALL);
    response
}

/// A method with which nothing is asked.
pub(super) async fn other_method() -> Response {
    let mut response = Fault::method().into_response(false);
    set(response.headers_mut(), header::ALLOW, "GET, HEAD");
    response
}
