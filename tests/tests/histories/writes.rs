//! The statements that an application may have for a history's schema.

use headwater_testkit::Random;
use headwater_tests::Kind;

use crate::schema::{REGIONS, Schema, Side};
use crate::shape::{literal, quote};

/// What a trigger may leave in its session.
const ACTS: [&str; 12] = [
    "SET ROLE history_limited",
    "SET search_path = elsewhere, public",
    "SET client_encoding = 'LATIN1'",
    "SELECT pg_advisory_lock(99)",
    "SET default_transaction_read_only = on",
    "SET session_replication_role = replica",
    "SET TIME ZONE 'Asia/Tokyo'",
    "SET DateStyle = 'German'",
    "SET IntervalStyle = 'iso_8601'",
    "SET bytea_output = 'escape'",
    "SET extra_float_digits = -5",
    "SET quote_all_identifiers = on",
];
/// Codes of errors, of the kind that pass among them.
const CODES: [&str; 12] =
    ["55006", "53400", "40001", "57014", "55P03", "08000", "25006", "58000", "XX000", "P0001", "23514", "40P01"];

impl Schema {
    /// One statement that an application may have at either side: some fail where they run, some are refused later.
    pub(crate) fn write(&self, random: &mut Random, side: Side) -> String {
        match random.below(100) {
            0..35 => self.write_judged(random),
            35..65 => self.write_family(random),
            _ => self.write_other(random, side),
        }
    }

    fn write_judged(&self, random: &mut Random) -> String {
        let (table, column) = (quote(&self.judged), quote(&self.column));
        let id = literal(&format!("k{}", random.below(6)));
        let part = random.below(2);
        let (names, key, values) = if self.judged_key == 2 {
            ("id, part", format!("id = {id} AND part = {part}"), format!("{id}, {part}"))
        } else {
            ("id", format!("id = {id}"), id)
        };
        let (n, m) = (random.below(50), random.below(50));
        match random.below(10) {
            0..3 => {
                format!("INSERT INTO {table} ({names}, {column}, body, n) VALUES ({values}, {n}, 'it''s {m}', {m})")
            }
            3 => format!("UPDATE {table} SET {column} = {n} WHERE {key}"),
            4 => format!("UPDATE {table} SET body = 'body {n}' WHERE {key}"),
            5 => format!("UPDATE {table} SET n = {n}, body = NULL WHERE {key}"),
            6 => format!("UPDATE {table} SET n = {n}, {column} = NULL WHERE {key}"),
            7..9 => format!("DELETE FROM {table} WHERE {key}"),
            _ => format!("UPDATE {table} SET id = 'k{}' WHERE {key}", n % 6),
        }
    }

    pub(crate) fn write_family(&self, random: &mut Random) -> String {
        let (parent, child, column) = (quote(&self.parent), quote(&self.child), quote(&self.column));
        let (id, other) = (format!("'p{}'", random.below(9)), format!("'p{}'", random.below(9)));
        let (entry, leaf, twig) =
            (format!("'c{}'", random.below(12)), quote(&self.leaf), format!("'l{}'", random.below(12)));
        let own_region = if self.is_by_parent { "" } else { "region, " };
        let region = literal(REGIONS[random.below(3) as usize]);
        let n = random.below(100);
        match random.below(19) {
            0..3 => format!(
                "INSERT INTO {parent} (id, region, {column}, body) VALUES ({id}, {region}, {}, 'body {n}')",
                n % 12
            ),
            3 => format!("UPDATE {parent} SET body = 'body {n}' WHERE id = {id}"),
            4 => format!("UPDATE {parent} SET {column} = {} WHERE id = {id}", n % 12),
            5 => format!("UPDATE {parent} SET region = {region} WHERE id = {id}"),
            6 => format!("UPDATE {parent} SET up = {other} WHERE id = {id}"),
            7 => format!("DELETE FROM {parent} WHERE id = {id}"),
            8 => format!(
                "UPDATE {parent} SET {column} = -1 WHERE id = {id} AND {column} IN (0, 1); \
                 UPDATE {parent} SET {column} = 1 - {column} WHERE {column} IN (0, 1); UPDATE {parent} SET {column} = 0 WHERE {column} = -1"
            ),
            9..11 => format!(
                "INSERT INTO {child} (id, {own_region}parent, n) SELECT {entry}, {own_region}id, {n} FROM {parent} WHERE id = {id}"
            ),
            11 => format!("UPDATE {child} SET n = {n} WHERE id = {entry}"),
            12 => format!("UPDATE {child} SET parent = {id} WHERE id = {entry}"),
            13 => format!("DELETE FROM {child} WHERE id = {entry}"),
            14 | 15 => {
                format!("INSERT INTO {leaf} (id, twig, n) SELECT {twig}, id, {n} FROM {child} WHERE id = {entry}")
            }
            16 => format!("UPDATE {leaf} SET twig = {entry} WHERE id = {twig}"),
            17 => format!("UPDATE {leaf} SET n = {n} WHERE id = {twig}"),
            _ => format!("DELETE FROM {leaf} WHERE id = {twig}"),
        }
    }

    /// Of what is not judged: what may run at any moment.
    pub(crate) fn write_other(&self, random: &mut Random, side: Side) -> String {
        match random.below(10) {
            0..5 => self.write_thing(random, side),
            5 | 6 => write_lot(random),
            7 | 8 => write_twin(random),
            _ => self.write_numbered(random, side),
        }
    }

    fn write_thing(&self, random: &mut Random, side: Side) -> String {
        let is_postgres = self.kind == Kind::Postgres && side == Side::Head;
        let id = self.key.literal(random, is_postgres);
        let (p, q) = (self.partition.literal(random, is_postgres), self.partition.literal(random, is_postgres));
        let (code, value) = (self.reference.literal(random, is_postgres), self.value.literal(random, is_postgres));
        let n = random.below(100);
        let mood = ["calm", "glad", "wild"][random.below(3) as usize];
        let code = if random.chance(30) { "NULL" } else { code };
        match random.below(16) {
            0 | 1 => format!("INSERT INTO kind (id, code, label) VALUES ('k{}', {code}, 'label {n}')", n % 6),
            2 => format!("UPDATE kind SET label = 'label {n}' WHERE id = 'k{}'", n % 6),
            3 => format!("DELETE FROM kind WHERE id = 'k{}'", n % 6),
            4..8 => format!(
                "INSERT INTO thing (id, p, q, kind, val, spare, price, mood, label) \
                 VALUES ({id}, {p}, {q}, {code}, {value}, NULL, '{n}.50', '{mood}', 'label {n}')"
            ),
            8 => format!("UPDATE thing SET p = {p} WHERE id = {id}"),
            9 => format!("UPDATE thing SET kind = {code} WHERE id = {id}"),
            10 => format!("UPDATE thing SET val = {value}, spare = val WHERE id = {id}"),
            11 => format!("UPDATE thing SET mood = '{mood}' WHERE id = {id}"),
            12 | 13 if self.wanted.decimals => {
                let sum = ["price + 0.1", "price * 1.1", "price - 0.2", "price / 3"][n as usize % 4];
                format!("UPDATE thing SET price = {sum} WHERE id = {id} AND price < 1000")
            }
            14 => format!("DELETE FROM thing WHERE id = {id}"),
            _ => format!("UPDATE thing SET label = 'label {n}' WHERE id = {id}"),
        }
    }

    fn write_numbered(&self, random: &mut Random, side: Side) -> String {
        let n = random.below(900);
        match (side, random.below(4)) {
            (Side::Head, 0 | 1) => format!("INSERT INTO numbered (id, body) VALUES ({n}, 'by the head')"),
            (Side::Remote, 0 | 1) if self.wanted.ranges => format!(
                "INSERT INTO numbered (id, body) SELECT key, 'made {n}' FROM hw_next_key WHERE \"table\" = 'numbered'"
            ),
            (_, 2) => format!("UPDATE numbered SET body = 'body {n}' WHERE id % 7 = {}", n % 7),
            _ => format!("DELETE FROM numbered WHERE id % 11 = {}", n % 11),
        }
    }

    /// What only remotes write: `REPLACE` deletes what is in its way.
    pub(crate) fn replace(&self, random: &mut Random) -> String {
        let (parent, region) = (quote(&self.parent), literal(REGIONS[random.below(3) as usize]));
        let (n, column) = (random.below(12), quote(&self.column));
        format!(
            "INSERT OR REPLACE INTO {parent} (id, region, {column}, up, body) VALUES ('p{}', {region}, {n}, NULL, 'replaced')",
            random.below(9)
        )
    }

    /// What only the consolidated database's own application does.
    pub(crate) fn administer(&self, random: &mut Random) -> String {
        let (from, to) = (b"abcd"[random.below(4) as usize] as char, b"abcd"[random.below(4) as usize] as char);
        if self.kind == Kind::Postgres && random.chance(15) {
            let parent = quote(&self.parent);
            let (one, other, copied) = (random.below(9), random.below(9), REGIONS[random.below(3) as usize]);
            return format!(
                "DELETE FROM {parent} WHERE id IN ('p{one}', 'p{other}'); COPY {parent} (id, region, body) FROM PROGRAM \
                 $$printf \"p{one}\\t{copied}\\tcopied\\np{other}\\tsouth\\tcopied\\n\"$$"
            );
        }
        format!(
            "UPDATE bank SET amount = amount - 7 WHERE id = '{from}'; UPDATE bank SET amount = amount + 7 WHERE id = '{to}'"
        )
    }

    /// A membership comes or goes.
    pub(crate) fn member(&self, random: &mut Random, users: u64) -> String {
        let (user, region) = (random.below(users), literal(REGIONS[random.below(3) as usize]));
        let p = self.partition.literal(random, self.kind == Kind::Postgres);
        match random.below(8) {
            0 | 1 => format!("DELETE FROM member WHERE user_name = 'u{user}' AND region = {region}"),
            2 | 3 => format!("INSERT INTO member VALUES ('u{user}', {region})"),
            4 | 5 => format!("INSERT INTO holder (user_name, p) VALUES ('u{user}', {p})"),
            6 => format!("DELETE FROM holder WHERE user_name = 'u{user}' AND p = {p}"),
            _ => format!("UPDATE holder SET p = {p} WHERE user_name = 'u{user}'"),
        }
    }
}

fn write_lot(random: &mut Random) -> String {
    let (id, bucket) = (format!("'o{}'", random.below(6)), random.below(3));
    let (region, n) = (literal(REGIONS[random.below(3) as usize]), random.below(100));
    match random.below(6) {
        0..3 => format!("INSERT INTO lot (id, bucket, region, body) VALUES ({id}, {bucket}, {region}, 'body {n}')"),
        3 => format!("UPDATE lot SET body = 'body {n}' WHERE id = {id} AND bucket = {bucket}"),
        4 => format!("UPDATE lot SET region = {region} WHERE id = {id} AND bucket = {bucket}"),
        _ => format!("DELETE FROM lot WHERE id = {id} AND bucket = {bucket}"),
    }
}

fn write_twin(random: &mut Random) -> String {
    let table = if random.chance(50) { "twin_a" } else { "twin_b" };
    let (id, n) = (format!("'t{}'", random.below(6)), random.below(100));
    match random.below(6) {
        0..3 => format!("INSERT INTO {table} (id, body, spare) VALUES ({id}, 'body {n}', '{n}')"),
        3 | 4 => format!("UPDATE {table} SET body = 'body {n}', spare = '{n}' WHERE id = {id}"),
        _ => format!("DELETE FROM {table} WHERE id = {id}"),
    }
}

/// A row that has the application's trigger at the database do something to its session.
pub(crate) fn act(random: &mut Random) -> String {
    let act = *random.pick(&ACTS).unwrap_or(&ACTS[0]);
    format!(
        "INSERT OR REPLACE INTO twin_a (id, body) VALUES ('t{}', {})",
        random.below(6),
        literal(&format!("do {act}"))
    )
}

/// A row for which that trigger raises an error.
pub(crate) fn raise(random: &mut Random) -> String {
    let code = random.pick(&CODES).unwrap_or(&CODES[0]);
    format!("INSERT OR REPLACE INTO twin_a (id, body) VALUES ('t{}', 'raise {code}')", random.below(6))
}
