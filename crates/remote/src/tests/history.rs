//! Random histories: whatever statements run, the upload is the difference of the two states.

use std::collections::BTreeMap;

use headwater_protocol::message::Change;

use super::support::{Fixture, changes};
use super::tracking::fixture;
use crate::local::{Local, to_wire};

/// Random numbers from a seed (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A statement that may do anything, or fail.
fn statement(random: &mut Random) -> String {
    let or = random.pick(&["", "", "OR REPLACE", "OR IGNORE", "OR FAIL"]);
    let (id, other) = (random.below(8) as i64 - 1, random.below(8));
    let letter = random.pick(&["'a'", "'b'", "'c'", "'d'", "NULL", "1", "1.0", "x'61'", "'A'"]);
    let table = random.pick(&["item", "pair", "tree", "leaf"]);
    match random.below(16) {
        0..=2 => format!("INSERT {or} INTO item VALUES ({id}, {letter}, {other})"),
        3 => format!("INSERT {or} INTO item (name, note) VALUES ({letter}, {other}), ({other}, 'n')"),
        4 => format!(
            "INSERT INTO item VALUES ({id}, {letter}, 'u') ON CONFLICT (id) DO UPDATE SET name = {other} ON CONFLICT (name) DO UPDATE SET note = 'v', id = {other}"
        ),
        5 => format!("UPDATE {or} item SET name = {letter}, id = id + {other} WHERE id >= {id}"),
        6 => format!("UPDATE {or} item SET note = {letter} WHERE id = {id} OR name = {other}"),
        7 => format!("DELETE FROM {table} WHERE rowid = {id}").replace("FROM pair WHERE rowid", "FROM pair WHERE b"),
        8 => format!("INSERT {or} INTO pair VALUES ({letter}, {id}, {other})"),
        9 => format!("UPDATE {or} pair SET a = {letter} WHERE b = {id}"),
        10 => format!("UPDATE {or} pair SET b = b + 1, note = {letter}"),
        11 => format!("INSERT {or} INTO tree VALUES ({id}, {})", random.pick(&["NULL", "1", "2", "4"])),
        12 => format!(
            "UPDATE {or} tree SET id = {other}, parent = {} WHERE id = {id}",
            random.pick(&["NULL", "parent", "1"])
        ),
        13 => format!("INSERT {or} INTO leaf VALUES ({id}, {})", random.pick(&["NULL", "1", "3"])),
        14 => format!("SAVEPOINT s; DELETE FROM {table}; ROLLBACK TO s; RELEASE s"),
        _ => format!(
            "BEGIN; DELETE FROM {table} WHERE {} IS NOT NULL; INSERT INTO item VALUES (20 + {other}, 'z{other}', NULL); COMMIT",
            random.pick(&["1", "NULL"])
        ),
    }
}

type Tables = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// Every row as it would travel, by table and key.
fn state(f: &Fixture) -> Tables {
    let mut rows = Tables::new();
    for table in &f.remote.plan.tables {
        let mut select = f
            .application
            .prepare(&format!(
                "SELECT {} FROM {}",
                table.names().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(","),
                table.name()
            ))
            .expect("a query");
        let found = select.query_map([], |row| {
            (0..table.types.len()).map(|index| Local::read(row, index)).collect::<Result<Vec<_>, _>>()
        });
        for row in found.expect("rows") {
            let row = to_wire(&row.expect("a row"), &table.types);
            rows.insert((table.table.name.clone(), table.key_bytes(&table.key_of(&row))), table.row_bytes(&row));
        }
    }
    rows
}

/// What the frozen upload makes of a state.
fn applied(f: &Fixture, mut rows: Tables) -> Tables {
    for (name, Change { old, new }) in changes(&f.remote) {
        let table = f.remote.plan.tables.iter().find(|table| table.table.name == name).expect("a table");
        let key = (name.clone(), table.key_bytes(&table.key_of(new.as_ref().or(old.as_ref()).expect("an image"))));
        assert_ne!(old, new, "a change changes something");
        let before = rows.remove(&key);
        assert_eq!(
            before,
            old.map(|old| table.row_bytes(&old)),
            "the old image of {name} is the row at the last upload"
        );
        if let Some(new) = new {
            assert_eq!(table.key_of(&new).len(), table.key_types.len());
            rows.insert(key, table.row_bytes(&new));
        }
    }
    rows
}

fn history(seed: u64) {
    let mut random = Random(seed);
    let mut f = fixture();
    if random.below(3) == 0 {
        f.sql("UPDATE item SET note = 'n' || id");
        f.upload_all();
        f.sql("CREATE UNIQUE INDEX own ON item (note COLLATE NOCASE)");
    }
    if random.below(3) == 0 {
        f.sql("CREATE TRIGGER t AFTER INSERT ON leaf BEGIN INSERT OR REPLACE INTO item VALUES (NEW.id, 'from leaf', NEW.tree); END");
        f.sql("CREATE TRIGGER u AFTER UPDATE ON item WHEN NEW.note IS NOT 'touched' BEGIN UPDATE item SET note = 'touched' WHERE id = NEW.id; END");
    }
    f.reopen();
    f.application.pragma_update(None, "recursive_triggers", random.below(2) == 0).expect("pragma");
    for _ in 0..3 {
        let before = state(&f);
        let mut statements = Vec::new();
        for _ in 0..=random.below(12) {
            let sql = statement(&mut random);
            // Many fail, as they would in an application.
            let result = f.application.execute_batch(&sql);
            if result.is_err() && !f.application.is_autocommit() {
                f.sql("ROLLBACK");
            }
            statements.push(format!("{sql}; -- {result:?}"));
        }
        let after = state(&f);
        let history = format!("seed {seed}\n{}", statements.join("\n"));
        match f.cut() {
            Some(_) => {
                let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| applied(&f, before)));
                assert_eq!(made.unwrap_or_else(|_| panic!("{history}")), after, "{history}");
                f.receipt(Vec::new());
            }
            None => assert_eq!(before, after, "{history}"),
        }
        f.check();
    }
}

#[test]
fn uploads_are_the_difference_of_states() {
    let rounds = std::env::var("HEADWATER_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    for seed in 0..rounds {
        history(seed);
    }
}

/// The test above must be able to fail.
#[test]
fn a_change_that_is_not_tracked_is_noticed() {
    let f = fixture();
    let before = state(&f);
    f.sql("DROP TRIGGER hw_update_item; UPDATE item SET note = 'y' WHERE id = 1; DELETE FROM leaf");
    f.cut();
    assert_ne!(applied(&f, before), state(&f));
}
