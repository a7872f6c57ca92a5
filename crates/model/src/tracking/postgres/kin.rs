//! Tables that take their partition from the row that a foreign key refers to.
//!
//! The side table of such a table has the partition's columns as any other has. A row of it is noted in the partition of its parent, as
//! that stands; and as it was, before an update or a deletion, in those that its parent was in when this transaction began: the parent's
//! side table tells, since a parent is noted before it moves or goes. When a parent moves, goes or comes, all rows below it are noted with it:
//!
//! | a row from which others take their partition | what is noted |
//! |---|---|
//! | is about to be deleted (before row) | itself and all below it, where it is |
//! | is about to get another partition, key or parent (before row) | the same, and all below it where it is going to be |
//! | was inserted (after statement) | rows that were waiting for it |
//! | is emptied by TRUNCATE (before statement) | all below it |
//!
//! Before each row, because a cascade, or another part of the same statement, may take children away before any trigger after it fires.
//!
//! **Two transactions.** One writes a child, the other moves its parent: neither would see the other. So whoever writes a child holds its
//! parents by FOR KEY SHARE, as foreign keys do, and whoever moves a parent takes it FOR UPDATE, and looks for children then.
//!
//! *Caveats.* Whoever moves a parent in a REPEATABLE READ transaction can't see children written since its snapshot: the tables below it
//! are sent as a whole to all remotes ([`super::refresh`]). A row written before its parent, by another transaction at the same time,
//! is missed where no foreign key that is checked at once stands in its way. Triggers before rows whose names come after
//! `~headwater_move` may move a row unseen.

use super::notes::{Images, Notes};
use super::refresh::OLDER_SNAPSHOT;
use super::{Kin, base_table, function, in_part, key_columns, partition_columns, side_table, trigger_name};
use crate::sql::{literal, quote};
use crate::tracking::tracked_name;
use crate::{Lineage, Table};

/// The triggers of a table from which others take their partition. That one for updates names no column, also not in a condition: the
/// application could not alter the type of one that it names, and PostgreSQL refuses whole rows where a column is generated.
pub(super) fn before_triggers(kin: &Kin<'_>) -> Vec<String> {
    let (base, function) = (base_table(kin.table()), function(&kin.lineage));
    let [moves, deletes] = super::ROW_TRIGGERS_BEFORE.map(|name| quote(&trigger_name(name, &kin.lineage)));
    vec![
        format!("CREATE OR REPLACE TRIGGER {moves} BEFORE UPDATE ON {base} FOR EACH ROW EXECUTE FUNCTION {function}()"),
        format!(
            "CREATE OR REPLACE TRIGGER {deletes} BEFORE DELETE ON {base} FOR EACH ROW EXECUTE FUNCTION {function}()"
        ),
        format!("ALTER TABLE {base} ENABLE ALWAYS TRIGGER {moves}"),
        format!("ALTER TABLE {base} ENABLE ALWAYS TRIGGER {deletes}"),
    ]
}

/// Joins a row with the partitions that it lies in: its parent's; and, of one as it was, those that its parent has left in this
/// transaction, where the row may have been. One that this transaction has noted before was noted there then, or has never been there:
/// its key is nobody's business there.
pub(super) fn partitions(lineage: &Lineage<'_>, row: &str, images: Images) -> String {
    let Some(parent) = lineage.parents().first() else { return String::new() };
    let now: Vec<String> = lineage.partition(0, row);
    let sides = partition_columns(lineage);
    let (mut on, mut noted) = (Vec::new(), Vec::new());
    for ((column, key), side) in lineage.link(0).into_iter().zip(key_columns(parent)) {
        on.push(format!("hw_above1.{} = {row}.{}", quote(&key.name), quote(&column.name)));
        noted.push(format!("o.{side} = {row}.{}", quote(&column.name)));
    }
    let before = match images {
        Images::New => String::new(),
        Images::Old => left(lineage, row, &noted),
        Images::Both => {
            noted.push(format!("{row}.hw_gone"));
            left(lineage, row, &noted)
        }
    };
    format!(
        " JOIN LATERAL (SELECT {} FROM {} AS hw_above1{} WHERE {}{before}) AS hw_in({}) ON true",
        now.join(", "),
        base_table(parent),
        lineage.up(1, "hw_above1", "JOIN", &base_table),
        on.join(" AND "),
        sides.join(", "),
    )
}

/// The partitions that the parent of a row has left in this transaction, unless that has noted the row itself.
fn left(lineage: &Lineage<'_>, row: &str, of_parent: &[String]) -> String {
    let columns: Vec<String> = partition_columns(&lineage.of_parent()).iter().map(|side| format!("o.{side}")).collect();
    let table = lineage.table();
    let key = table.key_columns().zip(key_columns(table));
    let own: Vec<String> = key.map(|(column, side)| format!("n.{side} = {row}.{}", quote(&column.name))).collect();
    format!(
        "\n      UNION SELECT {} FROM {} AS o WHERE {} AND o.version = pg_current_xact_id()\n        \
         AND NOT EXISTS (SELECT 1 FROM {} AS n WHERE {} AND n.version = pg_current_xact_id())",
        columns.join(", "),
        side_table(&lineage.of_parent()),
        of_parent.join(" AND "),
        side_table(lineage),
        own.join(" AND "),
    )
}

/// Holds the parents of rows, so that they don't move before this transaction ends. One statement for each level, and all of them before
/// the statements that note: whoever waited for a parent then sees where it has moved, and which row is above it now. `from` has rows with
/// the columns `read` of a table.
pub(super) fn lock(lineage: &Lineage<'_>, from: &str) -> String {
    let queries = lock_statements(lineage, from);
    queries.iter().flat_map(|sql| ["    PERFORM ", sql.trim_start_matches("SELECT "), ";\n"]).collect()
}

/// The same as queries.
pub(super) fn lock_statements(lineage: &Lineage<'_>, from: &str) -> Vec<String> {
    let parents = lineage.joined_up(0);
    let statement = |level: usize| {
        format!(
            "SELECT 1 FROM {from} AS t{} FOR KEY SHARE OF {}",
            lineage.up_to(0, level + 1, "t", "JOIN", &base_table),
            parents[level]
        )
    };
    (0..parents.len()).map(statement).collect()
}

/// The rows of one or both images of a statement, as far as their parents go: each parent once.
pub(super) fn links(lineage: &Lineage<'_>, images: &[&str]) -> String {
    let columns: Vec<String> = lineage.link(0).iter().map(|(column, _)| quote(&column.name)).collect();
    let of = |image: &&str| format!("SELECT {} FROM {image}", columns.join(", "));
    let all: Vec<String> = images.iter().map(of).collect();
    match all.as_slice() {
        [one] => format!("({})", one.replacen("SELECT ", "SELECT DISTINCT ", 1)),
        several => format!("({})", several.join(" UNION ")),
    }
}

/// The image of a trigger for each row as a table of one row.
pub(super) fn one_row(columns: &[String], image: &str) -> String {
    let columns: Vec<String> = columns.iter().map(|column| format!("{image}.{column}")).collect();
    format!("(SELECT {})", columns.join(", "))
}

/// What is done before a row from which others take their partition is deleted or moves; ends in the half of an ELSIF.
pub(super) fn before_row(kin: &Kin<'_>) -> String {
    if kin.below.is_empty() {
        return String::new();
    }
    let table = kin.table();
    let own = Notes::new(&kin.lineage);
    let (old, new) = (one_row(&own.read, "OLD"), one_row(&own.read, "NEW"));
    let is_it: Vec<String> =
        table.key_columns().map(|column| format!("t.{0} = OLD.{0}", quote(&column.name))).collect();
    let of = |from: &str, deleted: &str| all_below(kin, "", from, deleted).map(statement).collect::<String>();
    let columns = kin.table().key_columns().chain(kin.lineage.deciding(0));
    let moves = columns.map(|column| format!("OLD.{0} IS DISTINCT FROM NEW.{0}", quote(&column.name)));
    format!(
        "    IF TG_LEVEL = 'ROW' AND TG_WHEN = 'BEFORE' THEN\n    IF TG_OP = 'DELETE' OR {} THEN\n    IF TG_OP = 'UPDATE' THEN\n    \
         PERFORM 1 FROM {} AS t WHERE {} FOR UPDATE;\n{}    END IF;\n{}    {};\n{}    \
         IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN\n    {};\n    END IF;\n    \
         IF TG_OP = 'UPDATE' THEN\n{}    END IF;\n    END IF;\n    ELS",
        moves.collect::<Vec<_>>().join(" OR "),
        base_table(table),
        is_it.join(" AND "),
        lock(&kin.lineage, &new),
        lock(&kin.lineage, &old),
        own.of_rows("", &old, Images::Old),
        of(&old, "true"),
        refresh(kin.below.iter(), OLDER_SNAPSHOT),
        of(&new, "NULL::boolean"),
    )
}

/// Has tables sent as a whole to every remote that has not seen this transaction.
fn refresh<'l, 'm: 'l>(tables: impl Iterator<Item = &'l Lineage<'m>>, cause: &str) -> String {
    let names: Vec<String> = tables.map(tracked_name).collect();
    super::refresh::append(names.iter().map(String::as_str), &literal(cause))
}

/// What is noted when rows were inserted: those below them that were there before.
pub(super) fn inserted(kin: &Kin<'_>) -> String {
    all_below(kin, "DISTINCT ", "hw_new", "NULL::boolean").map(statement).collect()
}

/// The same for a row that is written where a session replicates; a child that comes before its parent there may be written by another
/// process than that, so its table is sent anew.
pub(super) fn after_row(kin: &Kin<'_>) -> String {
    let own = Notes::new(&kin.lineage);
    let new = one_row(&own.read, "NEW");
    let of_new: String = all_below(kin, "", &new, "NULL::boolean").map(statement).collect();
    let notes = match of_new.as_str() {
        "" => of_new,
        _ => format!("    IF TG_OP = 'INSERT' THEN\n{of_new}    END IF;\n"),
    };
    if kin.lineage.parents().is_empty() {
        return notes;
    }
    let refers = kin.lineage.link(0).into_iter().map(|(column, _)| format!("NEW.{} IS NOT NULL", quote(&column.name)));
    let tables = std::iter::once(&kin.lineage).chain(&kin.below);
    notes
        + &format!(
            "    IF TG_OP <> 'DELETE' AND {} AND NOT EXISTS (SELECT 1 FROM {new} AS t{}) THEN\n    {};\n    END IF;\n",
            refers.collect::<Vec<_>>().join(" AND "),
            kin.lineage.up(0, "t", "JOIN", &base_table),
            refresh(tables, "a session that replicates wrote a row whose parent is not there"),
        )
}

/// What is noted before a table, or a part of it, is emptied: all below its rows.
pub(super) fn emptied(kin: &Kin<'_>) -> String {
    all_below(kin, "DISTINCT ", "\0", "true").map(|note| statement(in_part(&note))).collect()
}

fn statement(sql: impl std::fmt::Display) -> String {
    format!("    {sql};\n")
}

/// For each table below, the statement that notes its rows below these.
pub(super) fn all_below(kin: &Kin<'_>, distinct: &str, from: &str, deleted: &str) -> impl Iterator<Item = String> {
    kin.below.iter().map(move |lineage| below(lineage, kin.table(), distinct, from, deleted))
}

/// Notes the rows of a lineage's own table that lie below rows (`from`, by keys and what decides where they belong) of one of its
/// tables, in the partition of those.
fn below(lineage: &Lineage<'_>, of: &Table, distinct: &str, from: &str, deleted: &str) -> String {
    let notes = Notes::new(lineage);
    let level = lineage.level_of(of).unwrap_or_default();
    let keys = lineage.table().key_columns().map(|column| format!("{}.{}", Lineage::OWN, quote(&column.name)));
    let partition = lineage.partition(level, "t");
    let whole: Vec<String> = partition.iter().map(|column| format!("{column} IS NOT NULL")).collect();
    let values: Vec<String> = keys.chain(partition).collect();
    format!(
        "{}\n    SELECT {distinct}{}, pg_current_xact_id(), {deleted} FROM {from} AS t{}{} WHERE {}\n    {}",
        notes.insert(),
        values.join(", "),
        lineage.up(level, "t", "JOIN", &base_table),
        lineage.down(level, "t", &base_table),
        whole.join(" AND "),
        notes.conflict()
    )
}
