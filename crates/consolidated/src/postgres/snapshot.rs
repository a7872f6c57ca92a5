//! What a download's transaction begins with: its snapshot, and what comes along with it so that it costs no round trip of its own.

use super::connection::PostgresConnection;
use super::refresh;
use super::watermark::Watermark;
use crate::backend::Gaps;
use crate::{Connection, Error};

/// One value that is another whenever tables have come or gone below others: it comes with a download's beginning, so that a look at
/// the parts costs no round trip while they stay. The hashes are added, and not joined by XOR: a part's row and that of its
/// index may have the same hash, and XOR would cancel both.
pub(super) const HIERARCHY_SQL: &str = "SELECT count(*) || ':' || coalesce(sum(hashint8extended( \
    (i.inhrelid::int8 << 32) | i.inhparent::int8, i.xmin::text::int8)), 0) FROM pg_catalog.pg_inherits i";

/// One value that is another whenever change tracking's triggers, or tables that have them, were touched.
pub(super) const TRIGGERS_SQL: &str = "SELECT count(*) || ':' || coalesce(sum(hashint8extended(t.oid::int8, t.xmin::text::int8)), 0) \
    FROM pg_catalog.pg_trigger t WHERE t.tgname LIKE 'headwater%'";

/// Which of Headwater's tables say how far back changes can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitsForm {
    /// Those that an older build made: `headwater.refresh` alone.
    Old,
    /// `headwater.refresh_event` as well.
    Events,
}

impl LimitsForm {
    /// Table name, the horizon, a transaction, its cause: of the horizon, and of tables that changed without a note.
    fn sql(self) -> String {
        let refreshed = match self {
            LimitsForm::Old => "SELECT r.table_name, NULL, r.transaction::text, NULL FROM headwater.refresh r \
                 JOIN headwater.identity i ON i.incarnation = r.incarnation"
                .to_owned(),
            LimitsForm::Events => refresh::unseen_sql("r.table_name, NULL, r.transaction::text, r.cause"),
        };
        format!(
            "SELECT NULL, encode(h.version, 'hex'), NULL, NULL FROM headwater.horizon h \
             JOIN headwater.identity i ON i.incarnation = h.incarnation UNION ALL {refreshed}"
        )
    }
}

/// The snapshot of a download.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) watermark: Watermark,
    /// What [`HIERARCHY_SQL`] gave in it; `None` on a standby, where nothing can be tracked anyway.
    pub(super) hierarchy: Option<String>,
    /// What side tables don't tell any more; `None` until it is asked for.
    limits: Option<Limits>,
}

/// The first statement of a download. `limits`: the tables of [`LimitsForm`] that are there, if that is known.
pub(super) fn opening_sql(limits: Option<LimitsForm>) -> String {
    let limits = match limits {
        Some(form) => {
            format!(
                "(SELECT json_agg(json_build_array(l.a, l.b, l.c, l.d)) FROM ({}) AS l(a, b, c, d))::text",
                form.sql()
            )
        }
        None => "NULL::text".to_owned(),
    };
    format!("SELECT pg_current_snapshot()::text, pg_is_in_recovery(), ({HIERARCHY_SQL}), {limits}")
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
            Some(Snapshot { watermark, hierarchy, limits: None })
        });
        let mut snapshot = first.ok_or_else(|| unreadable("what came is no snapshot"))?;
        if with_limits {
            let limits = snapshot.limits.insert(Limits::default());
            let rows: Vec<[Option<String>; 4]> = match text(3) {
                Some(json) => serde_json::from_str(json).map_err(|error| unreadable(&error.to_string()))?,
                None => Vec::new(),
            };
            rows.iter().try_for_each(|row| limits.add(row.each_ref().map(Option::as_deref)))?;
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
            let form = if refresh::has_events(self)? { LimitsForm::Events } else { LimitsForm::Old };
            for row in self.query(&form.sql(), &[])? {
                let texts: [_; 4] = std::array::from_fn(|place| crate::system::optional_text(row.get(place)));
                limits.add(texts.each_ref().map(Option::as_deref))?;
            }
            self.limits_form = Some(form);
            self.snapshot()?.limits = Some(limits);
        }
        let limits = self.snapshot()?.limits.as_ref();
        let mut gaps = limits.map(|limits| limits.gaps_since(watermark)).unwrap_or_default();
        gaps.tables.extend_from_slice(&self.state.unfollowed);
        Ok(gaps)
    }
}

/// From where on side tables tell everything.
#[derive(Debug, Default)]
struct Limits {
    /// The first transaction whose changes are not purged.
    horizon: u64,
    /// Tables, each with a transaction that was not noted, and why.
    refreshed: Vec<(String, u64, Option<String>)>,
}

impl Limits {
    /// Takes a row of [`LimitsForm::sql`].
    fn add(&mut self, [table, horizon, transaction, cause]: [Option<&str>; 4]) -> Result<(), Error> {
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
                let number = number.parse().map_err(|_| unreadable())?;
                self.refreshed.push((table.to_owned(), number, cause.map(str::to_owned)));
            }
            _ => return Err(unreadable()),
        }
        Ok(())
    }

    /// What lies before them of the changes since a watermark.
    fn gaps_since(&self, watermark: &Watermark) -> Gaps {
        let unseen = self.refreshed.iter().filter(|(_, transaction, _)| !watermark.has_seen(*transaction));
        let mut tables: Vec<String> = Vec::new();
        for (table, transaction, cause) in unseen {
            let cause = cause.as_deref().unwrap_or("an older build wrote no cause");
            tracing::info!(
                table,
                transaction,
                cause,
                "a remote gets a table afresh: a transaction changed it without a note"
            );
            if !tables.contains(table) {
                tables.push(table.clone());
            }
        }
        Gaps { everything: watermark.seen_below() < self.horizon, tables }
    }
}
