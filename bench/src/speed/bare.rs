//! The same work by bare loops: some connections, each of which takes the next piece until there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _, pin_mut};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

use crate::bare::Raw;

/// Connections that are open, with what they have prepared.
pub(crate) struct Loop {
    runtime: tokio::runtime::Handle,
    clients: Vec<Arc<(Client, Vec<Statement>)>>,
}

/// One transaction's rows.
pub(crate) enum Piece {
    /// A query whose rows are read by binary COPY.
    Copy(String),
    /// Parameters of the statement that was prepared at this place.
    Arrays(usize, Vec<Raw>),
    /// What goes into a table by binary COPY: its name, and the bytes.
    Into(String, Bytes),
}

impl Loop {
    /// Opens so many connections, each of which runs `first` and prepares these.
    pub(crate) fn open(
        runtime: &Runtime,
        url: &str,
        connections: usize,
        first: &str,
        prepared: &[&str],
    ) -> Result<Loop> {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
            runtime.spawn(connection);
            runtime.block_on(client.batch_execute(first))?;
            let mut statements = Vec::new();
            for sql in prepared {
                statements.push(runtime.block_on(client.prepare(sql))?);
            }
            clients.push(Arc::new((client, statements)));
        }
        Ok(Loop { runtime: runtime.handle().clone(), clients })
    }

    /// Does all pieces on the first so many connections; gives seconds, and bytes that came.
    pub(crate) fn run(&self, connections: usize, pieces: Vec<Piece>) -> Result<(f64, usize)> {
        let (pieces, next) = (Arc::new(pieces), Arc::new(AtomicUsize::new(0)));
        let begin = Instant::now();
        let tasks: Vec<_> = self.clients[..connections.min(self.clients.len())]
            .iter()
            .map(|client| {
                let (client, pieces, next) = (Arc::clone(client), Arc::clone(&pieces), Arc::clone(&next));
                self.runtime.spawn(async move {
                    let mut bytes = 0;
                    while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                        bytes += one(&client.0, &client.1, piece).await?;
                    }
                    anyhow::Ok(bytes)
                })
            })
            .collect();
        let mut bytes = 0;
        for task in tasks {
            bytes += self.runtime.block_on(task)??;
        }
        Ok((begin.elapsed().as_secs_f64(), bytes))
    }
}

async fn one(client: &Client, statements: &[Statement], piece: &Piece) -> Result<usize> {
    match piece {
        Piece::Copy(query) => {
            let copy = client.copy_out(&format!("COPY ({query}) TO STDOUT (FORMAT binary)")).await?;
            pin_mut!(copy);
            let mut bytes = 0;
            while let Some(chunk) = copy.next().await {
                bytes += chunk?.len();
            }
            Ok(bytes)
        }
        Piece::Arrays(statement, arrays) => {
            let parameters = arrays.iter().map(|array| array as &(dyn tokio_postgres::types::ToSql + Sync));
            let statement = statements.get(*statement).context("no such statement")?;
            client.execute(statement, &parameters.collect::<Vec<_>>()).await?;
            Ok(0)
        }
        Piece::Into(table, rows) => {
            let sink = client.copy_in(&format!("COPY {table} FROM STDIN (FORMAT binary)")).await?;
            pin_mut!(sink);
            sink.send(rows.clone()).await?;
            sink.close().await?;
            Ok(0)
        }
    }
}

/// Purchases of an employee from number `first` on, as six arrays.
pub(crate) fn arrays(runtime: &Runtime, client: &Client, employee: usize, first: i64, count: i64) -> Result<Vec<Raw>> {
    let sql = format!(
        "SELECT array_agg(e), array_agg(n), array_agg(c), array_agg(k), array_agg(d), array_agg(t) FROM ({}) AS p(e, n, c, k, d, t)",
        purchases_sql(employee, first, count)
    );
    let row = runtime.block_on(client.query_one(&sql, &[]))?;
    (0..6).map(|place| Ok(row.try_get(place)?)).collect()
}

/// The same as a binary COPY.
pub(crate) fn copied(runtime: &Runtime, client: &Client, employee: usize, first: i64, count: i64) -> Result<Bytes> {
    runtime.block_on(async {
        let sql = format!("COPY ({}) TO STDOUT (FORMAT binary)", purchases_sql(employee, first, count));
        let copy = client.copy_out(&sql).await?;
        pin_mut!(copy);
        let mut bytes = BytesMut::new();
        while let Some(chunk) = copy.next().await {
            bytes.extend_from_slice(&chunk?);
        }
        ensure!(!bytes.is_empty(), "nothing was copied");
        Ok(bytes.freeze())
    })
}

fn purchases_sql(employee: usize, first: i64, count: i64) -> String {
    format!(
        "SELECT {employee}, n::int, (n % 1000)::int, 123456789.12::numeric(30,6), timestamp '2005-01-01' + n * interval '1.000001 second', \
         md5(n::text || '{employee}') || md5((n + 1)::text) FROM generate_series({first}::int8, {}) AS n",
        first + count - 1
    )
}
