//! What is changed while the gateway runs, and heeded at the next request.

use headwater_knobs::{Knobs, contract};

use super::*;

fn set(knobs: &Knobs, name: &str, value: &str) {
    knobs.change(&[(format!("gateway.{name}"), value.to_owned())]).expect("sound");
}

#[tokio::test]
async fn every_knob_does_what_it_says() {
    let stand = Stand::new(Settings::default());
    let knobs = Knobs::new(stand.gateway.knobs());
    contract::check(&knobs, |_| Vec::new()).expect("sound");
    assert_eq!(*stand.gateway.settings().now(), Settings::default(), "all is as before");
}

#[tokio::test]
async fn places_for_queries_follow() {
    let stand = Stand::new(Settings { executions_max: 1, waiting_max: 0, ..Settings::default() });
    let knobs = Knobs::new(stand.gateway.knobs());
    let held = stand.gateway.service.hold_slots().await;
    let asked = async || stand.get("/q/kept.json", &[]).await.status();
    assert_eq!(asked().await, StatusCode::SERVICE_UNAVAILABLE);
    set(&knobs, "executions_max", "2");
    assert_eq!(asked().await, StatusCode::OK, "there is a place more, and a connection");
    drop(held);
}

#[tokio::test]
async fn what_is_kept_and_how_it_is_packed_follow() {
    let stand = Stand::new(Settings { cache: false, ..Settings::default() });
    let knobs = Knobs::new(stand.gateway.knobs());
    let runs = async || {
        let before = stand.gateway.counts().0;
        assert_eq!(stand.get("/q/kept.json", &[]).await.status(), StatusCode::OK);
        stand.gateway.counts().0 - before
    };
    assert_eq!((runs().await, runs().await), (1, 1), "nothing is kept");
    set(&knobs, "cache", "true");
    assert_eq!((runs().await, runs().await), (1, 0));
    let coding = async || {
        let answer = stand.get("/q/many.json", &[("accept-encoding", "gzip")]).await;
        answer.headers().contains_key(header::CONTENT_ENCODING)
    };
    assert!(coding().await);
    set(&knobs, "compression", "0");
    assert!(!coding().await, "level 0 is none");
}

#[tokio::test]
async fn how_full_pieces_are_follows() {
    let stand = Stand::new(Settings { held_bytes_max: 0, ..Settings::default() });
    let knobs = Knobs::new(stand.gateway.knobs());
    let pieces = async || {
        let mut body = stand.get("/q/many.ndjson", &[]).await.into_body();
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            let bytes = frame.expect("a piece").into_data().expect("bytes");
            pieces.push((bytes.split(|byte| *byte == b'\n').count() - 1, bytes.len()));
        }
        assert_eq!(pieces.iter().map(|(rows, _)| rows).sum::<usize>(), 200_000);
        pieces
    };
    let rows = |pieces: &[(usize, usize)]| pieces[..3].iter().map(|(rows, _)| *rows).collect::<Vec<_>>();
    let is_full = |pieces: &[(usize, usize)], bytes: usize| {
        assert!(
            pieces[..pieces.len() - 1].iter().all(|(_, actual)| (bytes..bytes + 100).contains(actual)),
            "{pieces:?}"
        );
        true
    };
    assert!(is_full(&pieces().await, 65_536));
    set(&knobs, "packing.delay_first", "false");
    assert_eq!(rows(&pieces().await), [1, 2, 4], "the first row goes alone");
    set(&knobs, "packing.delay_first", "true");
    set(&knobs, "packing.records", "300");
    assert_eq!(rows(&pieces().await), [300, 300, 300]);
    set(&knobs, "packing.records", "automatic");
    set(&knobs, "packing.fill", "50");
    assert!(is_full(&pieces().await, 32_768));
    set(&knobs, "packing.message_size", "2000");
    assert!(is_full(&pieces().await, 1_000));
}
