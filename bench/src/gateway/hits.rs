//! Answers that are kept: how many a second, against Squid in front of the same server, and as 304.

use anyhow::{Context, Result, ensure};
use headwater_testkit::Squid;

use super::load::{self, Load};
use super::stage::{Central, Served, metered};
use super::{GatewayArguments, compare};

const TABLE: &str = "DROP TABLE IF EXISTS flight;
CREATE TABLE flight (id integer PRIMARY KEY, origin text NOT NULL, delay integer, fare numeric(10, 2));
INSERT INTO flight VALUES (1, 'JFK', 5, 10.50), (2, 'JFK', NULL, NULL), (3, 'JFK', 7, 9.99), (4, 'EWR', 1, 1)";
const QUERY: &str = "-- public = true\n-- max_age_s = 86400\n-- [parameters]\n-- origin = { type = \"text\", length_max = 3 }\n\
                     SELECT id, delay, fare FROM flight WHERE origin = :origin ORDER BY id";
const TARGET: &str = "/q/flights.json?origin=JFK";

fn served(central: &Central) -> Result<Served> {
    central.sql(TABLE)?;
    Served::start(&central.url, &[("flights", QUERY)], "")
}

/// Requests a second.
fn per_s(load: Load) -> f64 {
    load.requests as f64 / load.seconds
}

/// A kept answer of three rows by the gateway, and by Squid, which has it in memory.
pub(super) fn against_squid(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    let served = served(central)?;
    let squid = Squid::in_front_of_queries_unlogged(served.place)?;
    let its = squid.url().trim_start_matches("http://").parse()?;
    let asked = load::request(TARGET, "");
    for place in [served.place, its, its] {
        let answer = load::get(place, &asked)?;
        ensure!(answer.status == 200 && answer.bytes > 0, "{}", answer.head);
    }
    let answer = load::get(its, &asked)?;
    ensure!(answer.field("x-cache").is_some_and(|told| told.starts_with("HIT")), "Squid has no hit: {}", answer.head);
    let requests = vec![asked; arguments.clients];
    let hits =
        |name: &str, place, id| metered(name, id, || load::again(place, &requests, 200, arguments.turn())).map(per_s);
    compare(
        arguments,
        "gateway.hit_vs_squid",
        ["hits_per_s", "squid_hits_per_s"],
        || hits("hits", served.place, served.id()),
        || hits("hits by Squid", its, squid.id()),
    )
}

/// 304 for an answer that is kept, against giving it.
pub(super) fn revalidation(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    let served = served(central)?;
    let asked = load::request(TARGET, "");
    let answer = load::get(served.place, &asked)?;
    let tag = answer.field("etag").context("an answer without a tag")?;
    let again = vec![load::request(TARGET, &format!("If-None-Match: {tag}\r\n")); arguments.clients];
    let requests = vec![asked; arguments.clients];
    let turn = |name: &str, requests: &[Vec<u8>], status| {
        metered(name, served.id(), || load::again(served.place, requests, status, arguments.turn())).map(per_s)
    };
    compare(
        arguments,
        "gateway.revalidation_vs_hit",
        ["revalidations_per_s", "hits_beside_revalidations_per_s"],
        || turn("revalidations", &again, 304),
        || turn("hits", &requests, 200),
    )
}
