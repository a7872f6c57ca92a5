//! One statement with the parameters of many rows, which go out one after the other without waiting in between.
//!
//! ```text
//! client   1 2 3 ... 128 |                 129 ... 256 |
//! server                 | 1, 2, 3, ... as they end    | 129, ...
//! ```
//!
//! The server runs them in their order, and after one that failed runs none of the rest: they end in the error of a transaction that is
//! aborted. So the first answer in order that is an error is the one that tells, as if each had waited for the one before it.
//!
//! *Caveats.* In a transaction only: without one, those behind an error would be run.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::future::{MaybeDone, maybe_done};
use futures_util::{FutureExt as _, TryStreamExt as _};
use headwater_protocol::{Row, Value};
use tokio_postgres::{Client, Statement};

use super::bound::Bound;
use super::connection::PostgresConnection;
use super::raw;
use super::read::Stop;
use super::session::restored;
use super::statements::bound;
use crate::Error;

/// How many are on their way at most; the next waits for the first of them.
const IN_FLIGHT_MAX: usize = 128;

impl PostgresConnection {
    /// Runs a statement for what it does with each of these parameters.
    pub(super) fn execute_pipelined(
        &mut self,
        sql: &str,
        parameters: &mut dyn Iterator<Item = Vec<Value>>,
    ) -> Result<(), Error> {
        let run = async |client: &Client, statement: &Statement, bound: Vec<Bound>| {
            client.execute_raw(statement, &bound).await.map(|_| ())
        };
        self.pipelined(sql, parameters, &run, |()| Ok(()))
    }

    /// Hands on the rows that a query gives with each of these parameters.
    pub(super) fn query_pipelined(
        &mut self,
        sql: &str,
        parameters: &mut dyn Iterator<Item = Vec<Value>>,
        each: &mut dyn FnMut(Vec<Row>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let run = async |client: &Client, statement: &Statement, bound: Vec<Bound>| {
            client.query_raw(statement, &bound).await?.try_collect::<Vec<_>>().await
        };
        self.pipelined(sql, parameters, &run, |rows| each(rows.iter().map(raw::row).collect::<Result<_, _>>()?))
    }

    fn pipelined<T>(
        &mut self,
        sql: &str,
        parameters: &mut dyn Iterator<Item = Vec<Value>>,
        run: &impl AsyncFn(&Client, &Statement, Vec<Bound>) -> Result<T, tokio_postgres::Error>,
        each: impl FnMut(T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut parameters = parameters.peekable();
        if parameters.peek().is_none() {
            return Ok(());
        }
        let statement = self.kept(sql)?;
        let (queued, restore) = (self.take_queued(), self.restoring());
        let done = self.link.run(async |client| {
            let requests = parameters.map(|parameters| {
                let bound = bound(sql, &statement, &parameters);
                async {
                    let request = run(client, &statement, bound.map_err(Stop::Own)?);
                    restored(client, restore.as_ref(), request).await.map_err(Stop::Server)
                }
            });
            queued.before(client, in_order(requests, each)).await
        });
        self.application_ran();
        done.map_err(|stop| match stop {
            Stop::Server(failure) => self.query_failure(sql, &failure),
            Stop::Own(error) => {
                self.state.failed = self.state.mode.is_some();
                error
            }
        })
    }
}

/// Begins requests in their order, some of them ahead, and hands on their answers in the same order, up to the first error.
async fn in_order<T>(
    requests: impl Iterator<Item = impl Future<Output = Result<T, Stop>>>,
    mut each: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Stop> {
    let mut in_flight = VecDeque::with_capacity(IN_FLIGHT_MAX);
    for request in requests {
        if in_flight.len() == IN_FLIGHT_MAX
            && let Some(first) = in_flight.pop_front()
        {
            each(answer(first).await?).map_err(Stop::Own)?;
        }
        let mut request = Box::pin(maybe_done(request));
        // It goes out when it is polled first.
        let _ = request.as_mut().now_or_never();
        in_flight.push_back(request);
    }
    for request in in_flight {
        each(answer(request).await?).map_err(Stop::Own)?;
    }
    Ok(())
}

async fn answer<F: Future>(mut request: Pin<Box<MaybeDone<F>>>) -> F::Output {
    request.as_mut().await;
    request.as_mut().take_output().expect("the output of a request is taken once")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::task::yield_now;

    use super::*;

    /// Requests that end out of order: each third at once, the others later and later.
    async fn request(number: usize, begun: &Cell<usize>) -> Result<usize, Stop> {
        assert_eq!(begun.replace(number + 1), number, "begun out of order");
        for _ in 0..number % 3 {
            yield_now().await;
        }
        if number == 700 { Err(Stop::Own(Error::RemoteBusy)) } else { Ok(number) }
    }

    fn run(count: usize) -> (Result<(), Stop>, usize, usize) {
        let (begun, mut answered, mut ahead_max) = (Cell::new(0), 0, 0);
        let work = in_order((0..count).map(|number| request(number, &begun)), |number| {
            assert_eq!(number, answered, "answered out of order");
            ahead_max = ahead_max.max(begun.get() - answered);
            answered += 1;
            Ok(())
        });
        let done = tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work);
        (done, answered, ahead_max)
    }

    #[test]
    fn answers_come_in_order_and_so_many_are_on_their_way() {
        for (count, ahead) in [(0, 0), (1, 1), (IN_FLIGHT_MAX, IN_FLIGHT_MAX), (500, IN_FLIGHT_MAX)] {
            let (done, answered, ahead_max) = run(count);
            assert!(done.is_ok());
            assert_eq!((answered, ahead_max), (count, ahead));
        }
    }

    #[test]
    fn nothing_is_handed_on_behind_the_first_error() {
        let (done, answered, _) = run(1_000);
        assert!(matches!(done, Err(Stop::Own(Error::RemoteBusy))));
        assert_eq!(answered, 700);
    }
}
