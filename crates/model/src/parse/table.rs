//! One `[tables.NAME]` of the file.
//!
//! [`Draft::read`] takes names and columns, [`Draft::resolve`] turns the names in keys, partitions and rules into places, and
//! [`Draft::references`] needs all tables resolved, since a reference's target must be unique there, and [`Draft::through`] needs those.

use super::reader::{Entry, Reader, Section, Span};
use crate::script::{Script, Step};
use crate::validate::{is_unique, sum_fault};
use crate::{
    COLUMNS_MAX, Column, ConflictRule, Direction, KEY_RANGE_FROM, KEY_RANGE_MAX, KeyRangeRule, OnDelete, Partition,
    Reference, Side, Table, TablePartition,
};

const KEYS: [&str; 11] = [
    "schema",
    "direction",
    "conflict",
    "key",
    "key_range",
    "partition",
    "shared",
    "references",
    "unique",
    "scripts",
    "columns",
];
const CONFLICTS: [&str; 6] =
    ["off", "consolidated_wins", "remote_wins", "newer_wins(column)", "merge(consolidated)", "merge(remote)"];

/// The reference by which a table takes its partition from another, and where that is said.
pub(super) struct Through {
    pub(super) reference: usize,
    pub(super) span: Span,
}

/// A table whose columns are known, and nothing else yet.
pub(super) struct Draft<'a> {
    name: &'a str,
    section: Option<Section<'a>>,
    columns: Vec<Column>,
    /// Where each column's type stands.
    spans: Vec<Span>,
}

impl<'a> Draft<'a> {
    pub(super) fn read(reader: &mut Reader<'_>, entry: &Entry<'a>) -> Draft<'a> {
        let what = format!("table {:?}", entry.name);
        let section = reader.section_at(entry, &what, &KEYS);
        let mut draft = Draft { name: entry.name, section, columns: Vec::new(), spans: Vec::new() };
        let Some(section) = &draft.section else {
            return draft;
        };
        let Some(columns) = reader.required(section, "columns", "[tables.NAME.columns] with a type for each column")
        else {
            return draft;
        };
        let columns = reader.entries(&columns);
        reader.names("column", &columns);
        reader.limit(&what, "columns", columns.iter().map(|column| &column.span), COLUMNS_MAX);
        if columns.is_empty() {
            reader.error(section.span.clone(), format!("{what} has no columns"), "at least one");
        }
        for column in columns {
            if let Some(text) = reader.string(&column) {
                let (kind, nullable) = split_null(&text);
                // A type that can't be read has been complained of; the column still exists for what names it.
                let kind = reader.kind(kind, &column.span).unwrap_or(headwater_protocol::Type::Text.into());
                draft.columns.push(Column { name: column.name.to_owned(), kind, nullable });
                draft.spans.push(column.span);
            }
        }
        draft
    }

    /// The table, but for its references.
    pub(super) fn resolve(&self, reader: &mut Reader<'_>, partitions: &[Partition]) -> Table {
        let mut table = Table {
            schema: None,
            name: self.name.to_owned(),
            columns: self.columns.clone(),
            key: Vec::new(),
            partition: None,
            direction: Direction::Both,
            conflict: ConflictRule::ConsolidatedWins,
            sum: Vec::new(),
            references: Vec::new(),
            unique: Vec::new(),
            key_range: None,
            shared: false,
            scripts: Vec::new(),
        };
        let Some(section) = &self.section else {
            return table;
        };
        if let Some(schema) = section.entry("schema") {
            table.schema = reader.string(&schema).inspect(|name| reader.name("schema", name, &schema.span));
        }
        if let Some(key) = reader.required(section, "key", "key = [\"column\", ...]") {
            table.key = self.key(reader, &key);
        }
        if let Some(rule) = section.entry("key_range") {
            table.key_range = self.key_range(reader, &rule, &table.key);
        }
        if let Some(direction) = section.entry("direction") {
            table.direction = read_direction(reader, &direction).unwrap_or(table.direction);
        }
        if let Some(conflict) = section.entry("conflict") {
            (table.conflict, table.sum) = self.conflict(reader, &conflict).unwrap_or((table.conflict, Vec::new()));
        }
        if let Some(partition) = section.entry("partition") {
            table.partition = self.partition(reader, &partition, partitions);
        }
        if let Some(unique) = section.entry("unique") {
            let constraints = reader.array(&unique);
            reader.limit(&section.what, "unique constraints", constraints.iter().map(|c| &c.span), COLUMNS_MAX);
            table.unique = constraints.iter().filter_map(|columns| self.places(reader, columns)).collect();
        }
        if let Some(scripts) = section.entry("scripts") {
            table.scripts = self.scripts(reader, &scripts, table.direction);
        }
        if let Some(shared) = section.entry("shared") {
            table.shared = self.shared(reader, &shared, &table);
        }
        table
    }

    /// The references to other tables, whose places are those in the file.
    pub(super) fn references(&self, reader: &mut Reader<'_>, tables: &[Table]) -> Vec<Reference> {
        let Some(entry) = self.section.as_ref().and_then(|section| section.entry("references")) else {
            return Vec::new();
        };
        let references = reader.array(&entry);
        let what = format!("table {:?}", self.name);
        reader.limit(&what, "references", references.iter().map(|r| &r.span), COLUMNS_MAX);
        references.iter().filter_map(|reference| self.reference(reader, reference, tables)).collect()
    }

    fn key(&self, reader: &mut Reader<'_>, entry: &Entry<'_>) -> Vec<usize> {
        let places = self.places(reader, entry).unwrap_or_default();
        for &place in &places {
            if let (Some(column), Some(span)) = (self.columns.get(place), self.spans.get(place))
                && column.nullable
            {
                let found = format!("column {:?} is in the key of table {:?} and may be NULL", column.name, self.name);
                reader.error(span.clone(), found, format!("\"{} not null\"", column.kind));
            }
        }
        places
    }

    /// `key_range = 1000`, or `key_range = { size = 1000, from = 5000000 }`.
    fn key_range(&self, reader: &mut Reader<'_>, entry: &Entry<'_>, key: &[usize]) -> Option<KeyRangeRule> {
        let is_table = matches!(entry.value.get_ref(), toml::de::DeValue::Table(_));
        let (size, from) = if is_table {
            let what = format!("the key range of table {:?}", self.name);
            let section = reader.section_at(entry, &what, &["size", "from"])?;
            let size = reader.required(&section, "size", "size = 1000")?;
            let from = section.entry("from").map(|from| reader.integer(&from, i64::MIN..=i64::MAX));
            (reader.integer(&size, 2..=KEY_RANGE_MAX)?, from.unwrap_or(Some(KEY_RANGE_FROM))?)
        } else {
            (reader.integer(entry, 2..=KEY_RANGE_MAX)?, KEY_RANGE_FROM)
        };
        let is_integer =
            |place: &usize| self.columns.get(*place).is_some_and(|c| c.kind.base == headwater_protocol::Type::Int);
        if key.len() != 1 || !key.iter().all(is_integer) {
            let found = format!("table {:?} has a key range, but its key is not one integer", self.name);
            reader.error(entry.span.clone(), found, "a key of one int column, or no key_range");
            return None;
        }
        Some(KeyRangeRule { size, from })
    }

    /// `scripts = { upload_insert = "file.sql", ... }`: the files; their text is read by whoever may.
    fn scripts(&self, reader: &mut Reader<'_>, entry: &Entry<'_>, direction: Direction) -> Vec<Script> {
        let what = format!("the scripts of table {:?}", self.name);
        let Some(section) = reader.section_at(entry, &what, &Step::ALL.map(Step::name)) else { return Vec::new() };
        let mut scripts = Vec::new();
        for step in Step::ALL {
            let Some(file) = section.entry(step.name()) else { continue };
            let is_useless = match direction {
                Direction::Both => false,
                Direction::Download => !step.is_download(),
                Direction::Upload => step.is_download(),
            };
            if is_useless {
                let found = format!("table {:?} has {}, but nothing travels that way", self.name, step.name());
                reader.error(file.key_span.clone(), found, "another direction, or no such script");
            }
            let script = reader.string(&file).map(|file| Script { step, file, sql: String::new() });
            scripts.extend(script);
        }
        let has = |step: Step| section.entry(step.name());
        if let (Some(deletes), None) = (has(Step::DownloadDeleteCursor), has(Step::DownloadCursor)) {
            let found = format!("table {:?} has download_delete_cursor alone", self.name);
            reader.error(deletes.key_span, found, "download_cursor beside it");
        }
        let rule = self.section.as_ref().and_then(|section| section.entry("conflict"));
        if let (Some(resolve), Some(_)) = (has(Step::ResolveConflict), rule) {
            let found = format!("table {:?} has a conflict rule and resolve_conflict", self.name);
            reader.error(resolve.key_span, found, "one of them");
        }
        scripts
    }

    /// `shared = true`: only what is the same for all members can be.
    fn shared(&self, reader: &mut Reader<'_>, entry: &Entry<'_>, table: &Table) -> bool {
        let is_shared = reader.boolean(entry).unwrap_or_default();
        if let Some(why) = table.unshareable().filter(|_| is_shared) {
            let found = format!("table {:?} is shared, but {why}", self.name);
            reader.error(entry.span.clone(), found, "shared = false, or no such key");
            return false;
        }
        is_shared
    }

    /// `conflict = "merge(consolidated)"`, or `conflict = { merge = "consolidated", sum = ["column"] }`: the rule, and the counters.
    fn conflict(&self, reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<(ConflictRule, Vec<usize>)> {
        if !matches!(entry.value.get_ref(), toml::de::DeValue::Table(_)) {
            return self.conflict_rule(reader, entry).map(|rule| (rule, Vec::new()));
        }
        let what = format!("the conflict rule of table {:?}", self.name);
        let section = reader.section_at(entry, &what, &["merge", "sum"])?;
        let merge = reader.required(&section, "merge", "merge = \"consolidated\"")?;
        let side = match reader.string(&merge)?.as_str() {
            "consolidated" => Side::Consolidated,
            "remote" => Side::Remote,
            other => {
                let known = ["consolidated", "remote"];
                reader.unknown(merge.span, format!("unknown side {other:?}"), other, known.into_iter());
                return None;
            }
        };
        let sum = section.entry("sum").map_or(Some(Vec::new()), |sum| self.places(reader, &sum))?;
        Some((ConflictRule::Merge(side), sum))
    }

    /// Whether the counters can be that, which their table's partition has a say in.
    pub(super) fn check_sum(&self, reader: &mut Reader<'_>, table: &Table) {
        let Some(entry) = self.section.as_ref().and_then(|section| section.entry("conflict")) else { return };
        for fault in table.sum.iter().filter_map(|place| sum_fault(table, *place)) {
            reader.error(entry.span.clone(), format!("table {:?}: {}", table.name, fault.found), fault.expected);
        }
    }

    fn conflict_rule(&self, reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<ConflictRule> {
        let text = reader.string(entry)?;
        let (word, argument) = match text.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
            Some((word, argument)) => (word.trim(), Some(argument)),
            None => (text.trim(), None),
        };
        let is_column = |name: &str| self.columns.iter().any(|column| column.name == name);
        let argument = argument.map(|name| if is_column(name) { name } else { name.trim() });
        match (word, argument) {
            ("off", None) => Some(ConflictRule::Off),
            ("consolidated_wins", None) => Some(ConflictRule::ConsolidatedWins),
            ("remote_wins", None) => Some(ConflictRule::RemoteWins),
            ("merge", Some("consolidated")) => Some(ConflictRule::Merge(Side::Consolidated)),
            ("merge", Some("remote")) => Some(ConflictRule::Merge(Side::Remote)),
            ("newer_wins", Some(column)) => self.place(reader, column, &entry.span).map(ConflictRule::NewerWins),
            _ => {
                let found = format!("unknown conflict rule {text:?}");
                reader.unknown(entry.span.clone(), found, &text, CONFLICTS.into_iter());
                None
            }
        }
    }

    /// `partition = "name"`, or `partition = { name = "name", columns = ["a"] }`.
    fn partition(
        &self,
        reader: &mut Reader<'_>,
        entry: &Entry<'_>,
        partitions: &[Partition],
    ) -> Option<TablePartition> {
        let is_table = matches!(entry.value.get_ref(), toml::de::DeValue::Table(_));
        let (name, columns) = if is_table {
            let what = format!("the partition of table {:?}", self.name);
            let section = reader.section_at(entry, &what, &["name", "columns", "through", "by"])?;
            if section.entry("through").is_some() {
                return None; // a matter of the references: `through`
            }
            (reader.required(&section, "name", "name = \"...\"")?, section.entry("columns"))
        } else {
            (entry.clone(), None)
        };
        let word = reader.string(&name)?;
        let Some(place) = partitions.iter().position(|partition| partition.name == word) else {
            let found = format!("unknown partition {word:?}");
            reader.unknown(name.span, found, &word, partitions.iter().map(|p| p.name.as_str()));
            return None;
        };
        let partition = &partitions[place];
        let places = match &columns {
            Some(columns) => self.places(reader, columns)?,
            None => self.same_names(reader, partition, &name.span)?,
        };
        let span = columns.map_or(name.span, |columns| columns.span);
        self.check_partition(reader, partition, &places, &span);
        Some(TablePartition { partition: place, columns: places, through: None })
    }

    /// `partition = { through = "table" }`, with `by = ["column"]` where several references go there: the place of the reference meant.
    pub(super) fn through(
        &self,
        reader: &mut Reader<'_>,
        references: &[Reference],
        tables: &[Table],
    ) -> Option<Through> {
        let entry = self.section.as_ref()?.entry("partition")?;
        let toml::de::DeValue::Table(inside) = entry.value.get_ref() else { return None };
        inside.get("through")?;
        let what = format!("the partition of table {:?}", self.name);
        let section = reader.section_at(&entry, &what, &["through", "by"])?;
        let (name, by) = (section.entry("through")?, section.entry("by"));
        let word = reader.string(&name)?;
        let Some(parent) = tables.iter().position(|table| table.name == word) else {
            let found = format!("{what} comes through the unknown table {word:?}");
            reader.unknown(name.span, found, &word, tables.iter().map(|table| table.name.as_str()));
            return None;
        };
        let by = by.map(|by| self.places(reader, &by).map(|places| (places, by.span)));
        if by == Some(None) {
            return None;
        }
        let is_meant = |reference: &&(usize, &Reference)| {
            let by = by.as_ref().and_then(Option::as_ref);
            reference.1.table == parent && by.is_none_or(|(places, _)| *places == reference.1.columns)
        };
        let all: Vec<_> = references.iter().enumerate().collect();
        match all.iter().filter(is_meant).collect::<Vec<_>>()[..] {
            [(reference, _)] => Some(Through { reference: *reference, span: name.span }),
            [] => {
                let found =
                    format!("table {:?} takes its partition through {word:?}, but has no such reference", self.name);
                reader.error(name.span, found, "one of its references, or another in `references`");
                None
            }
            _ => {
                let found = format!("table {:?} has several references to {word:?}", self.name);
                reader.error(name.span, found, "by = [\"column\", ...] beside through");
                None
            }
        }
    }

    fn same_names(&self, reader: &mut Reader<'_>, partition: &Partition, span: &Span) -> Option<Vec<usize>> {
        partition.columns.iter().map(|(name, _)| self.place(reader, name, span)).collect()
    }

    fn check_partition(&self, reader: &mut Reader<'_>, partition: &Partition, places: &[usize], span: &Span) {
        if places.len() != partition.columns.len() {
            let found = format!("table {:?} gives partition {:?} {} columns", self.name, partition.name, places.len());
            reader.error(span.clone(), found, format!("{}, as the partition has", partition.columns.len()));
        }
        for (&place, (name, kind)) in places.iter().zip(&partition.columns) {
            if let Some(column) = self.columns.get(place)
                && column.kind.base != kind.base
            {
                let found = format!("column {:?} of table {:?} is {}", column.name, self.name, column.kind);
                let expected = format!("{kind}, as column {name:?} of partition {:?}", partition.name);
                reader.error(self.spans[place].clone(), found, expected);
            }
        }
    }

    fn reference(&self, reader: &mut Reader<'_>, entry: &Entry<'_>, tables: &[Table]) -> Option<Reference> {
        let what = format!("a reference of table {:?}", self.name);
        let section = reader.section_at(entry, &what, &["columns", "table", "target", "on_delete"])?;
        let on_delete = section.entry("on_delete").map_or(Some(OnDelete::NoAction), |e| read_on_delete(reader, &e));
        let columns = reader.required(&section, "columns", "columns = [\"column\", ...]");
        let columns = columns.and_then(|columns| self.places(reader, &columns));
        let name = reader.required(&section, "table", "table = \"...\"")?;
        let word = reader.string(&name)?;
        let Some(place) = tables.iter().position(|table| table.name == word) else {
            let found = format!("{what} names the unknown table {word:?}");
            reader.unknown(name.span, found, &word, tables.iter().map(|table| table.name.as_str()));
            return None;
        };
        let parent = &tables[place];
        let target_entry = section.entry("target");
        let target = match &target_entry {
            Some(target) => places(reader, target, parent)?,
            None => parent.key.clone(),
        };
        let reference = Reference { columns: columns?, table: place, target, on_delete: on_delete? };
        self.check_reference(reader, &reference, parent, &target_entry.map_or(section.span, |target| target.span));
        Some(reference)
    }

    fn check_reference(&self, reader: &mut Reader<'_>, reference: &Reference, parent: &Table, span: &Span) {
        let (ours, theirs) = (reference.columns.len(), reference.target.len());
        if ours != theirs {
            let found = format!("a reference of {ours} columns of table {:?} has {theirs} target columns", self.name);
            reader.error(span.clone(), found, "as many on both sides");
        } else if !parent.key.is_empty() && !is_unique(parent, &reference.target) {
            let found = format!("a reference's target is neither the key nor unique in table {:?}", parent.name);
            reader.error(
                span.clone(),
                found,
                format!("the key, or these columns in unique of table {:?}", parent.name),
            );
        }
        let not_null = reference.columns.iter().filter_map(|&place| self.columns.get(place)).find(|c| !c.nullable);
        if let (OnDelete::SetNull, Some(column)) = (reference.on_delete, not_null) {
            let found = format!("on_delete is \"set null\", but column {:?} may not be NULL", column.name);
            reader.error(span.clone(), found, "\"no action\" or \"cascade\"");
        }
    }

    fn place(&self, reader: &mut Reader<'_>, column: &str, span: &Span) -> Option<usize> {
        place(reader, column, span, self.name, &self.columns)
    }

    fn places(&self, reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Vec<usize>> {
        places_in(reader, entry, self.name, &self.columns)
    }
}

fn places(reader: &mut Reader<'_>, entry: &Entry<'_>, table: &Table) -> Option<Vec<usize>> {
    places_in(reader, entry, &table.name, &table.columns)
}

/// The places of columns named by an array of strings: at least one, none twice. All faults are told; `None` if there is one.
fn places_in(reader: &mut Reader<'_>, entry: &Entry<'_>, table: &str, columns: &[Column]) -> Option<Vec<usize>> {
    if !matches!(entry.value.get_ref(), toml::de::DeValue::Array(_)) {
        reader.array(entry);
        return None;
    }
    let items = reader.array(entry);
    if items.is_empty() {
        reader.error(entry.span.clone(), format!("{} of table {table:?} names no column", entry.name), "at least one");
        return None;
    }
    let mut found: Vec<Option<usize>> = Vec::with_capacity(items.len());
    for item in items {
        let word = reader.string(&item);
        let column = word.and_then(|word| place(reader, &word, &item.span, table, columns));
        if column.is_some() && found.contains(&column) {
            let what = format!("{} of table {table:?} names a column twice", entry.name);
            reader.error(item.span, what, "each column once");
        }
        found.push(column);
    }
    found.into_iter().collect()
}

fn place(reader: &mut Reader<'_>, column: &str, span: &Span, table: &str, columns: &[Column]) -> Option<usize> {
    let place = columns.iter().position(|known| known.name == column);
    if place.is_none() {
        let found = format!("unknown column {column:?} in table {table:?}");
        reader.unknown(span.clone(), found, column, columns.iter().map(|column| column.name.as_str()));
    }
    place
}

/// Splits `text not null` into type and whether NULL is allowed; `text` and `text null` allow it, as in SQL.
fn split_null(text: &str) -> (&str, bool) {
    let trimmed = text.trim();
    let without = |word: &str, text: &'_ str| -> Option<usize> {
        let start = text.len().checked_sub(word.len())?;
        let (before, end) = (text.get(..start)?, text.get(start..)?);
        (end.eq_ignore_ascii_case(word) && before.ends_with(char::is_whitespace)).then(|| before.trim_end().len())
    };
    match without("null", trimmed) {
        None => (trimmed, true),
        Some(end) => match without("not", &trimmed[..end]) {
            None => (&trimmed[..end], true),
            Some(end) => (&trimmed[..end], false),
        },
    }
}

fn read_direction(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Direction> {
    let word = reader.string(entry)?;
    match word.as_str() {
        "both" => Some(Direction::Both),
        "download" => Some(Direction::Download),
        "upload" => Some(Direction::Upload),
        _ => {
            let known = ["both", "download", "upload"];
            reader.unknown(entry.span.clone(), format!("unknown direction {word:?}"), &word, known.into_iter());
            None
        }
    }
}

fn read_on_delete(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<OnDelete> {
    let word = reader.string(entry)?;
    match word.as_str() {
        "no action" => Some(OnDelete::NoAction),
        "cascade" => Some(OnDelete::Cascade),
        "set null" => Some(OnDelete::SetNull),
        _ => {
            let known = ["no action", "cascade", "set null"];
            reader.unknown(entry.span.clone(), format!("unknown on_delete {word:?}"), &word, known.into_iter());
            None
        }
    }
}
