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

/// It comes without a length, and has no room in memory.
#[test]
fn a_large_answer_is_kept_on_the_disk() {
    const ROWS: &str = "SELECT repeat('x', 1000) AS x, i FROM generate_series(1, 12000) AS i";
    let front = Front::new();
    front.stage.query("large.sql", &format!("-- public = true\n-- max_age_s = 1000\n{ROWS}"));
    let front = front.again();
    let (head, first) = front.get("/q/large.csv", "");
    assert!(head.starts_with("http/1.1 200") && first.len() > 12_000_000, "{head}");
    for _ in 0..2 {
        assert_eq!(front.get("/q/large.csv", "").1.matches(",12000\r\n").count(), 1);
    }
    assert_eq!(front.hits("/q/large.csv", 3), [false, true, true]);
    // Small ones stay in memory.
    for _ in 0..2 {
        front.get("/q/kept.csv", "");
    }
    let answers = front.answers("/q/kept.csv", 2);
    assert!(answers[1].contains("MEM_HIT/200"), "{answers:?}");
}

/// Of a large answer that comes as it is read the tag is a weak one. By it Squid is told that nothing has changed, and tells that of what is
/// fresh; what it had to ask for again it gives whole, whatever tag its client has.
#[test]
fn weak_tags_are_tags_to_squid() {
    const ROWS: &str = "SELECT id, repeat('x', 1000000) AS x FROM flight CROSS JOIN generate_series(1, 5) AS i";
    let front = Front::new();
    front.stage.query("fresh.sql", &format!("-- public = true\n-- max_age_s = 1000\n{ROWS}"));
    front.stage.query("stale.sql", &format!("-- public = true\n{ROWS}"));
    let front = front.again();
    let ask = |target: &str, tag: &str| {
        let given = if tag.is_empty() { String::new() } else { format!("If-None-Match: {tag}\r\n") };
        let (head, body) = front.get(target, &given);
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap_or_default().replace("w/", "W/");
        (head[.."http/1.1 200".len()].to_owned(), tag, body.matches(",xx").count())
    };
    let whole = |tag: &str, rows| ("http/1.1 200".to_owned(), tag.to_owned(), rows);
    for (target, expected) in [("/q/fresh.csv", "TCP_INM_HIT/304"), ("/q/stale.csv", "TCP_REFRESH_UNMODIFIED/200")] {
        let (_, tag, rows) = ask(target, "");
        assert!(tag.starts_with("W/") && rows == 15, "{target} {tag}: {rows}");
        let again = ask(target, &tag);
        match expected {
            "TCP_INM_HIT/304" => assert_eq!((again.0.as_str(), again.2), ("http/1.1 304", 0)),
            _ => assert_eq!(again, whole(&tag, 15)),
        }
        assert_eq!(front.answers(target, 2)[1], expected, "{target}");
    }
    let (_, tag, _) = ask("/q/stale.csv", "");
    assert!(get(&front.server, "/q/stale.csv", &format!("If-None-Match: {tag}\r\n")).0.starts_with("http/1.1 304"));
    front.sql("DELETE FROM flight WHERE id = 1");
    assert_eq!(ask("/q/stale.csv", &tag).2, 10);
    assert_eq!(front.answers("/q/stale.csv", 4)[3], "TCP_REFRESH_MODIFIED/200");
}
