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
