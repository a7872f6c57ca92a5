//! Loading into PostgreSQL: one transaction, one COPY a table.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{NoTls, Transaction};

use crate::records::{self, NULL};
use crate::tables::{Database, TABLES, Table, schema};
use crate::{Counts, Selection};

/// How many bytes are collected before they are sent.
const CHUNK_BYTES: usize = 256 * 1024;

/// Makes the tables in this database and fills them; all or nothing.
pub async fn load_postgres(url: &str, selection: Selection) -> Result<Counts> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await.context("connecting to PostgreSQL")?;
    let driver = tokio::spawn(connection);
    let transaction = client.transaction().await?;
    transaction.batch_execute(&schema(Database::Postgres)).await.context("making the tables in PostgreSQL")?;
    let mut counts = Counts::default();
    for table in &TABLES {
        let rows = fill(&transaction, table, selection).await;
        counts.add(table.name, rows.with_context(|| format!("filling {} in PostgreSQL", table.name))?);
    }
    transaction.commit().await?;
    client.batch_execute("ANALYZE").await?;
    drop(client);
    driver.await??;
    Ok(counts)
}

async fn fill(transaction: &Transaction<'_>, table: &Table, selection: Selection) -> Result<u64> {
    let chunks = chunks(table, selection)?;
    let sql = format!("COPY {} ({}) FROM STDIN (FORMAT csv, NULL '{NULL}')", table.name, table.column_list());
    let mut sink = Box::pin(transaction.copy_in::<_, Bytes>(&sql).await?);
    for chunk in chunks {
        sink.feed(chunk).await?;
    }
    Ok(sink.as_mut().finish().await?)
}

/// The selected rows as CSV, in pieces to send (30 MB for the largest table).
fn chunks(table: &Table, selection: Selection) -> Result<Vec<Bytes>> {
    let mut chunks = Vec::new();
    let mut writer = csv::Writer::from_writer(Vec::with_capacity(CHUNK_BYTES));
    records::for_each(table, selection, |record| {
        writer.write_byte_record(record)?;
        if writer.get_ref().len() >= CHUNK_BYTES {
            let full = std::mem::replace(&mut writer, csv::Writer::from_writer(Vec::with_capacity(CHUNK_BYTES)));
            chunks.push(full.into_inner().map_err(csv::IntoInnerError::into_error)?.into());
        }
        Ok(())
    })?;
    chunks.push(writer.into_inner().map_err(csv::IntoInnerError::into_error)?.into());
    Ok(chunks)
}
