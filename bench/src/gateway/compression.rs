//! The level of compression that the gateway finds, against the best fixed one: answers that nobody has asked for yet, by lines of three speeds.
#![allow(clippy::print_stdout)]

use anyhow::{Result, ensure};

use super::GatewayArguments;
use super::load::{self, Load};
use super::stage::{Central, Served, metered};
use crate::figures::{figure, measured};
use crate::purchase;
use crate::speed::median;

const QUERY: &str = "-- public = true\n-- max_age_s = 86400\n-- [parameters]\n-- n = { type = \"int\" }\n\
                     SELECT :n AS n, emp_id, purch_id, cust_id, cost, order_date, notes FROM purchase ORDER BY purch_id";
/// Rows of an answer: some megabyte of CSV, which is held and compressed whole.
const ROWS: u64 = 12_000;
const MEGABITS: [f64; 3] = [10.0, 100.0, 1_000.0];
const CODINGS: [&str; 2] = ["gzip", "zstd"];
/// What is found comes first.
const LEVELS: [&str; 5] = ["\"auto\"", "0", "1", "5", "9"];
/// Answers of a turn; the first turn of each shows the gateway what its line and its levels are worth, and is not counted.
const ANSWERS: usize = 4;

/// The worst of all lines and codings: the time by the best fixed level against that by the level that is found.
pub(super) fn found(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    central.sql("DROP TABLE IF EXISTS purchase, member")?;
    central.sql(purchase::TABLES)?;
    central.sql(&format!("INSERT INTO purchase {}", purchase::rows_sql(1, 1, ROWS)))?;
    let (mut asked, mut all) = (0, Vec::new());
    for coding in CODINGS {
        for megabits in MEGABITS {
            all.push(by_one_line(arguments, central, (coding, megabits), &mut asked)?);
        }
    }
    let worst = all.into_iter().min_by(|one, other| median(one).total_cmp(&median(other)));
    figure("gateway.automatic_compression", measured(&worst.unwrap_or_default()));
    Ok(())
}

/// The ratios of one coding and one line, a turn each.
fn by_one_line(
    arguments: &GatewayArguments,
    central: &Central,
    (coding, megabits): (&str, f64),
    asked: &mut u64,
) -> Result<Vec<f64>> {
    let serve = |level: &&str| Served::start(&central.url, &[("many", QUERY)], &format!("compression = {level}\n"));
    let served = LEVELS.iter().map(serve).collect::<Result<Vec<_>>>()?;
    let mut seconds = vec![Vec::new(); LEVELS.len()];
    for turn in 0..=arguments.repetitions {
        for (served, seconds) in served.iter().zip(&mut seconds) {
            let took = turn_of(served, coding, megabits, asked)?.seconds;
            if turn > 0 {
                seconds.push(took / ANSWERS as f64);
            }
        }
    }
    for (level, seconds) in LEVELS.iter().zip(&seconds) {
        let (level, ms) = (level.trim_matches('"'), median(seconds) * 1e3);
        println!("rate gateway.{coding}_{megabits}_mbit_{level}_ms {ms:.1}");
    }
    let (found, fixed) = (&seconds[0], &seconds[1..]);
    let best = fixed.iter().min_by(|one, other| median(one).total_cmp(&median(other)));
    Ok(best.into_iter().flatten().zip(found).map(|(best, found)| best / found).collect())
}

fn turn_of(served: &Served, coding: &str, megabits: f64, asked: &mut u64) -> Result<Load> {
    let field = format!("Accept-Encoding: {coding}\r\n");
    let next = |_| {
        *asked += 1;
        load::request(&format!("/q/many.csv?n={asked}"), &field)
    };
    let requests: Vec<_> = (0..ANSWERS).map(next).collect();
    let name = format!("{coding}, {megabits} Mbit/s");
    let load = metered(&name, served.id(), || load::by_line(served.place, &requests, megabits * 1e6 / 8.0))?;
    ensure!(load.bytes > 0, "nothing came");
    Ok(load)
}
