//! What is known to go wrong between a Squid and the servers behind it.

use headwater_lab::frontier::Request;

use super::*;

impl Front {
    fn hits(&self, target: &str, count: usize) -> Vec<bool> {
        self.answers(target, count).iter().map(|answer| answer.contains("HIT/")).collect()
    }
}

/// A Squid that is not told otherwise takes what has less than a minute to live for too old.
#[test]
fn an_answer_in_its_last_minute_is_a_hit() {
    let front = Front::new();
    front.stage.query("brief.sql", "-- public = true\n-- max_age_s = 50\nSELECT count(*) AS n FROM flight");
    let front = front.again();
    for _ in 0..2 {
        assert_eq!(front.get("/q/brief.csv", "").1, "n\r\n3\r\n");
    }
    assert_eq!(front.hits("/q/brief.csv", 2), [false, true]);
}

/// A 304 says for how long, and when: what it confirms is fresh once more.
#[test]
fn what_a_304_confirms_is_fresh_again() {
    const LIFE: Duration = Duration::from_secs(5);
    let front = Front::new();
    let text = format!("-- public = true\n-- max_age_s = {}\nSELECT count(*) AS n FROM flight", LIFE.as_secs());
    front.stage.query("brief.sql", &text);
    let front = front.again();
    let first = front.get("/q/brief.csv", "");
    std::thread::sleep(LIFE + Duration::from_secs(1));
    let second = front.get("/q/brief.csv", "");
    let third = front.get("/q/brief.csv", "");
    assert!(first.1 == second.1 && second.1 == third.1);
    let answers = front.answers("/q/brief.csv", 3);
    assert!(answers[1].contains("REFRESH_UNMODIFIED/200") && answers[2].contains("HIT/200"), "{answers:?}");
    let date = |head: &str| head.lines().find(|line| line.starts_with("date: ")).map(str::to_owned);
    let (made, told) = (date(&first.0), date(&second.0));
    assert!(made.is_some() && told.is_some() && told != made, "that of the 304 goes to whoever asks: {}", second.0);
}

/// The database fails on the way: what came is not taken for the whole, by nobody.
#[test]
fn an_answer_that_is_cut_off_is_not_kept() {
    const ROWS: &str = "repeat('x', 1000) AS x, 1 / (i - 9000) AS q FROM generate_series(1, 10000) AS i";
    let front = Front::new();
    front.stage.query("broken.sql", &format!("-- public = true\n-- max_age_s = 1000\nSELECT {ROWS}"));
    let front = front.again();
    let frontier = format!("/X/Frontier/{}", Request::new(&format!("select {ROWS}")).target());
    for (target, headers) in [("/q/broken.csv", ""), (frontier.as_str(), ID)] {
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let (head, body) = front.get(target, headers);
            assert!(head.starts_with("http/1.1 200"), "it had begun: {head}");
            assert!(!body.contains("</frontier>"), "it has no end");
            lengths.push(body.len());
        }
        assert!(lengths.iter().all(|length| *length > 5_000_000), "{lengths:?}");
        let part = if headers.is_empty() { "/q/broken.csv" } else { "/X/Frontier/type" };
        assert_eq!(front.hits(part, 2), [false, false]);
    }
}
