//! The catalogue: what `init` and `check` know of a database.

use headwater_consolidated::Dialect;
use headwater_consolidated::catalogue::{Catalogue, CatalogueColumn, CatalogueTable, Tracking};
use headwater_consolidated::check::against_catalogue;
use headwater_consolidated::track::{state, track};

use crate::support::{Database, plan};

const TABLES: &str = "
    CREATE SCHEMA other;
    CREATE DOMAIN positive AS int NOT NULL DEFAULT 1 CHECK (VALUE > 0);
    CREATE DOMAIN more_positive AS positive CHECK (VALUE > 1);
    CREATE DOMAIN money_amount AS numeric(12, 2);
    CREATE TYPE mood AS ENUM ('good', 'bad');
    CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    CREATE TABLE parent (a int, b text, c text UNIQUE, PRIMARY KEY (b, a));
    CREATE TABLE other.child (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        pa int, pb text, pc text REFERENCES parent (c) ON DELETE SET NULL,
        twice int GENERATED ALWAYS AS (pa * 2) STORED,
        counted serial,
        domain more_positive, amount money_amount, exact numeric, whole numeric(9), odd numeric(3, -2),
        fixed char(3), feeling mood, address inet, loosely text COLLATE loose, ratio real, stuff jsonb, class regclass, days interval,
        names text[],
        FOREIGN KEY (pb, pa) REFERENCES parent (b, a) ON DELETE CASCADE);
    CREATE UNIQUE INDEX ON other.child (pc) WHERE pa > 0;
    CREATE UNIQUE INDEX ON other.child (lower(pc));
    CREATE UNIQUE INDEX ON other.child (counted) INCLUDE (pa);
    CREATE VIEW looking AS SELECT 1 AS one;
    CREATE TABLE events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE events_2013 PARTITION OF events FOR VALUES FROM ('2013-01-01') TO ('2014-01-01');";

fn read(database: &Database) -> Catalogue {
    database.connect().catalogue().expect("a catalogue")
}

fn table<'c>(catalogue: &'c Catalogue, name: &str) -> &'c CatalogueTable {
    catalogue.tables.iter().find(|table| table.name == name).expect("the table is there")
}

fn column<'c>(table: &'c CatalogueTable, name: &str) -> &'c CatalogueColumn {
    table.columns.iter().find(|column| column.name == name).expect("the column is there")
}

#[test]
fn tables_keys_and_references() {
    let catalogue = read(&Database::with(TABLES));
    let names: Vec<_> = catalogue.tables.iter().map(|t| (t.schema.as_deref(), t.name.as_str())).collect();
    assert_eq!(
        names,
        [(Some("other"), "child"), (None, "events"), (None, "parent")],
        "no view, no leaf, none of our own"
    );
    let (parent, child) = (table(&catalogue, "parent"), table(&catalogue, "child"));
    assert_eq!(parent.primary_key, ["b", "a"], "in key order");
    assert_eq!(parent.unique, [["c"]]);
    assert_eq!(child.unique, [["counted"]], "neither a partial one nor one on an expression");
    let references: Vec<_> = child
        .references
        .iter()
        .map(|r| (r.columns.join(" "), r.schema.clone(), r.table.as_str(), r.target.join(" "), r.on_delete.as_str()))
        .collect();
    assert_eq!(references.len(), 2);
    assert!(references.contains(&("pb pa".to_owned(), None, "parent", "b a".to_owned(), "cascade")));
    assert!(references.contains(&("pc".to_owned(), None, "parent", "c".to_owned(), "set null")));
    let events = table(&catalogue, "events");
    assert!(!events.has_heirs && !events.has_foreign_parts);
    let database = Database::with(TABLES);
    database.sql(
        "CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far;
         CREATE TABLE heir () INHERITS (parent); CREATE FOREIGN TABLE far () INHERITS (heir) SERVER far",
    );
    let catalogue = read(&database);
    assert!(table(&catalogue, "parent").has_heirs && table(&catalogue, "parent").has_foreign_parts);
    let model = "[tables.parent]\nkey = [\"b\", \"a\"]\ncolumns = { a = \"int not null\", b = \"text not null\" }";
    let findings = against_catalogue(&plan(model).model, &catalogue, Dialect::Postgres);
    assert!(findings.iter().any(|finding| finding.code == "key_across_heirs"), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.code == "foreign_parts_not_tracked"), "{findings:?}");
}

#[test]
fn columns_of_every_kind() {
    let catalogue = read(&Database::with(TABLES));
    let child = table(&catalogue, "child");
    let told = |name: &str| {
        let found = column(child, name);
        let kind = found.kind.map_or_else(|| "-".to_owned(), |kind| kind.to_string());
        let flags = [(found.nullable, " null"), (found.generated, " generated"), (found.has_default, " default")];
        flags.iter().filter(|(is_so, _)| *is_so).fold(kind, |text, (_, flag)| text + flag)
    };
    for (name, expected) in [
        ("id", "int default"),
        ("pa", "int null"),
        ("twice", "int null generated"),
        ("counted", "int default"),
        ("domain", "int default"),
        ("amount", "decimal(12,2) null"),
        ("exact", "decimal null"),
        ("whole", "decimal(9,0) null"),
        ("odd", "decimal null"),
        ("fixed", "text null"),
        ("feeling", "text null"),
        ("address", "text null"),
        ("ratio", "real null"),
        ("stuff", "json null"),
        ("class", "- null"),
        ("names", "text null"),
    ] {
        assert_eq!(told(name), expected, "{name}");
    }
    assert_eq!(column(child, "fixed").declared, "character(3)");
    let fit_for_keys: Vec<&str> =
        child.columns.iter().filter(|c| c.kind.is_some() && c.equality.is_none()).map(|c| c.name.as_str()).collect();
    assert_eq!(fit_for_keys, ["id", "pa", "pb", "pc", "twice", "counted", "domain", "whole", "feeling"]);
    assert_eq!(column(child, "loosely").equality.as_deref(), Some("collation loose"));
}

#[test]
fn whatever_is_changed_about_tracking_is_noticed() {
    let tables = "CREATE TABLE item (id int PRIMARY KEY, note text)";
    let model = "[tables.item]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", note = \"text\" }";
    for (change, told) in [
        ("ALTER TABLE item DISABLE TRIGGER headwater_update", "trigger headwater_update on public.item is off"),
        ("ALTER TABLE item ENABLE TRIGGER headwater_insert", "trigger headwater_insert on public.item is not enabled"),
        ("DROP TRIGGER headwater_truncate ON item", "4 of 5 triggers are there"),
        ("DROP INDEX headwater.side_version_item", "has been changed"),
        ("ALTER TABLE headwater.side_item ADD extra int", "has been changed"),
        (
            "CREATE OR REPLACE FUNCTION headwater.track_item() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "has been changed",
        ),
        ("DELETE FROM headwater.tracked", "not on record"),
    ] {
        let database = Database::with(tables);
        let plan = plan(model);
        let state = || {
            state(&mut *database.connect(), &headwater_model::tracking::Kin::new(&plan.model, &plan.model.tables[0]))
                .expect("a state")
        };
        assert_eq!(state(), Tracking::Absent);
        track(&mut *database.connect(), &plan).expect("tracked");
        assert_eq!(state(), Tracking::Complete);
        database.sql(change);
        let found = state();
        let (Tracking::Broken(what) | Tracking::Disabled(what)) = &found else { panic!("{change}: {found:?}") };
        assert!(what.contains(told), "{change}: {found:?}");
    }
}
