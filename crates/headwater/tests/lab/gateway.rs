//! Requests to a real gateway: named queries and the Frontier protocol, by themselves and through a real Squid.

use headwater_testkit::Squid;

use super::super::{Place, targets};

/// One airport's queries of one month, by name and as SQL.
const ASKS: &str = "name = \"f\"
scenario = { name = \"http\", zipf = 1.0, hit_ratio = 0.9, asks = ASKS }
target.url = \"gateway:g.toml\"
load.clients = 2
seed = 7
stop.iterations = 300
";
const NAMED: &str = "\"/q/day.csv?origin={EWR,JFK}&day={1..20}\"";
const SQL: &str = "\"select dest, dep_delay from flights where origin = '{EWR,JFK}' and day = {1..20} order by carrier, flight, sched_dep_time\"";

const DAY: &str = "-- public = true
-- max_age_s = 3600
-- [parameters]
-- origin = { type = \"text\", values = [\"EWR\", \"JFK\"] }
-- day = { type = \"int\", min = 1, max = 31 }
-- lab = { type = \"text\", default = \"\" }
SELECT dest, dep_delay FROM flights WHERE origin = :origin AND day = :day AND :lab = :lab ORDER BY carrier, flight, sched_dep_time
";

/// A folder with January's flights and a gateway's configuration.
fn flights(asks: &str, rest: &str) -> Place {
    let place = Place::new(&(ASKS.replace("ASKS", asks) + rest));
    let month = flights::Selection { month: Some(1) };
    flights::load_sqlite(place.path("flights.db"), month).expect("loaded");
    std::fs::create_dir(place.path("queries")).expect("a folder");
    std::fs::write(place.path("queries/day.sql"), DAY).expect("written");
    let config = "[database]\nurl = \"sqlite:flights.db\"\n[gateway]\n[gateway.frontier]\nname = \"Frontier\"\nallowed = [\"127.0.0.1\"]\n";
    std::fs::write(place.path("g.toml"), config).expect("written");
    place
}

/// Operations, hits and misses of the only cell, in which nothing failed.
fn counted(place: &Place, arguments: &[&str]) -> [i64; 3] {
    let said = place.run(&[&["run", "x.toml", "--results", "f.lab"], arguments].concat());
    assert_eq!(said.code, 0, "{said:?}");
    let results = rusqlite::Connection::open(place.path("f.lab")).expect("results");
    let sql = "SELECT operations, errors, coalesce((SELECT sum(hits) FROM traffic), 0), coalesce((SELECT sum(misses) FROM traffic), 0)
               FROM run WHERE state = 'done'";
    let row = |row: &rusqlite::Row<'_>| Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?]);
    let [operations, errors, hits, misses] = results.query_row(sql, [], row).expect("one run");
    assert_eq!(errors, 0, "{said:?}");
    [operations, hits, misses]
}

#[test]
fn the_gateway_tells_which_named_queries_it_had_kept() {
    let [operations, hits, misses] = counted(&flights(NAMED, ""), &[]);
    assert_eq!((operations, hits + misses), (300, 300));
    // Forty things at most are made once, and each tenth request is for what nobody has asked before.
    assert!((180..=285).contains(&hits), "{hits} of 300");
}

#[test]
fn squid_keeps_what_the_frontier_protocol_answers() {
    let squid = Squid::start().expect("Squid");
    let place = flights(SQL, &format!("target.proxy = \"{}\"\n", squid.url()));
    let [operations, hits, misses] = counted(&place, &[]);
    assert_eq!((operations, hits + misses), (300, 300), "Squid tells of each");
    assert!((180..=285).contains(&hits), "{hits} of 300");
    let asked = squid.answers("/Frontier/Frontier/type=frontier_request:1:DEFAULT");
    assert!(asked.len() >= 300 && asked.iter().all(|answer| answer.ends_with("/200")), "{asked:?}");
}

/// Every value of a table comes back by the lab's own client as it was written, whatever its type, compressed or not.
#[test]
fn values_of_a_table_come_back_by_the_frontier_protocol() {
    let place = Place::new(
        "name = \"t\"\nload.clients = 2\nstop.iterations = 6\n[scenario]\nname = \"http\"\npayload_bytes = 20_000\n\
         column = [\"int\", \"float\", \"double\", \"text\", \"blob\"]\ncompression = [0, 5]\nhit_ratio = 0.5\n",
    );
    for target in targets(&place) {
        let address = format!("gateway:{}", target.address());
        let said = place.run(&["run", "x.toml", "--target", &address, "--results", "t.lab"]);
        assert_eq!(said.code, 0, "{said:?}");
        let results = rusqlite::Connection::open(place.path("t.lab")).expect("results");
        let sql = "SELECT count(*) FROM run WHERE state = 'done' AND operations = 6 AND errors = 0";
        assert_eq!(results.query_row(sql, [], |row| row.get(0)), Ok(10), "{said:?}");
        assert_eq!(target.tables(), 0, "the lab's table is gone");
        std::fs::remove_file(place.path("t.lab")).expect("results");
        // Somebody's table of that name is left alone.
        target.sql("CREATE TABLE lab_answer (mine integer); SELECT 1");
        let said = place.run(&["run", "x.toml", "--target", &address, "--results", "t.lab"]);
        assert!(said.code != 0 && said.err.contains("has a table lab_answer already"), "{said:?}");
        assert_eq!(target.tables(), 1);
        std::fs::remove_file(place.path("t.lab")).expect("results");
    }
}

#[test]
fn what_can_not_be_asked_is_told_before_anything_is_run() {
    for (from, to, why) in [
        ("gateway:g.toml", "gateway:", "the gateway's database is missing"),
        ("gateway:g.toml", "gateway:oracle://x", "has \"oracle\""),
        ("gateway:g.toml", "gateway:absent.toml", "the gateway could not be started"),
        ("gateway:g.toml", "gateway:sqlite:flights.db", "asks has paths, which are of named queries"),
        ("gateway:g.toml", "origin:", "has one answer: leave asks out"),
        ("{1..20}", "{20..1}", "{20..1} stands for nothing"),
        ("zipf = 1.0", "zipf = 11.0", "only 0 to 10"),
        (", asks = \"/q/day.csv?origin={EWR,JFK}&day={1..20}\"", "", "where asks has nothing"),
    ] {
        let place = flights(NAMED, "");
        let text = std::fs::read_to_string(place.path("x.toml")).expect("an experiment");
        assert!(text.contains(from), "{from}");
        std::fs::write(place.path("x.toml"), text.replace(from, to)).expect("written");
        let said = place.run(&["run", "x.toml", "--results", "f.lab"]);
        assert!(said.code != 0 && said.err.contains(why), "{why}: {said:?}");
    }
}
