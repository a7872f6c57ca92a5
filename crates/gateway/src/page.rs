//! `GET /q`: a page for people that lists the queries, with a form to try each, its rows as a table and what they say as a plot.
//!
//! One page for everybody, of one piece, with nothing from elsewhere. Its script gets `/q.json`, so it shows what whoever asks may see, and
//! asks for answers as any client does. A question stands behind the `#` of the page's URL, as it would in the answer's
//! (`/q#flights.csv?origin=JFK`), so a page can be kept and sent, and no server hears of it twice.
//!
//! What comes from a database is shown by `textContent` alone. Were markup made of it by mistake, nothing of it would run: the policy allows
//! this script and this style by their digests, and no other (CSP level 3), nor any way to make markup of a text (Trusted Types).

use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::coding::Coding;
use crate::fault::set;
use crate::held;
use crate::packing::{Coded, Compression, Packer};
use crate::routes::{not_modified, whole};
use crate::service::Settings;
use crate::tag;

/// It is compressed once in each coding.
const LEVEL: u32 = 9;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(include_str!("page/rows.js"), include_str!("page/plot.js"), include_str!("page/page.js"));

/// The page, and what is said with it.
struct Page {
    body: held::Body,
    coded: Coded,
    packer: Arc<Packer>,
    tag: String,
    policy: String,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let body = include_str!("page/page.html").replacen("STYLE", STYLE, 1).replacen("SCRIPT", SCRIPT, 1);
    let digest = |text: &str| STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        digest(SCRIPT),
        digest(STYLE)
    );
    let tag = format!("\"{}\"", tag::digest(&body));
    Page {
        body: Bytes::from(body).into(),
        coded: Coded::default(),
        packer: Arc::new(Packer::new(
            Settings { compression: Compression::Fixed(LEVEL), ..Settings::default() }.into(),
        )),
        tag,
        policy,
    }
});

/// The page. Caches keep it, and ask whether it is the same still: a new version of the program has another.
pub(crate) async fn get(headers: HeaderMap) -> Response {
    let Page { body, coded, packer, tag, policy } = &*PAGE;
    let wanted = Coding::wanted(&headers);
    let (mut response, tag) = match tag::known(&headers, tag, wanted, || None) {
        Some(tag) => (not_modified(), tag),
        None => {
            let (body, form) = packer.of(coded, body, wanted, None).await;
            (whole(&body, form), form.tag(tag))
        }
    };
    let headers = response.headers_mut();
    set(headers, header::CONTENT_TYPE, "text/html; charset=utf-8");
    set(headers, header::CACHE_CONTROL, "public, no-cache");
    set(headers, header::ETAG, &tag);
    set(headers, header::VARY, "Accept-Encoding");
    set(headers, header::CONTENT_SECURITY_POLICY, policy);
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, header::REFERRER_POLICY, "no-referrer");
    response
}
