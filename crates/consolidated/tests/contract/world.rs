//! Random small schemas, and random states of them that hold every constraint.
//!
//! Tables with single and composite keys; unique constraints, some over two columns, some on columns that take few values; references
//! to tables before and after, to the table itself, in circles, some deferrable. Beside what the model knows, each table has a check and
//! a reference to a table that no remote sees: by these an upload can have rows at fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headwater_consolidated::Dialect;
use headwater_protocol::{Row, Value};
use headwater_testkit::Random;

use super::values::{NULL, int, text};

/// Tables.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) tables: Vec<Table>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// The first columns.
    pub(crate) key: usize,
    columns: Vec<Column>,
    pub(crate) unique: Vec<Unique>,
    pub(crate) references: Vec<Reference>,
}

#[derive(Debug)]
struct Column {
    name: String,
    is_text: bool,
    nullable: bool,
    check: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct Unique {
    pub(crate) columns: Vec<usize>,
    deferrable: bool,
}

#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) columns: Vec<usize>,
    pub(crate) table: usize,
    action: &'static str,
    deferrable: bool,
    nullable: bool,
}

/// Rows by key, table by table.
pub(crate) type State = Vec<BTreeMap<Vec<i64>, Row>>;

/// The column with a check: not negative.
pub(crate) fn checked(table: &Table) -> usize {
    table.key
}

/// The column that refers to `hidden`, whose keys are 1 to 5.
pub(crate) fn outside(table: &Table) -> usize {
    table.key + 1
}

impl Schema {
    /// `plain`: deletions neither take other rows nor change them.
    pub(crate) fn random(random: &mut Random, plain: bool) -> Schema {
        let count = 1 + random.below(4) as usize;
        let keys: Vec<usize> = (0..count).map(|_| if random.chance(70) { 1 } else { 2 }).collect();
        Schema { tables: (0..count).map(|place| table(random, place, &keys, plain)).collect() }
    }

    pub(crate) fn model(&self, conflict: &str) -> String {
        let mut model = "name = \"world\"\nversion = 1\n".to_owned();
        for table in &self.tables {
            let name = |place: &usize| format!("{:?}", table.columns[*place].name);
            let names = |places: &[usize]| places.iter().map(name).collect::<Vec<_>>().join(", ");
            let _ = writeln!(model, "[tables.{}]", table.name);
            let _ = writeln!(model, "conflict = {conflict:?}");
            let _ = writeln!(model, "key = [{}]", names(&(0..table.key).collect::<Vec<_>>()));
            let unique: Vec<String> = table.unique.iter().map(|u| format!("[{}]", names(&u.columns))).collect();
            let _ = writeln!(model, "unique = [{}]", unique.join(", "));
            let reference = |reference: &Reference| {
                let on_delete = match reference.action {
                    "CASCADE" => ", on_delete = \"cascade\"",
                    "SET NULL" => ", on_delete = \"set null\"",
                    _ => "",
                };
                let to = &self.tables[reference.table].name;
                format!("{{ columns = [{}], table = {to:?}{on_delete} }}", names(&reference.columns))
            };
            let references: Vec<String> = table.references.iter().map(reference).collect();
            let _ = writeln!(model, "references = [{}]", references.join(", "));
            let column = |column: &Column| {
                let null = if column.nullable { "" } else { " not null" };
                format!("{} = \"{}{null}\"", column.name, if column.is_text { "text" } else { "int" })
            };
            let columns: Vec<String> = table.columns.iter().map(column).collect();
            let _ = writeln!(model, "columns = {{ {} }}", columns.join(", "));
        }
        model
    }

    pub(crate) fn sql(&self, dialect: Dialect) -> String {
        let mut sql = "CREATE TABLE hidden (id {int} NOT NULL PRIMARY KEY); \
                       INSERT INTO hidden VALUES (1), (2), (3), (4), (5);\n"
            .to_owned();
        let mut later = String::new();
        for table in &self.tables {
            let names = |places: &[usize]| {
                places.iter().map(|place| table.columns[*place].name.clone()).collect::<Vec<_>>().join(", ")
            };
            let defer = |is: bool| {
                let is = is && dialect == Dialect::Postgres;
                if is { " DEFERRABLE INITIALLY IMMEDIATE" } else { "" }
            };
            let mut parts: Vec<String> = table.columns.iter().map(Column::sql).collect();
            parts.push(format!("PRIMARY KEY ({})", names(&(0..table.key).collect::<Vec<_>>())));
            parts.push(format!("CHECK ({} >= 0)", table.columns[checked(table)].name));
            let hidden = &table.columns[outside(table)].name;
            parts.push(format!("FOREIGN KEY ({hidden}) REFERENCES hidden (id)"));
            parts.extend(table.unique.iter().map(|u| format!("UNIQUE ({}){}", names(&u.columns), defer(u.deferrable))));
            for reference in &table.references {
                let to = &self.tables[reference.table];
                let target: Vec<String> = to.columns[..to.key].iter().map(|column| column.name.clone()).collect();
                let key = format!(
                    "FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {}{}",
                    names(&reference.columns),
                    to.name,
                    target.join(", "),
                    reference.action,
                    defer(reference.deferrable),
                );
                match dialect {
                    Dialect::Sqlite => parts.push(key),
                    Dialect::Postgres => {
                        let _ = writeln!(later, "ALTER TABLE {} ADD {key};", table.name);
                    }
                }
            }
            let _ = writeln!(sql, "CREATE TABLE {} ({});", table.name, parts.join(", "));
        }
        // What is held by a row that no remote sees can't be deleted.
        for table in self.tables.iter().filter(|table| table.key == 1) {
            let name = &table.name;
            let _ = writeln!(later, "CREATE TABLE holds_{name} (held {{int}} NOT NULL REFERENCES {name} (k0));");
        }
        sql + &later
    }

    /// A state in which every constraint holds; some of it as before.
    pub(crate) fn state(&self, random: &mut Random, before: &State) -> State {
        let mut keys: Vec<BTreeSet<Vec<i64>>> =
            self.tables.iter().zip(before).map(|(table, before)| table.keys(random, before)).collect();
        while let Some(empty) = self.tables.iter().position(|table| {
            let place = self.tables.iter().position(|other| other.name == table.name).unwrap_or(0);
            !keys[place].is_empty() && table.references.iter().any(|r| !r.nullable && keys[r.table].is_empty())
        }) {
            keys[empty].clear();
        }
        self.tables
            .iter()
            .zip(before)
            .zip(&keys)
            .map(|((table, before), own)| table.rows(random, before, own, &keys))
            .collect()
    }
}

fn table(random: &mut Random, place: usize, keys: &[usize], plain: bool) -> Table {
    let mut columns: Vec<Column> = Vec::new();
    let column = |name: String, nullable: bool| Column { name, is_text: false, nullable, check: None };
    columns.extend((0..keys[place]).map(|number| column(format!("k{number}"), false)));
    columns.push(column("v".into(), false));
    columns.push(column("x".into(), true));
    let mut unique = Vec::new();
    for number in 0..random.below(3) {
        let first = columns.len();
        let is_pair = random.chance(25);
        for part in 0..=u64::from(is_pair) {
            let is_text = random.chance(50);
            let nullable = random.chance(40);
            let name = format!("u{number}_{part}");
            let check = match (random.chance(40), is_text) {
                (false, _) => None,
                (true, true) => Some("length(NAME) = 3"),
                (true, false) => Some("NAME BETWEEN 1 AND 32767"),
            };
            columns.push(Column { name, is_text, nullable, check });
        }
        unique.push(Unique { columns: (first..columns.len()).collect(), deferrable: random.chance(25) });
    }
    let mut references = Vec::new();
    for number in 0..random.below(4) {
        let to = random.below(keys.len() as u64) as usize;
        let deferrable = random.chance(30);
        let nullable = match to.cmp(&place) {
            std::cmp::Ordering::Less => random.chance(50),
            std::cmp::Ordering::Equal => random.chance(75),
            std::cmp::Ordering::Greater => !deferrable || random.chance(50),
        };
        let actions: &[&str] = match (plain, nullable) {
            (true, _) => &["NO ACTION"],
            (false, true) => &["NO ACTION", "CASCADE", "SET NULL", "RESTRICT"],
            // In a circle that can't be broken, no order is right.
            (false, false) if to < place => &["NO ACTION", "CASCADE", "RESTRICT"],
            (false, false) => &["NO ACTION", "CASCADE"],
        };
        let action = random.pick(actions).copied().unwrap_or("NO ACTION");
        let first = columns.len();
        columns.extend((0..keys[to]).map(|part| column(format!("r{number}_{part}"), nullable)));
        references.push(Reference {
            columns: (first..columns.len()).collect(),
            table: to,
            action,
            deferrable,
            nullable,
        });
    }
    Table { name: format!("t{place}"), key: keys[place], columns, unique, references }
}

impl Column {
    fn sql(&self) -> String {
        let Column { name, is_text, nullable, check } = self;
        let kind = if *is_text { "text" } else { "{int}" };
        let null = if *nullable { "" } else { " NOT NULL" };
        let check = check.map(|check| format!(" CHECK ({})", check.replace("NAME", name))).unwrap_or_default();
        format!("{name} {kind}{null}{check}")
    }

    /// One of nine values.
    fn value(&self, number: u64) -> Value {
        if self.is_text { text(&format!("a0{number}")) } else { int(number as i64 + 1) }
    }
}

impl Table {
    fn keys(&self, random: &mut Random, before: &BTreeMap<Vec<i64>, Row>) -> BTreeSet<Vec<i64>> {
        let density = 20 + random.below(70) as u32;
        let all: Vec<Vec<i64>> = match self.key {
            1 => (1..=8).map(|key| vec![key]).collect(),
            _ => (1..=3).flat_map(|one| (1..=3).map(move |other| vec![one, other])).collect(),
        };
        let stays = |random: &mut Random, key: &Vec<i64>| {
            random.chance(if before.contains_key(key) { density.max(60) } else { density })
        };
        all.into_iter().filter(|key| stays(random, key)).collect()
    }

    fn rows(
        &self,
        random: &mut Random,
        before: &BTreeMap<Vec<i64>, Row>,
        own: &BTreeSet<Vec<i64>>,
        keys: &[BTreeSet<Vec<i64>>],
    ) -> BTreeMap<Vec<i64>, Row> {
        let mut taken: Vec<BTreeSet<Vec<String>>> = vec![BTreeSet::new(); self.unique.len()];
        let mut rows = BTreeMap::new();
        for key in own {
            let old = before.get(key);
            let mut row: Row = vec![NULL; self.columns.len()];
            row.iter_mut().zip(key).for_each(|(value, key)| *value = int(*key));
            row[checked(self)] = int(random.below(3) as i64);
            row[outside(self)] = if random.chance(50) { NULL } else { int(1 + random.below(5) as i64) };
            for (unique, taken) in self.unique.iter().zip(&mut taken) {
                let kept = old.filter(|_| random.chance(40));
                let mut values: Row = match kept {
                    Some(old) => unique.columns.iter().map(|place| old[*place].clone()).collect(),
                    None => self.unique_values(random, unique),
                };
                while !values.contains(&NULL) && !taken.insert(spelled(&values)) {
                    values = self.unique_values(random, unique);
                }
                unique.columns.iter().zip(values).for_each(|(place, value)| row[*place] = value);
            }
            for reference in &self.references {
                let parents: Vec<&Vec<i64>> = keys[reference.table].iter().collect();
                if let Some(parent) = random.pick(&parents).filter(|_| !reference.nullable || random.chance(75)) {
                    reference.columns.iter().zip(*parent).for_each(|(place, key)| row[*place] = int(*key));
                }
            }
            rows.insert(key.clone(), row);
        }
        rows
    }

    fn unique_values(&self, random: &mut Random, unique: &Unique) -> Row {
        let value = |place: &usize| {
            let column = &self.columns[*place];
            if column.nullable && random.chance(20) { NULL } else { column.value(random.below(10)) }
        };
        unique.columns.iter().map(value).collect()
    }
}

/// Values as something that is ordered.
pub(crate) fn spelled(values: &[Value]) -> Vec<String> {
    values.iter().map(|value| format!("{value:?}")).collect()
}
