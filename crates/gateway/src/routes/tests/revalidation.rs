//! What is asked for again: of tracked tables, kept or not, and what has failed.

use headwater_consolidated::{Plan, track};

use super::*;

const MODEL: &str = "name = \"m\"\nversion = 1\n[tables.flight]\nkey = [\"id\"]\n\
                     columns = { id = \"int not null\", origin = \"text\", delay = \"int\", owner = \"text\" }";

const UNTOLD: &str = "UPDATE flight SET delay = delay + 1 WHERE id = 1; \
                      UPDATE headwater_table_change SET version = version - 1 WHERE table_name = 'flight'";

impl Stand {
    fn track(&self) {
        let plan = Plan::new(headwater_model::parse::parse("m.toml", MODEL).expect("a model"));
        let backend = Sqlite::new(self.path()).durable(false);
        track::track(&mut *backend.connect().expect("a connection"), &plan).expect("tracked");
        // So that it is on record.
        self.sql("INSERT INTO flight (id) VALUES (99); DELETE FROM flight WHERE id = 99");
    }

    /// The same, with tracked tables, and nothing that is kept between requests.
    fn forgetful() -> Stand {
        let stand = Stand::new(Settings { cache: false, ..Settings::default() });
        stand.track();
        stand
    }

    /// Status, tag and body, asked by a client that has the answer of this tag.
    async fn ask(&self, url: &str, tag: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        let headers: Vec<_> = headers.iter().copied().chain([("if-none-match", tag)]).collect();
        let response = self.get(url, &headers).await;
        let (status, tag) = (response.status().as_u16(), header_of(&response, "etag").to_owned());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, tag, String::from_utf8_lossy(&body).into_owned())
    }
}

/// The change is taken out of the record of changes, so nobody can know of it who has not run the query.
#[tokio::test]
async fn a_query_of_tracked_tables_is_not_run_again_until_they_change() {
    let stand = Stand::new(Settings::default());
    let url = "/q/flights.csv?origin=JFK";
    let ask = async || stand.text(url, &[]).await.1;
    assert_eq!(ask().await, "id,delay\r\n1,5\r\n2,\r\n");
    stand.sql("UPDATE flight SET delay = 6 WHERE id = 1");
    assert_eq!(ask().await, "id,delay\r\n1,6\r\n2,\r\n", "it is not tracked");

    let stand = Stand::new(Settings::default());
    let ask = async |tag: &str| stand.ask(url, tag, &[]).await;
    stand.track();
    stand.sql("UPDATE flight SET delay = 7 WHERE id = 1");
    let (_, tag, first) = ask("").await;
    assert_eq!(first, "id,delay\r\n1,7\r\n2,\r\n");
    stand.sql(UNTOLD);
    assert_eq!(ask("").await.2, first, "the query is not run");
    assert_eq!(ask(&tag).await.0, 304);
    stand.sql("DELETE FROM flight WHERE id = 2");
    let (status, other, second) = ask(&tag).await;
    assert_eq!((status, second.as_str()), (200, "id,delay\r\n1,8\r\n"));
    assert_ne!(other, tag);
}

/// Of the answers nothing is kept: that nothing has changed is told by the tag and the tables.
#[tokio::test]
async fn what_a_client_has_is_told_unchanged_though_nothing_is_kept() {
    let stand = Stand::forgetful();
    let url = "/q/flights.csv?origin=JFK";
    let (_, tag, first) = stand.ask(url, "", &[]).await;
    assert_eq!(first, "id,delay\r\n1,5\r\n2,\r\n");
    stand.sql(UNTOLD);
    assert_eq!(stand.ask(url, &tag, &[]).await, (304, tag.clone(), String::new()), "the query is not run");
    assert_eq!(stand.gateway.counts().1, 0, "nothing is kept");
    // Another question's tag says nothing of this one, whose content would be another.
    for other in ["/q/flights.json?origin=JFK", "/q/flights.csv?origin=EWR", "/q/flights.csv?origin=JFK&least=1"] {
        assert_eq!(stand.ask(other, &tag, &[]).await.0, 200, "{other}");
    }
    let again = Stand { gateway: Stand::gateway(&stand.path(), Settings::default(), str::to_owned), ..stand };
    assert_eq!(again.ask(url, &tag, &[]).await.0, 304, "by another server");
    let edited = |text: &str| text.replace("SELECT id, delay", "SELECT id, delay + 0 AS delay");
    let edited = Stand { gateway: Stand::gateway(&again.path(), Settings::default(), edited), ..again };
    assert_eq!(edited.ask(url, &tag, &[]).await.2, "id,delay\r\n1,6\r\n2,\r\n", "the query is another");
    let again = Stand { gateway: Stand::gateway(&edited.path(), Settings::default(), str::to_owned), ..edited };
    again.sql("DELETE FROM flight WHERE id = 2");
    let (status, other, second) = again.ask(url, &tag, &[]).await;
    assert_eq!((status, second.as_str()), (200, "id,delay\r\n1,6\r\n"));
    assert_ne!(other, tag);
}

#[tokio::test]
async fn tags_of_what_has_other_content_by_user_are_the_users_own() {
    let stand = Stand::forgetful();
    let (_, anns, _) = stand.ask("/q/own.csv", "", &[ANN]).await;
    assert_eq!(stand.ask("/q/own.csv", &anns, &[ANN]).await.0, 304);
    let (status, _, bobs) = stand.ask("/q/own.csv", &anns, &[BOB]).await;
    assert_eq!((status, bobs.as_str()), (200, "id\r\n2\r\n"));
    assert_eq!(stand.ask("/q/own.csv", &anns, &[]).await.0, 401);
}

/// It is sent as it comes, so its tag is a weak one.
#[tokio::test]
async fn an_answer_that_is_too_large_to_be_held_has_a_tag_too() {
    let stand = Stand::new(Settings { held_bytes_max: 8, ..Settings::default() });
    let url = "/q/flights.csv?origin=JFK";
    assert_eq!(stand.ask(url, "", &[]).await.1, "", "its tables are not tracked");
    let stand = Stand::new(Settings { held_bytes_max: 8, ..Settings::default() });
    stand.track();
    let (_, tag, first) = stand.ask(url, "", &[]).await;
    assert!(tag.starts_with("W/\"") && first == "id,delay\r\n1,5\r\n2,\r\n", "{tag}: {first}");
    stand.sql(UNTOLD);
    assert_eq!(stand.ask(url, &tag, &[]).await, (304, tag.clone(), String::new()));
    assert_eq!(stand.ask(url, &tag, &[("accept-encoding", "gzip")]).await.0, 304, "it says nothing of bytes");
    stand.sql("DELETE FROM flight WHERE id = 2");
    assert_eq!(stand.ask(url, &tag, &[]).await.2, "id,delay\r\n1,6\r\n");
}

#[tokio::test]
async fn a_freshness_query_tells_it_too() {
    let stand = Stand::new(Settings { cache: false, ..Settings::default() });
    let url = "/q/cheap.csv?origin=JFK";
    let (_, tag, first) = stand.ask(url, "", &[]).await;
    assert_eq!(first, "n,d\r\n2,5\r\n");
    stand.sql("UPDATE flight SET delay = 6 WHERE id = 1");
    assert_eq!(stand.ask(url, &tag, &[]).await.0, 304, "its greatest ID is the same");
    stand.sql("INSERT INTO flight VALUES (10, 'JFK', 1, 'ann')");
    assert_eq!(stand.ask(url, &tag, &[]).await.2, "n,d\r\n3,7\r\n");
}

/// What a hostile client makes of a tag is refused or told to itself.
#[tokio::test]
async fn tags_that_are_made_up_do_no_harm() {
    let stand = Stand::forgetful();
    let url = "/q/flights.csv?origin=JFK";
    let (_, tag, first) = stand.ask(url, "", &[]).await;
    let (begin, mark) = tag.trim_matches('"').rsplit_once('.').expect("a mark");
    let (seen, definitions) = mark.split_once('/').expect("both");
    let long = "0".repeat(5_000);
    for mark in [
        String::new(),
        "/".to_owned(),
        mark.replace('/', ""),
        format!("{seen}/{}", definitions.replace(|_| true, "0")),
        format!("{seen}0/{definitions}"),
        format!("zz/{definitions}"),
        format!("{long}/{definitions}"),
    ] {
        let (status, now, body) = stand.ask(url, &format!("\"x{begin}.{mark}\""), &[]).await;
        assert_eq!((status, now.as_str(), &body), (200, tag.as_str(), &first), "{mark}");
    }
}

/// A crowd that asks after a restart costs one look at the tables.
#[tokio::test]
async fn who_asks_at_the_same_time_waits_for_one_look() {
    const CROWD: usize = 100;
    let stand = Stand::forgetful();
    let url = "/q/flights.csv?origin=JFK";
    let (_, tag, _) = stand.ask(url, "", &[]).await;
    let before = stand.executions();
    let all = stand.gateway.service.hold_slots().await;
    let asked = futures_util::future::join_all((0..CROWD).map(|_| stand.ask(url, &tag, &[])));
    let release = async {
        while stand.gateway.service.waiters() < CROWD {
            tokio::task::yield_now().await;
        }
        drop(all);
    };
    let (answers, ()) = tokio::join!(asked, release);
    assert!(answers.iter().all(|(status, ..)| *status == 304), "{answers:?}");
    assert_eq!(stand.executions() - before, 1);
}

/// All places are held by slow queries, and nobody may wait: that nothing has changed is told all the while, of what is kept and of what
/// is not.
#[tokio::test(flavor = "multi_thread")]
async fn what_change_tracking_knows_is_told_while_all_places_are_taken() {
    let url = "/q/paged.csv";
    for cache in [false, true] {
        let settings = Settings { executions_max: 1, waiting_max: 0, cache, ..Settings::default() };
        let stand = Arc::new(Stand::new(settings));
        stand.track();
        let (_, tag, first) = stand.ask(url, "", &[]).await;
        let is_full = async |expected: bool| {
            while stand.gateway.service.is_full() != expected {
                tokio::task::yield_now().await;
            }
        };
        is_full(false).await;
        let slow = tokio::spawn({
            let stand = Arc::clone(&stand);
            async move { stand.get("/q/endless.csv", &[]).await }
        });
        is_full(true).await;
        stand.sql(UNTOLD);
        for _ in 0..3 {
            assert_eq!(stand.ask(url, &tag, &[]).await, (304, tag.clone(), String::new()));
        }
        if cache {
            assert_eq!(stand.ask(url, "", &[]).await.2, first, "what is kept is good still");
        }
        let others = stand.ask("/q/paged.csv?least=1", "", &[]).await;
        assert_eq!(others.0, 503, "what has to be run has no place: {others:?}");
        stand.sql("DELETE FROM flight WHERE id = 2");
        assert_ne!(stand.ask(url, &tag, &[]).await.0, 304, "nor has what has changed");
        assert!(!slow.is_finished(), "the place was taken all the while");
        slow.abort();
        is_full(false).await;
    }
}

#[tokio::test]
async fn what_failed_by_its_arguments_is_not_run_again_at_once() {
    let stand = Stand::new(Settings::default());
    let ask = async || stand.text("/q/few.csv", &[]).await;
    let first = ask().await;
    assert!(first.0 == 422 && first.1.contains("more than 2 rows"), "{first:?}");
    assert_eq!(ask().await, first);
    assert_eq!(stand.executions(), 1);
    // A fault of the server's own is none of theirs.
    for _ in 0..2 {
        assert_eq!(stand.text("/q/slow.csv", &[]).await.0, 504);
    }
    assert_eq!(stand.executions(), 3);
}
