//! What a download's transaction begins with: its snapshot, and what comes along with it so that it costs no round trip of its own.

use super::connection::PostgresConnection;
use super::watermark::Watermark;
use crate::backend::Gaps;
use crate::{Connection, Error};

/// One value that is another whenever tables have come or gone below others: it comes with a download's beginning, so that a look at
/// the parts costs no round trip while they stay.
pub(super) const HIERARCHY_SQL: &str = "SELECT count(*) || ':' || coalesce(bit_xor(hashint8extended( \
    (i.inhrelid::int8 << 32) | i.inhparent::int8, i.xmin::text::int8)), 0) FROM pg_catalog.pg_inherits i";

/// One value that is another whenever change tracking's triggers, or tables that have them, were touched.
pub(super) const TRIGGERS_SQL: &str = "SELECT count(*) || ':' || coalesce(bit_xor(hashint8extended(t.oid::int8, t.xmin::text::int8)), 0) \
    FROM pg_catalog.pg_trigger t WHERE t.tgname LIKE 'headwater%'";

/// Table name, the horizon, a transaction: of the horizon, and of tables that changed without a note.
const LIMITS_SQL: &str = "SELECT NULL, encode(h.version, 'hex'), NULL FROM headwater.horizon h \
    JOIN headwater.identity i ON i.incarnation = h.incarnation \
    UNION ALL SELECT r.table_name, NULL, r.transaction::text FROM headwater.refresh r \
    JOIN headwater.identity i ON i.incarnation = r.incarnation";

/// The snapshot of a download.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) watermark: Watermark,
    /// What [`HIERARCHY_SQL`] gave in it; `None` on a standby, where nothing can be tracked anyway.
    pub(super) hierarchy: Option<String>,
    /// What [`TRIGGERS_SQL`] gave in it.
    pub(super) triggers: Option<String>,
    /// What side tables don't tell any more; `None` until it is asked for.
    limits: Option<Limits>,
}

/// The first statement of a download. `with_limits`: the tables of [`LIMITS_SQL`] are there.
pub(super) fn opening_sql(with_limits: bool) -> String {
    let limits = if with_limits {
        format!("(SELECT json_agg(json_build_array(l.a, l.b, l.c)) FROM ({LIMITS_SQL}) AS l(a, b, c))::text")
    } else {
        "NULL::text".to_owned()
    };
    format!("SELECT pg_current_snapshot()::text, pg_is_in_recovery(), ({HIERARCHY_SQL}), ({TRIGGERS_SQL}), {limits}")
}

impl Snapshot {
    /// Reads what [`opening_sql`] gave.
    pub(super) fn read(row: Option<&tokio_postgres::Row>, with_limits: bool) -> Result<Snapshot, Error> {
        let unreadable =
            |detail: &str| Error::Database { context: "beginning a download".into(), detail: detail.into() };
        let text = |place| row.and_then(|row| row.try_get::<_, Option<&str>>(place).ok().flatten());
        let first = row.and_then(|row| {
            let in_recovery: bool = row.try_get(1).ok()?;
            let hierarchy = text(2).filter(|_| !in_recovery).map(str::to_owned);
            let watermark = Watermark::from_snapshot(text(0)?, in_recovery)?;
            Some(Snapshot { watermark, hierarchy, triggers: text(3).map(str::to_owned), limits: None })
        });
        let mut snapshot = first.ok_or_else(|| unreadable("what came is no snapshot"))?;
        if with_limits {
            let limits = snapshot.limits.insert(Limits::default());
            let rows: Vec<[Option<String>; 3]> = match text(4) {
                Some(json) => serde_json::from_str(json).map_err(|error| unreadable(&error.to_string()))?,
                None => Vec::new(),
            };
            rows.iter().try_for_each(|[a, b, c]| limits.add(a.as_deref(), b.as_deref(), c.as_deref()))?;
        }
        Ok(snapshot)
    }
}

impl PostgresConnection {
    /// The snapshot of the download that is running.
    pub(super) fn snapshot(&mut self) -> Result<&mut Snapshot, Error> {
        self.state.snapshot.as_mut().ok_or_else(|| Error::Database {
            context: "asking for a snapshot".into(),
            detail: "no download has begun".into(),
        })
    }

    /// What can't be told any more of the changes since a watermark.
    pub(super) fn gaps_since(&mut self, watermark: &Watermark) -> Result<Gaps, Error> {
        if self.snapshot()?.limits.is_none() {
            let mut limits = Limits::default();
            for row in self.query(LIMITS_SQL, &[])? {
                let text = |place: usize| crate::system::optional_text(row.get(place));
                limits.add(text(0).as_deref(), text(1).as_deref(), text(2).as_deref())?;
            }
            self.has_limits = true;
            self.snapshot()?.limits = Some(limits);
        }
        Ok(self.snapshot()?.limits.as_ref().map(|limits| limits.gaps_since(watermark)).unwrap_or_default())
    }
}

/// From where on side tables tell everything.
#[derive(Debug, Default)]
struct Limits {
    /// The first transaction whose changes are not purged.
    horizon: u64,
    /// By table, the last transaction that was not noted.
    refreshed: Vec<(String, u64)>,
}

impl Limits {
    /// Takes a row of [`LIMITS_SQL`].
    fn add(&mut self, table: Option<&str>, horizon: Option<&str>, transaction: Option<&str>) -> Result<(), Error> {
        let unreadable = || Error::Database {
            context: "reading how far back changes can be told".into(),
            detail: format!("{table:?}, {horizon:?}, {transaction:?}"),
        };
        match (table, horizon, transaction) {
            (None, Some(version), None) => {
                let version = hex::decode(version).map_err(|_| unreadable())?;
                self.horizon = Watermark::from_bytes(&version)?.seen_below();
            }
            (Some(table), None, Some(number)) => {
                self.refreshed.push((table.to_owned(), number.parse().map_err(|_| unreadable())?));
            }
            _ => return Err(unreadable()),
        }
        Ok(())
    }

    /// What lies before them of the changes since a watermark.
    fn gaps_since(&self, watermark: &Watermark) -> Gaps {
        let unseen = self.refreshed.iter().filter(|(_, transaction)| !watermark.has_seen(*transaction));
        let tables = unseen.map(|(table, _)| table.clone()).collect();
        Gaps { everything: watermark.seen_below() < self.horizon, tables }
    }
}
