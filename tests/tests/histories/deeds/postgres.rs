//! What administrators do to PostgreSQL's tables.

use anyhow::Result;

use super::Draw;
use crate::events::Event;
use crate::schema::REGIONS;
use crate::shape::{Shape, literal, quote};

impl Draw<'_> {
    pub(super) fn postgres(&mut self, event: Event) -> Result<String> {
        let number = self.number;
        Ok(match event {
            Event::Truncate => {
                let shape = self.any();
                self.truncate(&shape)
            }
            Event::Retype => {
                let shape = self.any();
                let column = shape.columns[self.below(shape.columns.len())].clone();
                let name = quote(&column.name);
                let plain = column.sql.split(" NOT NULL").next().unwrap_or_default();
                let plain = plain.split(" UNIQUE").next().unwrap_or_default().split(" CHECK").next().unwrap_or_default();
                let using = format!("(ARRAY[{name}])[1]");
                format!("ALTER TABLE {} ALTER COLUMN {name} TYPE {plain} USING {using}", shape.quoted())
            }
            Event::Recompute => self.recompute(),
            Event::Widen => self.widen(),
            Event::DropAdd => self.drop_add(),
            Event::Exchange => self.exchange(),
            Event::Swap => {
                let shape = self.single();
                self.swap(&shape)
            }
            Event::Twins => format!(
                "ALTER TABLE twin_a RENAME TO twin_{number}; ALTER TABLE twin_b RENAME TO twin_a; ALTER TABLE twin_{number} RENAME TO twin_b"
            ),
            Event::Labels => {
                "ALTER TYPE mood RENAME VALUE 'calm' TO 'other'; ALTER TYPE mood RENAME VALUE 'glad' TO 'calm'; ALTER TYPE mood RENAME VALUE 'other' TO 'glad'".to_owned()
            }
            Event::Rewrite => self.rewrite(),
            Event::Harmless => self.harmless(),
            Event::Parts => self.parts(),
            Event::TriggersOff => {
                let shape = self.any();
                let write = self.write_to(&shape);
                triggers_off(&shape, &write)
            }
            Event::Remake => {
                let shape = self.any();
                let write = self.write_to(&shape);
                remake(&shape, &write)
            }
            Event::MembersRewritten => self.members_rewritten(),
            Event::SideTables => self.side_table()?,
            _ => String::new(),
        })
    }

    /// Emptied and loaded, with all that refers to it.
    fn truncate(&mut self, shape: &Shape) -> String {
        let names: Vec<String> = std::iter::once(&shape.name).chain(&shape.below).map(|name| quote(name)).collect();
        let keep = |(place, name): (usize, &String)| {
            format!("CREATE TEMP TABLE keep_{place} ON COMMIT DROP AS SELECT * FROM {name}")
        };
        let load = |(place, name): (usize, &String)| format!("INSERT INTO {name} SELECT * FROM keep_{place}");
        let kept: Vec<String> = names.iter().enumerate().map(keep).collect();
        let loaded: Vec<String> = names.iter().enumerate().map(load).collect();
        let change = if shape.below.is_empty() { self.change_of(shape, "keep_0") } else { "SELECT 1".to_owned() };
        let list = names.join(", ");
        format!("LOCK TABLE {list}; {}; {change}; TRUNCATE {list}; {}", kept.join("; "), loaded.join("; "))
    }

    fn recompute(&mut self) -> String {
        let shape = self.any();
        let mut columns: Vec<_> = shape.columns[shape.key..].iter().collect();
        if self.stays(&shape) {
            return String::new();
        }
        columns.retain(|column| !["parent", "twig", "up", "kind", "code"].contains(&column.name.as_str()));
        if columns.is_empty() {
            return String::new();
        }
        let column = columns[self.below(columns.len())].clone();
        let name = quote(&column.name);
        let using = match column.sql.split(' ').next().unwrap_or_default() {
            "bigint" if ["amount", "qty"].contains(&column.name.as_str()) => return String::new(),
            "bigint" | "numeric(10,2)" => format!("{name} + 1"),
            "text" if column.name == "region" => {
                format!("CASE {name} WHEN {} THEN {} ELSE {name} END", literal(REGIONS[0]), literal(REGIONS[1]))
            }
            "text" if column.name == "p" || column.name == "q" => {
                format!("CASE {name} WHEN 'north' THEN 'South' ELSE {name} END")
            }
            "text" => format!("upper({name})"),
            "mood" => "CASE WHEN mood = 'calm' THEN 'wild'::mood ELSE mood END".to_owned(),
            _ => return String::new(),
        };
        let ty = column.sql.split([' ']).next().unwrap_or_default();
        format!("ALTER TABLE {} ALTER COLUMN {name} TYPE {ty} USING {using}", shape.quoted())
    }

    /// A key, partition column or another becomes a wider type of its kind.
    fn widen(&mut self) -> String {
        let shape = self.any();
        let column = shape.columns[self.below(shape.columns.len())].clone();
        let ty = match column.sql.split(' ').next().unwrap_or_default() {
            "integer" => "bigint",
            "varchar(12)" => "varchar(40)",
            "text" if column.name == "body" => "varchar",
            "numeric(12,0)" => "numeric(14,0)",
            _ => return String::new(),
        };
        let name = quote(&column.name);
        // What holds the same values has to be as wide.
        let holder =
            if column.name == "p" { format!("; ALTER TABLE holder ALTER COLUMN p TYPE {ty}") } else { String::new() };
        format!("ALTER TABLE {} ALTER COLUMN {name} TYPE {ty}{holder}", shape.quoted())
    }

    fn drop_add(&mut self) -> String {
        let shape = self.any();
        if self.stays(&shape) {
            return String::new();
        }
        let free: Vec<_> = shape.columns[shape.key..]
            .iter()
            .filter(|column| ["body", "label", "spare", "val", "price"].contains(&column.name.as_str()))
            .collect();
        if free.is_empty() {
            return String::new();
        }
        let column = free[self.below(free.len())];
        let default = if column.sql == "text" && self.random.chance(50) {
            format!(" DEFAULT 'anew {}'", self.number)
        } else {
            String::new()
        };
        let name = quote(&column.name);
        format!("ALTER TABLE {} DROP COLUMN {name}, ADD COLUMN {name} {}{default}", shape.quoted(), column.sql)
    }

    fn exchange(&mut self) -> String {
        let judged = self.schema.judged.clone();
        let pairs = [
            ("thing", "p", "q"),
            ("thing", "p", "q"),
            ("thing", "val", "spare"),
            ("twin_a", "body", "spare"),
            (judged.as_str(), self.schema.column.as_str(), "n"),
        ];
        let (table, one, other) = pairs[self.below(pairs.len() - usize::from(self.is_neutral))];
        let table = quote(table);
        let (one, other) = (quote(one), quote(other));
        format!(
            "ALTER TABLE {table} RENAME COLUMN {one} TO elsewhere; ALTER TABLE {table} RENAME COLUMN {other} TO {one}; \
             ALTER TABLE {table} RENAME COLUMN elsewhere TO {other}"
        )
    }

    /// A copy, with other rows, is renamed into the table's place.
    fn swap(&mut self, shape: &Shape) -> String {
        let (name, new, old) = (shape.quoted(), format!("new_{}", self.number), format!("old_{}", self.number));
        let change = self.change_of(shape, &new);
        let end = if self.random.chance(50) { format!("DROP TABLE {old}") } else { "SELECT 1".to_owned() };
        let names = shape.names();
        format!(
            "LOCK TABLE {name}; {}; INSERT INTO {new} ({names}) SELECT {names} FROM {name}; {change}; \
             ALTER TABLE {name} RENAME TO {old}; ALTER TABLE {new} RENAME TO {name}; {end}",
            shape.create(&new)
        )
    }

    fn rewrite(&mut self) -> String {
        let shape = self.any();
        let name = shape.quoted();
        match self.below(4) {
            0 => format!("VACUUM FULL {name}"),
            1 if shape.name != "lot" => {
                format!("CLUSTER {name} USING {}", quote(&format!("{}_pkey", shape.name)))
            }
            2 => format!("REINDEX TABLE {name}"),
            _ => format!("VACUUM ANALYZE {name}"),
        }
    }

    fn harmless(&mut self) -> String {
        let shape = self.any();
        let (name, number) = (shape.quoted(), self.number);
        let column = quote(&shape.columns[shape.columns.len() - 1].name);
        match self.below(8) {
            0 => format!("ALTER TABLE {name} ADD COLUMN extra_{number} bigint"),
            1 => format!("ALTER TABLE {name} ADD COLUMN extra_{number} double precision DEFAULT random()"),
            2 => format!("ALTER TABLE {name} ALTER COLUMN {column} SET STATISTICS 50"),
            3 => format!("COMMENT ON COLUMN {name}.{column} IS 'remark {number}'"),
            4 => format!("GRANT SELECT ON {name} TO PUBLIC"),
            5 => format!("CREATE INDEX ON {name} ({column})"),
            6 => format!("ALTER TYPE mood ADD VALUE 'mood {number}'"),
            _ => format!("ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT NULL"),
        }
    }

    fn parts(&mut self) -> String {
        let part = self.below(3);
        let change = match self.below(4) {
            0 => format!("DELETE FROM lot_{part} WHERE id = 'o1'"),
            1 => format!("UPDATE lot_{part} SET body = 'apart {}'", self.number),
            2 => format!("INSERT INTO lot_{part} VALUES ('new {}', {part}, 'north', 'apart')", self.number),
            _ => "SELECT 1".to_owned(),
        };
        let between = if self.random.chance(40) { "COMMIT; BEGIN;" } else { "" };
        format!(
            "ALTER TABLE lot DETACH PARTITION lot_{part}; {between} {change}; ALTER TABLE lot ATTACH PARTITION lot_{part} FOR VALUES IN ({part})"
        )
    }

    fn members_rewritten(&mut self) -> String {
        let number = self.number;
        let table = if self.random.chance(50) { "member" } else { "holder" };
        match self.below(4) {
            0 => format!(
                "ALTER TABLE {table} ADD COLUMN extra_{number} double precision DEFAULT random(); ALTER TABLE {table} DROP COLUMN extra_{number}"
            ),
            1 => format!(
                "CREATE TEMP TABLE keep ON COMMIT DROP AS SELECT * FROM {table}; TRUNCATE {table}; INSERT INTO {table} SELECT * FROM keep"
            ),
            2 => format!(
                "CREATE TABLE new_{number} (LIKE {table} INCLUDING ALL); INSERT INTO new_{number} SELECT * FROM {table}; \
                 ALTER TABLE {table} RENAME TO old_{number}; ALTER TABLE new_{number} RENAME TO {table}; DROP TABLE old_{number}"
            ),
            _ => format!(
                "DELETE FROM {table} WHERE user_name = 'u1'; ALTER TABLE {table} ALTER COLUMN user_name TYPE text USING user_name || ''"
            ),
        }
    }

    fn side_table(&mut self) -> Result<String> {
        let sql = "SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = 'headwater'::regnamespace AND relkind = 'r' AND relname LIKE 'side%' ORDER BY 1";
        let names: Vec<String> = self.central.rows(sql)?.into_iter().flatten().flatten().collect();
        let Some(name) = names.get(self.below(names.len().max(1))) else { return Ok(String::new()) };
        Ok(if self.random.chance(50) {
            format!("VACUUM FULL headwater.{name}")
        } else {
            format!("ALTER TABLE headwater.{name} SET UNLOGGED; ALTER TABLE headwater.{name} SET LOGGED")
        })
    }
}

/// Triggers are as they were, and a write in between has fired none.
fn triggers_off(shape: &Shape, write: &str) -> String {
    let name = literal(&shape.quoted());
    format!(
        "DO $do$ DECLARE kept text[]; found text[]; i int; BEGIN
           SELECT array_agg(quote_ident(tgname) ORDER BY tgname), array_agg(tgenabled::text ORDER BY tgname) INTO found, kept
             FROM pg_trigger WHERE tgrelid = {name}::regclass AND NOT tgisinternal;
           FOR i IN 1 .. coalesce(cardinality(found), 0) LOOP EXECUTE 'ALTER TABLE ' || {name} || ' DISABLE TRIGGER ' || found[i]; END LOOP;
           EXECUTE {};
           FOR i IN 1 .. coalesce(cardinality(found), 0) LOOP EXECUTE 'ALTER TABLE ' || {name} || ' ENABLE '
             || CASE kept[i] WHEN 'A' THEN 'ALWAYS ' WHEN 'R' THEN 'REPLICA ' ELSE '' END || 'TRIGGER ' || found[i]; END LOOP;
         END $do$",
        literal(write)
    )
}

/// Triggers are dropped and made again; a write in between has fired none.
fn remake(shape: &Shape, write: &str) -> String {
    let name = literal(&shape.quoted());
    format!(
        "DO $do$ DECLARE made text[]; found text[]; kept text[]; i int; BEGIN
           SELECT array_agg(quote_ident(tgname) ORDER BY tgname), array_agg(pg_get_triggerdef(oid) ORDER BY tgname), array_agg(tgenabled::text ORDER BY tgname)
             INTO found, made, kept FROM pg_trigger WHERE tgrelid = {name}::regclass AND NOT tgisinternal AND tgparentid = 0;
           FOR i IN 1 .. coalesce(cardinality(found), 0) LOOP EXECUTE 'DROP TRIGGER ' || found[i] || ' ON ' || {name}; END LOOP;
           EXECUTE {};
           FOR i IN 1 .. coalesce(cardinality(found), 0) LOOP EXECUTE made[i];
             EXECUTE 'ALTER TABLE ' || {name} || ' ENABLE ' || CASE kept[i] WHEN 'A' THEN 'ALWAYS ' WHEN 'R' THEN 'REPLICA ' ELSE '' END || 'TRIGGER ' || found[i];
           END LOOP;
         END $do$",
        literal(write)
    )
}
