//! TLS from PEM files and HTTP/2: the same answers by another way.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_protocol::Kind;
use headwater_protocol::message::ErrorCode;
use headwater_server::{Config, Server};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{PATIENCE, Stand, anna, config, frames, head};

/// A certificate for `localhost` and its key, as files; and a client's trust in it.
fn certificate(folder: &Path) -> (PathBuf, PathBuf, RootCertStore) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    (chain, key, roots)
}

fn secure_stand() -> (Stand, RootCertStore, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let (chain, key, roots) = certificate(folder.path());
    let stand = Stand::start(Config { tls_certificate: Some(chain), tls_key: Some(key), ..config() });
    (stand, roots, folder)
}

fn client_config(roots: RootCertStore, alpn: &[u8]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

/// An HTTP/2 connection over any stream.
async fn speak_http2<S>(stream: S) -> http2::SendRequest<Full<Bytes>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn sync_request(scheme: &str, authorization: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("{scheme}://localhost/v1/sync"))
        .header("authorization", authorization)
        .body(Full::new(Bytes::from(body)))
        .expect("a request")
}

async fn ask(sender: &mut http2::SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> (StatusCode, Vec<Kind>) {
    let answer = sender.send_request(request).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
    (status, frames(&body).into_iter().map(|frame| frame.kind).filter(|kind| *kind != Kind::Heartbeat).collect())
}

#[test]
fn http_1_over_tls() {
    let (stand, roots, _folder) = secure_stand();
    let config = client_config(roots, b"http/1.1");
    let connection = ClientConnection::new(config, localhost()).expect("a client");
    let socket = TcpStream::connect(stand.address).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut stream = StreamOwned::new(connection, socket);
    let body = stand.upload(1, &[(1, "one")]);
    stream.write_all(&head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64))).expect("sent");
    stream.write_all(&body).expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n0\r\n\r\n") {
        let mut piece = [0; 1000];
        let count = stream.read(&mut piece).expect("an answer");
        assert_ne!(count, 0, "cut");
        answer.extend_from_slice(&piece[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    assert_eq!(stand.items(), 1);
}

#[test]
fn http_2_over_tls_is_chosen_by_alpn() {
    let (stand, roots, _folder) = secure_stand();
    let connector = tokio_rustls::TlsConnector::from(client_config(roots, b"h2"));
    let (body, address, authorization) = (stand.upload(1, &[(1, "one")]), stand.address, anna().to_header());
    let (status, kinds) = stand.runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let stream = connector.connect(localhost(), socket).await.expect("TLS");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = speak_http2(stream).await;
        ask(&mut sender, sync_request("https", authorization.expose(), body)).await
    });
    assert_eq!(status, StatusCode::OK);
    assert_eq!((kinds[..2].to_vec(), kinds.last()), (vec![Kind::Welcome, Kind::Receipt], Some(&Kind::End)));
    assert_eq!(stand.items(), 1);
}

#[test]
fn many_syncs_share_an_http_2_connection() {
    let stand = Stand::start(config());
    stand.fill(500);
    let bodies: Vec<_> = (1..=20).map(|remote| stand.upload(remote, &[(1000 + i64::from(remote), "new")])).collect();
    let (address, authorization) = (stand.address, anna().to_header());
    stand.runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let sender = speak_http2(socket).await;
        let mut asked = Vec::new();
        for body in bodies {
            let (mut sender, request) = (sender.clone(), sync_request("http", authorization.expose(), body));
            asked.push(tokio::spawn(async move { ask(&mut sender, request).await }));
        }
        for one in asked {
            let (status, kinds) = one.await.expect("no panic");
            assert_eq!((status, kinds.last()), (StatusCode::OK, Some(&Kind::End)));
        }
    });
    assert_eq!(stand.items(), 520);
    stand.wait_until_idle();
}

#[test]
fn a_refusal_is_told_by_http_2_too() {
    let stand = Stand::start(config());
    let (address, body) = (stand.address, stand.download(1));
    let (status, kinds) = stand.runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let mut sender = speak_http2(socket).await;
        ask(&mut sender, sync_request("http", "Bearer x.y.z", body)).await
    });
    assert_eq!((status, kinds), (StatusCode::UNAUTHORIZED, vec![Kind::Error]));
    stand.wait_until_idle();
}

#[test]
fn plain_http_at_a_tls_port_gets_nothing() {
    let (stand, roots, _folder) = secure_stand();
    let mut socket = TcpStream::connect(stand.address).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    assert!(!all.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&all));
    // Who does not know the certificate does not speak with it.
    let strict = client_config(RootCertStore::empty(), b"h2");
    let mut stranger = ClientConnection::new(strict, localhost()).expect("a client");
    let mut socket = TcpStream::connect(stand.address).expect("a connection");
    assert!(stranger.complete_io(&mut socket).is_err());
    drop(roots);
}

#[test]
fn pem_files_that_are_none_are_named() {
    let stand = Stand::start(config());
    let folder = tempfile::tempdir().expect("a folder");
    let (chain, key, _) = certificate(folder.path());
    let other = tempfile::tempdir().expect("a folder");
    let (_, other_key, _) = certificate(other.path());
    let missing = folder.path().join("missing.pem");
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").expect("written");
    for (certificate, key, told) in [
        (&missing, &key, "tls_certificate"),
        (&chain, &missing, "tls_key"),
        (&chain, &empty, "tls_key"),
        (&empty, &key, "can't be used"),
        (&chain, &other_key, "can't be used"),
    ] {
        let config = Config { tls_certificate: Some(certificate.clone()), tls_key: Some(key.clone()), ..config() };
        let backend = Arc::new(headwater_consolidated::sqlite::Sqlite::new(stand.file()));
        let error =
            stand.runtime.block_on(Server::start(config, backend, Vec::new())).expect_err("refused").to_string();
        assert!(error.contains(told), "{certificate:?} {key:?}: {error}");
    }
}

/// A stream whose answer nobody reads is cut; the connection, and who shares it, goes on.
#[test]
fn an_http_2_reader_that_takes_nothing_is_cut() {
    let stand = Stand::start(Config { idle_ms_max: 200, ..config() });
    stand.fill(100_000);
    let (address, authorization, body) = (stand.address, anna().to_header(), stand.download(1));
    let (mut sender, answer) = stand.runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let mut sender = speak_http2(socket).await;
        let answer = sender.send_request(sync_request("http", authorization.expose(), body)).await.expect("a head");
        (sender, answer)
    });
    stand.wait_until_idle();
    let (broken, health) = stand.runtime.block_on(async {
        let broken = answer.into_body().collect().await.is_err();
        let health = Request::get("http://localhost/health").body(Full::default()).expect("a request");
        (broken, sender.send_request(health).await.expect("an answer").status())
    });
    assert!(broken, "the answer has no end");
    assert_eq!(health, StatusCode::OK);
}

/// The codes that an HTTP/1 answer has are those of HTTP/2: a limit of the body among them.
#[test]
fn a_body_above_the_limit_is_refused_by_http_2() {
    let stand = Stand::start(Config { upload_bytes_max: 10_000, ..config() });
    let (address, authorization) = (stand.address, anna().to_header());
    let answer = stand.runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let mut sender = speak_http2(socket).await;
        let request = sync_request("http", authorization.expose(), vec![0; 20_000]);
        let answer = sender.send_request(request).await.expect("an answer");
        let status = answer.status();
        (status, answer.into_body().collect().await.expect("a body").to_bytes())
    });
    assert_eq!(answer.0, StatusCode::PAYLOAD_TOO_LARGE);
    let last = frames(&answer.1).pop().expect("a frame");
    let error = headwater_protocol::message::ServerError::from_payload(&last.payload(1000).expect("a payload"));
    assert_eq!(error.expect("an error").code, ErrorCode::TooLarge);
}
