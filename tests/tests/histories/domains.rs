//! Types of columns, with values that a history draws from. Some databases take different bytes for equal (`EQUALITIES`): `North` is `north` to
//! citext, 1.0 is 1.00 to numeric. Which of them may be a key is for `check` to say.

use headwater_testkit::Random;
use headwater_tests::Kind;

/// How the values of a column are compared across databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// By the database's own text.
    Text,
    /// 0 or 1.
    Bool,
    /// By the bytes.
    Bytes,
    /// As numbers; -0.0 is 0.0.
    Real,
    /// In UTC.
    Zoned,
    /// With its storage class: a number is no text (SQLite alone).
    Class,
}

/// A type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domain {
    pub(crate) name: &'static str,
    /// In the model.
    pub(crate) model: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
    /// Literals for PostgreSQL, and for SQLite.
    values: &'static [(&'static str, &'static str)],
    compare: Compare,
}

impl Domain {
    /// At the consolidated database.
    pub(crate) fn sql(&self, kind: Kind) -> &'static str {
        if kind == Kind::Postgres { self.postgres } else { self.sqlite }
    }

    /// A literal for this database, or for a remote.
    pub(crate) fn literal(&self, random: &mut Random, is_postgres: bool) -> &'static str {
        let (postgres, sqlite) = self.values[random.below(self.values.len() as u64) as usize];
        if is_postgres { postgres } else { sqlite }
    }

    pub(crate) fn compare(&self, kind: Kind) -> Compare {
        match self.compare {
            Compare::Zoned | Compare::Bool | Compare::Bytes if kind == Kind::Sqlite => Compare::Class,
            compare => compare,
        }
    }
}

const fn domain(
    (name, model): (&'static str, &'static str),
    (postgres, sqlite): (&'static str, &'static str),
    compare: Compare,
    values: &'static [(&'static str, &'static str)],
) -> Domain {
    Domain { name, model, postgres, sqlite, values, compare }
}

/// What PostgreSQL needs before there can be such columns.
pub(crate) const POSTGRES_TYPES: &str =
    "CREATE EXTENSION IF NOT EXISTS citext; CREATE TYPE mood AS ENUM ('calm', 'glad', 'wild');
    CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);";

/// Equal values have equal bytes.
pub(crate) const PLAIN: [Domain; 11] = [
    domain(
        ("text", "text"),
        ("text", "TEXT"),
        Compare::Text,
        &[("'north'", "'north'"), ("'South'", "'South'"), ("'it''s west'", "'it''s west'")],
    ),
    domain(
        ("varchar", "text"),
        ("varchar(12)", "VARCHAR(12)"),
        Compare::Text,
        &[("'a'", "'a'"), ("'b '", "'b '"), ("'größe'", "'größe'")],
    ),
    domain(("int", "int"), ("integer", "INTEGER"), Compare::Text, &[("7", "7"), ("-1", "-1"), ("200", "200")]),
    domain(
        ("bigint", "int"),
        ("bigint", "BIGINT"),
        Compare::Text,
        &[("1", "1"), ("9000000000", "9000000000"), ("-5", "-5")],
    ),
    domain(
        ("uuid", "uuid"),
        ("uuid", "UUID"),
        Compare::Text,
        &[
            ("'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'"),
            ("'00000000-0000-0000-0000-000000000001'", "'00000000-0000-0000-0000-000000000001'"),
        ],
    ),
    domain(
        ("date", "date"),
        ("date", "DATE"),
        Compare::Text,
        &[("'2024-02-29'", "'2024-02-29'"), ("'1999-12-31'", "'1999-12-31'")],
    ),
    domain(
        ("timestamp", "timestamp"),
        ("timestamp", "TIMESTAMP"),
        Compare::Text,
        &[("'2024-02-29 12:00:00'", "'2024-02-29 12:00:00'"), ("'1999-12-31 23:59:59'", "'1999-12-31 23:59:59'")],
    ),
    domain(
        ("timestamptz", "timestamptz"),
        ("timestamptz", "TIMESTAMPTZ"),
        Compare::Zoned,
        &[
            ("'2024-02-29 12:00:00+02'", "'2024-02-29 10:00:00Z'"),
            ("'1999-12-31 23:59:59+00'", "'1999-12-31 23:59:59Z'"),
        ],
    ),
    domain(
        ("enum", "text"),
        ("mood", "TEXT"),
        Compare::Text,
        &[("'calm'", "'calm'"), ("'glad'", "'glad'"), ("'wild'", "'wild'")],
    ),
    domain(
        ("decimal_whole", "decimal(12,0)"),
        ("numeric(12,0)", "DECIMAL_TEXT"),
        Compare::Text,
        &[("7", "'7'"), ("120", "'120'"), ("-3", "'-3'")],
    ),
    domain(("bytes", "bytes"), ("bytea", "BLOB"), Compare::Bytes, &[("'\\x00ff'", "x'00ff'"), ("'\\x01'", "x'01'")]),
];

/// Different bytes may be equal, in PostgreSQL.
const EQUALITIES_POSTGRES: [Domain; 9] = [
    domain(
        ("citext", "text"),
        ("citext", "TEXT"),
        Compare::Text,
        &[("'North'", "'North'"), ("'north'", "'north'"), ("'NORTH'", "'NORTH'"), ("'south'", "'south'")],
    ),
    domain(
        ("char", "text"),
        ("char(4)", "TEXT"),
        Compare::Text,
        &[("'ab'", "'ab'"), ("'ab  '", "'ab  '"), ("'cd'", "'cd  '")],
    ),
    domain(
        ("numeric", "decimal"),
        ("numeric", "DECIMAL"),
        Compare::Text,
        &[("7", "'7'"), ("7.0", "'7.0'"), ("7.00", "'7.00'"), ("8", "'8'")],
    ),
    domain(
        ("numeric_scale", "decimal(10,2)"),
        ("numeric(10,2)", "DECIMAL"),
        Compare::Text,
        &[("7.50", "'7.50'"), ("7.5", "'7.5'"), ("8", "'8.00'")],
    ),
    domain(
        ("double", "real"),
        ("double precision", "DOUBLE"),
        Compare::Real,
        &[("0.0", "0.0"), ("'-0.0'", "'-zero'"), ("1.5", "1.5")],
    ),
    domain(
        ("icu", "text"),
        ("text COLLATE folded", "TEXT"),
        Compare::Text,
        &[("'North'", "'North'"), ("'north'", "'north'"), ("'South'", "'South'")],
    ),
    domain(
        ("interval", "text"),
        ("interval", "TEXT"),
        Compare::Text,
        &[("'1 day'", "'1 day'"), ("'24:00:00'", "'24:00:00'"), ("'2 days'", "'2 days'")],
    ),
    domain(
        ("jsonb", "json"),
        ("jsonb", "JSON"),
        Compare::Text,
        &[("'{\"a\": 1}'", "'{\"a\": 1}'"), ("'{\"a\": 1.0}'", "'{\"a\": 1.0}'"), ("'{\"a\": 2}'", "'{\"a\": 2}'")],
    ),
    domain(("bool", "bool"), ("boolean", "BOOLEAN"), Compare::Bool, &[("true", "1"), ("false", "0")]),
];

/// The same in SQLite, by a collation or since columns take any value.
const EQUALITIES_SQLITE: [Domain; 6] = [
    domain(
        ("nocase", "text"),
        ("text", "TEXT COLLATE NOCASE"),
        Compare::Class,
        &[("", "'North'"), ("", "'north'"), ("", "'NORTH'"), ("", "'south'")],
    ),
    domain(
        ("rtrim", "text"),
        ("text", "TEXT COLLATE RTRIM"),
        Compare::Class,
        &[("", "'ab'"), ("", "'ab  '"), ("", "'cd'")],
    ),
    domain(("real", "real"), ("real", "DOUBLE"), Compare::Real, &[("", "0.0"), ("", "1.5"), ("", "-2.25")]),
    domain(
        ("datetime", "timestamp"),
        ("timestamp", "DATETIME"),
        Compare::Class,
        &[("", "1704067200"), ("", "2460310.5"), ("", "'2024-01-01 00:00:00'")],
    ),
    domain(("json", "json"), ("json", "JSON"), Compare::Class, &[("", "'{\"a\": 1}'"), ("", "5"), ("", "'5'")]),
    domain(("bool", "bool"), ("boolean", "BOOLEAN"), Compare::Class, &[("", "1"), ("", "0")]),
];

/// A type, of those with an equality of its own too if so wanted.
pub(crate) fn draw(random: &mut Random, kind: Kind, has_equalities: bool) -> Domain {
    let equalities: &[Domain] = if kind == Kind::Postgres { &EQUALITIES_POSTGRES } else { &EQUALITIES_SQLITE };
    let wanted = has_equalities && random.chance(60);
    *random.pick(if wanted { equalities } else { &PLAIN }).unwrap_or(&PLAIN[0])
}
