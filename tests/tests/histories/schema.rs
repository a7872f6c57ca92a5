//! A schema drawn from a seed: reserved and quoted names, keys of one or two columns, a reference to the table itself, unique values,
//! children that go with their parents, partitions, columns of their own or those of a parent or of its parent; and the statements that
//! an application may have for it.

use headwater_testkit::Random;

use crate::rules::Rule;

/// Names that want quotes.
const NAMES: [&str; 8] = ["note", "order", "Select", "two words", "it's", "a\"b", "größe", "group"];
pub(crate) const REGIONS: [&str; 3] = ["north", "south", "it's west"];

/// The tables of one history.
pub(crate) struct Schema {
    /// Its conflicts are predicted one by one: two columns of key or one, then an integer, text, an integer.
    pub(crate) judged: String,
    pub(crate) judged_columns: Vec<(String, bool)>,
    pub(crate) judged_key: usize,
    pub(crate) rule: Rule,
    parent: String,
    child: String,
    /// It takes its partition from a child.
    leaf: String,
    /// So does a child from its parent; otherwise it has a region of its own.
    is_by_parent: bool,
    column: String,
    other_rules: [String; 2],
}

pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn toml(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Schema {
    pub(crate) fn draw(random: &mut Random) -> Schema {
        let mut names = NAMES.to_vec();
        let mut name = |random: &mut Random| names.remove(random.below(names.len() as u64) as usize).to_owned();
        let (judged, parent, child, column) = (name(random), name(random), name(random), name(random));
        let (leaf, is_by_parent) = (name(random), random.chance(50));
        let judged_key = 1 + random.below(2) as usize;
        let mut judged_columns = vec![("id".to_owned(), false)];
        judged_columns.extend((judged_key == 2).then(|| ("part".to_owned(), true)));
        judged_columns.extend([(column.clone(), true), ("body".to_owned(), false), ("n".to_owned(), true)]);
        let rules = [
            Rule::Off,
            Rule::ConsolidatedWins,
            Rule::RemoteWins,
            Rule::NewerWins(judged_key + 2),
            Rule::MergeConsolidated,
            Rule::MergeRemote,
        ];
        let rule = rules[random.below(6) as usize];
        let others = ["off", "consolidated_wins", "remote_wins", "merge(consolidated)", "merge(remote)"];
        let other_rules = [(); 2].map(|()| others[random.below(5) as usize].to_owned());
        Schema { judged, judged_columns, judged_key, rule, parent, child, leaf, is_by_parent, column, other_rules }
    }

    /// Parents, children and theirs, for telling what is in them.
    pub(crate) fn family(&self) -> [String; 3] {
        [quote(&self.parent), quote(&self.child), quote(&self.leaf)]
    }

    /// The tables of the consolidated database.
    pub(crate) fn sql(&self, users: usize) -> String {
        let columns: Vec<String> = self
            .judged_columns
            .iter()
            .map(|(name, is_integer)| format!("{} {}", quote(name), if *is_integer { "bigint" } else { "text" }))
            .collect();
        let key = if self.judged_key == 2 { "id, part" } else { "id" };
        let (parent, child, column) = (quote(&self.parent), quote(&self.child), quote(&self.column));
        let leaf = quote(&self.leaf);
        let (own_region, refers, target) = if self.is_by_parent {
            ("", "parent", "id")
        } else {
            ("region text NOT NULL, ", "parent, region", "id, region")
        };
        let members: Vec<String> = (0..users)
            .flat_map(|user| REGIONS.iter().enumerate().map(move |(place, region)| (user, place, *region)))
            .filter(|(user, place, _)| user % 3 == *place || user % 2 == 0)
            .map(|(user, _, region)| format!("('u{user}', {})", literal(region)))
            .collect();
        format!(
            "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
             CREATE TABLE {} ({}, PRIMARY KEY ({key}));
             CREATE TABLE {parent} (id text NOT NULL PRIMARY KEY, region text NOT NULL, {column} bigint UNIQUE, up text, body text,
                 UNIQUE (id, region), FOREIGN KEY (up, region) REFERENCES {parent} (id, region));
             CREATE TABLE {child} (id text NOT NULL PRIMARY KEY, {own_region}parent text, n bigint CHECK (n < 90),
                 FOREIGN KEY ({refers}) REFERENCES {parent} ({target}) ON DELETE CASCADE);
             CREATE TABLE {leaf} (id text NOT NULL PRIMARY KEY, twig text REFERENCES {child} (id) ON DELETE CASCADE, n bigint CHECK (n < 95));
             CREATE INDEX leaf_twig ON {leaf} (twig);
             CREATE TABLE bank (id text NOT NULL PRIMARY KEY, amount bigint NOT NULL);
             INSERT INTO bank VALUES ('a', 100), ('b', 100), ('c', 100), ('d', 100);
             INSERT INTO member VALUES {};",
            quote(&self.judged),
            columns.iter().zip(0..).map(|(column, place)| if place < self.judged_key { format!("{column} NOT NULL") } else { column.clone() }).collect::<Vec<_>>().join(", "),
            members.join(", ")
        )
    }

    pub(crate) fn model(&self) -> String {
        let rule = match self.rule {
            Rule::Off => "off".to_owned(),
            Rule::ConsolidatedWins => "consolidated_wins".to_owned(),
            Rule::RemoteWins => "remote_wins".to_owned(),
            Rule::NewerWins(place) => format!("newer_wins({})", self.judged_columns[place].0),
            Rule::MergeConsolidated => "merge(consolidated)".to_owned(),
            Rule::MergeRemote => "merge(remote)".to_owned(),
        };
        let columns: Vec<String> = self
            .judged_columns
            .iter()
            .enumerate()
            .map(|(place, (name, is_integer))| {
                let not_null = if place < self.judged_key { " not null" } else { "" };
                format!("{} = \"{}{not_null}\"", toml(name), if *is_integer { "int" } else { "text" })
            })
            .collect();
        let key = if self.judged_key == 2 { "[\"id\", \"part\"]" } else { "[\"id\"]" };
        let (judged, parent, child, column) =
            (toml(&self.judged), toml(&self.parent), toml(&self.child), toml(&self.column));
        let [parent_rule, child_rule] = &self.other_rules;
        let leaf = toml(&self.leaf);
        let (by, own_region, refers, target) = if self.is_by_parent {
            (format!("{{ through = {parent} }}"), "", "\"parent\"", "\"id\"")
        } else {
            let both = ("\"parent\", \"region\"", "\"id\", \"region\"");
            ("\"region\"".to_owned(), "region = \"text not null\"\n", both.0, both.1)
        };
        format!(
            "name = \"history\"\nversion = 1\n[partitions.region]\ncolumns = {{ region = \"text\" }}\n\
             members = \"SELECT region FROM member WHERE user_name = :s.user\"\n\
             [tables.{judged}]\nkey = {key}\nconflict = \"{rule}\"\n[tables.{judged}.columns]\n{}\n\
             [tables.{parent}]\nkey = [\"id\"]\npartition = \"region\"\nconflict = \"{parent_rule}\"\n\
             unique = [[{column}], [\"id\", \"region\"]]\n\
             references = [{{ columns = [\"up\", \"region\"], table = {parent}, target = [\"id\", \"region\"] }}]\n\
             [tables.{parent}.columns]\nid = \"text not null\"\nregion = \"text not null\"\n{column} = \"int\"\nup = \"text\"\nbody = \"text\"\n\
             [tables.{child}]\nkey = [\"id\"]\npartition = {by}\nconflict = \"{child_rule}\"\n\
             references = [{{ columns = [{refers}], table = {parent}, target = [{target}], on_delete = \"cascade\" }}]\n\
             [tables.{child}.columns]\nid = \"text not null\"\n{own_region}parent = \"text\"\nn = \"int\"\n\
             [tables.{leaf}]\nkey = [\"id\"]\npartition = {{ through = {child} }}\nconflict = \"{parent_rule}\"\n\
             references = [{{ columns = [\"twig\"], table = {child}, on_delete = \"cascade\" }}]\n\
             columns = {{ id = \"text not null\", twig = \"text\", n = \"int\" }}\n\
             [tables.bank]\nkey = [\"id\"]\ndirection = \"download\"\n[tables.bank.columns]\nid = \"text not null\"\namount = \"int not null\"\n",
            columns.join("\n")
        )
    }

    /// One statement that an application may have at either side: some fail where they run, some are refused later.
    pub(crate) fn write(&self, random: &mut Random) -> String {
        if random.chance(45) { self.write_judged(random) } else { self.write_family(random) }
    }

    fn write_judged(&self, random: &mut Random) -> String {
        let (table, column) = (quote(&self.judged), quote(&self.column));
        let id = literal(&format!("k{}", random.below(6)));
        let part = random.below(2);
        let (key, values) = if self.judged_key == 2 {
            (format!("id = {id} AND part = {part}"), format!("{id}, {part}"))
        } else {
            (format!("id = {id}"), id)
        };
        let (n, m) = (random.below(50), random.below(50));
        match random.below(10) {
            0..3 => format!("INSERT INTO {table} VALUES ({values}, {n}, 'it''s {m}', {m})"),
            3 => format!("UPDATE {table} SET {column} = {n} WHERE {key}"),
            4 => format!("UPDATE {table} SET body = 'body {n}' WHERE {key}"),
            5 => format!("UPDATE {table} SET n = {n}, body = NULL WHERE {key}"),
            6 => format!("UPDATE {table} SET n = {n}, {column} = NULL WHERE {key}"),
            7..9 => format!("DELETE FROM {table} WHERE {key}"),
            _ => format!("UPDATE {table} SET id = 'k{}' WHERE {key}", n % 6),
        }
    }

    fn write_family(&self, random: &mut Random) -> String {
        let (parent, child, column) = (quote(&self.parent), quote(&self.child), quote(&self.column));
        let (id, other) = (format!("'p{}'", random.below(9)), format!("'p{}'", random.below(9)));
        let (entry, leaf, twig) =
            (format!("'c{}'", random.below(12)), quote(&self.leaf), format!("'l{}'", random.below(12)));
        let own_region = if self.is_by_parent { "" } else { "region, " };
        let region = literal(REGIONS[random.below(3) as usize]);
        let n = random.below(100);
        match random.below(19) {
            0..3 => format!("INSERT INTO {parent} VALUES ({id}, {region}, {}, NULL, 'body {n}')", n % 12),
            3 => format!("UPDATE {parent} SET body = 'body {n}' WHERE id = {id}"),
            4 => format!("UPDATE {parent} SET {column} = {} WHERE id = {id}", n % 12),
            5 => format!("UPDATE {parent} SET region = {region} WHERE id = {id}"),
            6 => format!("UPDATE {parent} SET up = {other} WHERE id = {id}"),
            7 => format!("DELETE FROM {parent} WHERE id = {id}"),
            8 => format!(
                "UPDATE {parent} SET {column} = -1 WHERE id = {id} AND {column} IN (0, 1); \
                 UPDATE {parent} SET {column} = 1 - {column} WHERE {column} IN (0, 1); UPDATE {parent} SET {column} = 0 WHERE {column} = -1"
            ),
            9..11 => format!("INSERT INTO {child} SELECT {entry}, {own_region}id, {n} FROM {parent} WHERE id = {id}"),
            11 => format!("UPDATE {child} SET n = {n} WHERE id = {entry}"),
            12 => format!("UPDATE {child} SET parent = {id} WHERE id = {entry}"),
            13 => format!("DELETE FROM {child} WHERE id = {entry}"),
            14 | 15 => format!("INSERT INTO {leaf} SELECT {twig}, id, {n} FROM {child} WHERE id = {entry}"),
            16 => format!("UPDATE {leaf} SET twig = {entry} WHERE id = {twig}"),
            17 => format!("UPDATE {leaf} SET n = {n} WHERE id = {twig}"),
            _ => format!("DELETE FROM {leaf} WHERE id = {twig}"),
        }
    }

    /// What only remotes write: `REPLACE` deletes what is in its way.
    pub(crate) fn replace(&self, random: &mut Random) -> String {
        let (parent, region) = (quote(&self.parent), literal(REGIONS[random.below(3) as usize]));
        let n = random.below(12);
        format!("INSERT OR REPLACE INTO {parent} VALUES ('p{}', {region}, {n}, NULL, 'replaced')", random.below(9))
    }

    /// What only the consolidated database's own application does.
    pub(crate) fn administer(&self, random: &mut Random, users: u64, is_postgres: bool) -> String {
        let (user, region) = (random.below(users), literal(REGIONS[random.below(3) as usize]));
        let (from, to) = (b"abcd"[random.below(4) as usize] as char, b"abcd"[random.below(4) as usize] as char);
        match random.below(10) {
            0..2 => format!("DELETE FROM member WHERE user_name = 'u{user}' AND region = {region}"),
            2..4 => format!("INSERT INTO member VALUES ('u{user}', {region})"),
            4 if is_postgres => format!("TRUNCATE {} CASCADE", quote(&self.child)),
            5 if is_postgres => {
                let parent = quote(&self.parent);
                let (one, other, copied) = (random.below(9), random.below(9), REGIONS[random.below(3) as usize]);
                format!(
                    "DELETE FROM {parent} WHERE id IN ('p{one}', 'p{other}'); COPY {parent} (id, region, body) FROM PROGRAM \
                     $$printf \"p{one}\\t{copied}\\tcopied\\np{other}\\tsouth\\tcopied\\n\"$$"
                )
            }
            _ => format!(
                "UPDATE bank SET amount = amount - 7 WHERE id = '{from}'; UPDATE bank SET amount = amount + 7 WHERE id = '{to}'"
            ),
        }
    }
}
