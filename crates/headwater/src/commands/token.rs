//! `headwater token`: a bearer token for a user or a program.

use std::time::{Duration, SystemTime};

use clap::Args;
use headwater_access::Tokens;
use headwater_consolidated::system;
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater token anna --for 30d
  HEADWATER_TOKEN=$(headwater token van-7 --for 12h) headwater remote sync van.db

Whoever has the token may sync as this user until it expires or the user is disabled.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenArgs {
    /// The user.
    user: String,
    /// How long it is good: a number and s, m, h or d.
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = duration)]
    time: Duration,
}

/// Prints a token.
pub fn run(args: &TokenArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let mut connection = config.connect_installed()?;
    let account = match system::find_account(&mut *connection, &args.user)? {
        None => return Err(usage(format!("there is no user {:?}; `headwater user add` adds one", args.user))),
        Some(account) if account.disabled => {
            return Err(usage(format!("{:?} is disabled; `headwater user enable` mends that", args.user)));
        }
        Some(account) => account,
    };
    let key = system::identity(&mut *connection)?.token_key;
    let token =
        Tokens::new(&key)?.issue_for(&args.user, Some(account.created_at.as_str()), args.time, SystemTime::now())?;
    let answer = json!({ "user": args.user, "token": token.expose(), "seconds": args.time.as_secs() });
    output.answer(&answer, |output| output.line(token.expose()))?;
    Ok(Exit::Done)
}

/// Reads `90s`, `15m`, `12h`, `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const YEAR: u64 = 366 * 86_400;
    let expected =
        || format!("{text:?} is not a duration, expected a number and s, m, h or d, at most 366d: 90s, 15m, 12h, 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(expected)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    number.checked_mul(seconds).filter(|s| (1..=YEAR).contains(s)).map(Duration::from_secs).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_have_a_unit_and_a_limit() {
        assert_eq!(
            ["90s", "15m", "12h", "30d"].map(|t| duration(t).map(|d| d.as_secs())),
            [Ok(90), Ok(900), Ok(43_200), Ok(2_592_000)]
        );
        for text in ["", "5", "d", "0s", "-1h", "367d", "99999999999999999999d", "5ü", "1.5h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
