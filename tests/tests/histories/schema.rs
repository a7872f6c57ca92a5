//! A schema drawn from a seed: reserved and quoted names, keys of one or two columns, a reference to the table itself, unique values,
//! children that go with their parents, partitions, columns of their own or those of a parent or of its parent; things whose key, partition and
//! reference are of any type; twins, a partitioned table, keys of a range; and the statements that an application may have for it.

use headwater_testkit::Random;
use headwater_tests::Kind;

use crate::domains::{self, Compare, Domain};
use crate::rules::Rule;
use crate::shape::{Column, Shape, literal, quote};

/// Names that want quotes.
const NAMES: [&str; 8] = ["note", "order", "Select", "two words", "it's", "a\"b", "größe", "group"];
pub(crate) const REGIONS: [&str; 3] = ["north", "south", "it's west"];
/// What holds a download between its snapshot and its first read (PostgreSQL): `window` has the lock.
const HOLD: &str = "CREATE FUNCTION history_hold() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN
        PERFORM pg_advisory_lock_shared(4711); PERFORM pg_advisory_unlock_shared(4711);
    END IF; RETURN true; END $$;";

/// A trigger of the application does what an uploaded row says (PostgreSQL): with its session, or by an error of any code. `elsewhere` has
/// memberships that nobody has, and under the role the bank is empty.
const ACTS: &str = "CREATE FUNCTION history_acts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF new.body LIKE 'do %' AND current_setting('headwater.user', true) <> '' THEN EXECUTE substr(new.body, 4); END IF;
    IF new.body LIKE 'raise %' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = substr(new.body, 7); END IF;
    RETURN new; END $$;
    CREATE TRIGGER acts BEFORE INSERT OR UPDATE ON twin_a FOR EACH ROW EXECUTE FUNCTION history_acts();
    CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.member AS SELECT 'u' || u AS user_name, r AS region
        FROM generate_series(0, 9) u, unnest(ARRAY['north', 'south', 'it''s west']) r;
    CREATE TABLE elsewhere.holder AS SELECT 'u' || u AS user_name, p FROM generate_series(0, 9) u, (SELECT DISTINCT p FROM holder) h;
    DO $$ BEGIN CREATE ROLE history_limited; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$;
    ALTER TABLE bank ENABLE ROW LEVEL SECURITY; GRANT USAGE ON SCHEMA elsewhere TO history_limited;";
/// The same by an expression that fails (SQLite).
const ACTS_SQLITE: &str =
    "CREATE TRIGGER acts BEFORE INSERT ON twin_a WHEN new.body LIKE 'raise %' BEGIN SELECT json(new.body); END;";
/// After `track`: what the role may, which is everything.
pub(crate) const GRANTS: &str = "GRANT ALL ON SCHEMA public, headwater TO history_limited;
    GRANT ALL ON ALL TABLES IN SCHEMA public, headwater, elsewhere TO history_limited;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA public, headwater TO history_limited";

/// At which side a statement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Head,
    Remote,
}

/// The tables of one history.
#[derive(Clone)]
pub(crate) struct Schema {
    pub(crate) kind: Kind,
    /// Its conflicts are predicted one by one: two columns of key or one, then an integer, text, an integer.
    pub(crate) judged: String,
    pub(crate) judged_columns: Vec<(String, bool)>,
    pub(crate) judged_key: usize,
    pub(crate) rule: Rule,
    pub(crate) parent: String,
    pub(crate) child: String,
    /// It takes its partition from a child.
    pub(crate) leaf: String,
    /// So does a child from its parent; otherwise it has a region of its own.
    pub(crate) is_by_parent: bool,
    pub(crate) column: String,
    other_rules: [String; 2],
    /// The types of things' keys, partitions, references and values.
    pub(crate) key: Domain,
    pub(crate) partition: Domain,
    pub(crate) reference: Domain,
    pub(crate) value: Domain,
    /// Whether the remote keeps the reference of a thing to its kind.
    pub(crate) has_reference: bool,
    pub(crate) wanted: Wanted,
}

fn toml(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn text(name: &str, sql: &str) -> Column {
    Column { name: name.to_owned(), sql: sql.to_owned(), compare: Compare::Text }
}

/// What a schema may have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) equalities: bool,
    pub(crate) decimals: bool,
    pub(crate) ranges: bool,
}

impl Schema {
    pub(crate) fn draw(random: &mut Random, kind: Kind, wanted: Wanted) -> Schema {
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
        let mut domain = |is_key: bool| domains::draw(random, kind, wanted.equalities && !is_key);
        let (key, partition, reference, value) = (domain(true), domain(false), domain(false), domain(false));
        Schema {
            kind,
            judged,
            judged_columns,
            judged_key,
            rule,
            parent,
            child,
            leaf,
            is_by_parent,
            column,
            other_rules,
            key,
            partition,
            reference,
            value,
            has_reference: true,
            wanted,
        }
    }

    /// The tables of the model, in the order in which they can be filled.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let mut shapes = vec![self.judged_shape()];
        shapes.extend(self.family_shapes());
        shapes.extend(self.thing_shapes());
        let simple = |name: &str| Shape {
            name: name.to_owned(),
            columns: vec![text("id", "text NOT NULL"), text("body", "text"), text("spare", "text")],
            key: 1,
            constraints: String::new(),
            visible: String::new(),
            below: Vec::new(),
        };
        let bank = vec![text("id", "text NOT NULL"), text("amount", "bigint NOT NULL")];
        shapes.push(Shape { columns: bank, ..simple("bank") });
        shapes.extend([simple("twin_a"), simple("twin_b")]);
        let stock = vec![text("id", "text NOT NULL"), text("qty", "bigint NOT NULL"), text("body", "text")];
        shapes.push(Shape { columns: stock, ..simple("stock") });
        let numbered = vec![text("id", "bigint NOT NULL"), text("body", "text")];
        shapes.push(Shape { columns: numbered, ..simple("numbered") });
        let lot = vec![
            text("id", "text NOT NULL"),
            text("bucket", "bigint NOT NULL"),
            text("region", "text NOT NULL"),
            text("body", "text"),
        ];
        shapes.push(Shape { columns: lot, key: 2, visible: REGION.to_owned(), ..simple("lot") });
        shapes
    }

    fn judged_shape(&self) -> Shape {
        let column = |(place, (name, is_integer)): (usize, &(String, bool))| {
            let not_null = if place < self.judged_key { " NOT NULL" } else { "" };
            text(name, &format!("{}{not_null}", if *is_integer { "bigint" } else { "text" }))
        };
        Shape {
            name: self.judged.clone(),
            columns: self.judged_columns.iter().enumerate().map(column).collect(),
            key: self.judged_key,
            constraints: String::new(),
            visible: String::new(),
            below: Vec::new(),
        }
    }

    fn family_shapes(&self) -> [Shape; 3] {
        let [parent, child, _] = self.family();
        let id = || text("id", "text NOT NULL");
        let region = || text("region", "text NOT NULL");
        let parents =
            vec![id(), region(), text(&self.column, "bigint UNIQUE"), text("up", "text"), text("body", "text")];
        let mut children = vec![id()];
        children.extend((!self.is_by_parent).then(region));
        children.extend([text("parent", "text"), text("n", "bigint CHECK (n < 90)")]);
        let (refers, target) = if self.is_by_parent { ("parent", "id") } else { ("parent, region", "id, region") };
        let of_child = if self.is_by_parent {
            format!("parent IN (SELECT id FROM {parent} WHERE {REGION})")
        } else {
            REGION.to_owned()
        };
        [
            Shape {
                name: self.parent.clone(),
                columns: parents,
                key: 1,
                constraints: format!(
                    ", UNIQUE (id, region), FOREIGN KEY (up, region) REFERENCES {parent} (id, region)"
                ),
                visible: REGION.to_owned(),
                below: vec![self.child.clone(), self.leaf.clone()],
            },
            Shape {
                name: self.child.clone(),
                columns: children,
                key: 1,
                constraints: format!(", FOREIGN KEY ({refers}) REFERENCES {parent} ({target}) ON DELETE CASCADE"),
                visible: of_child.clone(),
                below: vec![self.leaf.clone()],
            },
            Shape {
                name: self.leaf.clone(),
                columns: vec![id(), text("twig", "text"), text("n", "bigint CHECK (n < 95)")],
                key: 1,
                constraints: format!(", FOREIGN KEY (twig) REFERENCES {child} (id) ON DELETE CASCADE"),
                visible: format!("twig IN (SELECT id FROM {child} WHERE {of_child})"),
                below: Vec::new(),
            },
        ]
    }

    fn thing_shapes(&self) -> [Shape; 2] {
        let typed = |name: &str, domain: &Domain, rest: &str| Column {
            name: name.to_owned(),
            sql: format!("{}{rest}", domain.sql(self.kind)),
            compare: domain.compare(self.kind),
        };
        let postgres = self.kind == Kind::Postgres;
        let (price, mood) = if postgres { ("numeric(10,2)", "mood") } else { ("DECIMAL_TEXT", "TEXT") };
        let kinds = vec![text("id", "text NOT NULL"), typed("code", &self.reference, " UNIQUE"), text("label", "text")];
        // Compared as the product does, by the collation that the table's column has now: a value that comes out of JSON has none of its own.
        let is_collated = postgres && self.partition.sql(self.kind).contains("COLLATE");
        let held = if is_collated { "(to_json(holder.p) #>> ARRAY[]::text[])" } else { "holder.p" };
        let things = vec![
            typed("id", &self.key, " NOT NULL"),
            typed("p", &self.partition, " NOT NULL"),
            typed("q", &self.partition, " NOT NULL"),
            typed("kind", &self.reference, ""),
            typed("val", &self.value, ""),
            typed("spare", &self.value, ""),
            text("price", price),
            text("mood", mood),
            text("label", "text"),
        ];
        [
            Shape {
                name: "kind".to_owned(),
                columns: kinds,
                key: 1,
                constraints: String::new(),
                visible: String::new(),
                below: vec!["thing".to_owned()],
            },
            Shape {
                name: "thing".to_owned(),
                columns: things,
                key: 1,
                constraints: ", FOREIGN KEY (kind) REFERENCES kind (code)".to_owned(),
                visible: format!(
                    "EXISTS (SELECT 1 FROM holder WHERE holder.user_name = {{user}} AND thing.p = {held})"
                ),
                below: Vec::new(),
            },
        ]
    }

    /// Parents, children and theirs, quoted.
    pub(crate) fn family(&self) -> [String; 3] {
        [quote(&self.parent), quote(&self.child), quote(&self.leaf)]
    }

    /// The tables of the consolidated database.
    pub(crate) fn sql(&self, random: &mut Random, users: usize) -> String {
        let is_postgres = self.kind == Kind::Postgres;
        let members: Vec<String> = (0..users)
            .flat_map(|user| REGIONS.iter().enumerate().map(move |(place, region)| (user, place, *region)))
            .filter(|(user, place, _)| user % 3 == *place || user % 2 == 0)
            .map(|(user, _, region)| format!("('u{user}', {})", literal(region)))
            .collect();
        let holders: Vec<String> =
            (0..users).map(|user| format!("('u{user}', {})", self.partition.literal(random, is_postgres))).collect();
        let create = |shape: &Shape| match shape.name.as_str() {
            "lot" if is_postgres => format!(
                "{} PARTITION BY LIST (bucket); CREATE TABLE lot_0 PARTITION OF lot FOR VALUES IN (0); \
                 CREATE TABLE lot_1 PARTITION OF lot FOR VALUES IN (1); CREATE TABLE lot_2 PARTITION OF lot FOR VALUES IN (2)",
                shape.create("lot")
            ),
            name => shape.create(name),
        };
        let tables: Vec<String> = self.shapes().iter().map(create).collect();
        let before = if is_postgres { [domains::POSTGRES_TYPES, HOLD].concat() } else { String::new() };
        format!(
            "{before} CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
             CREATE TABLE holder (user_name text NOT NULL, p {} NOT NULL);
             {};
             CREATE INDEX leaf_twig ON {} (twig);
             INSERT INTO bank VALUES ('a', 100), ('b', 100), ('c', 100), ('d', 100);
             INSERT INTO stock VALUES ('s0', 100, NULL), ('s1', 100, NULL), ('s2', 100, NULL);
             INSERT INTO member VALUES {}; INSERT INTO holder VALUES {}; {}",
            self.partition.sql(self.kind),
            tables.join(";\n"),
            quote(&self.leaf),
            members.join(", "),
            holders.join(", "),
            if is_postgres { ACTS } else { ACTS_SQLITE },
        )
    }

    pub(crate) fn model(&self) -> String {
        let hold = if self.kind == Kind::Postgres { " AND history_hold()" } else { "" };
        format!(
            "name = \"history\"\nversion = 1\n[partitions.region]\ncolumns = {{ region = \"text\" }}\n\
             members = \"SELECT region FROM member WHERE user_name = :s.user{hold}\"\n\
             [partitions.own]\ncolumns = {{ p = \"{}\" }}\nmembers = \"SELECT {} FROM holder WHERE user_name = :s.user\"\n{}{}{}",
            self.partition.model,
            // Its binary form is not read.
            if self.partition.name == "interval" { "CAST(p AS text)" } else { "p" },
            self.judged_model(),
            self.family_model(),
            self.other_models(),
        )
    }

    fn judged_model(&self) -> String {
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
        format!(
            "[tables.{judged}]\nkey = {key}\nconflict = \"{rule}\"\n[tables.{judged}.columns]\n{}\n",
            columns.join("\n"),
            judged = toml(&self.judged)
        )
    }

    fn family_model(&self) -> String {
        let (parent, child, column) = (toml(&self.parent), toml(&self.child), toml(&self.column));
        let [parent_rule, child_rule] = &self.other_rules;
        let leaf = toml(&self.leaf);
        let (by, own_region, refers, target) = if self.is_by_parent {
            (format!("{{ through = {parent} }}"), "", "\"parent\"", "\"id\"")
        } else {
            let both = ("\"parent\", \"region\"", "\"id\", \"region\"");
            ("\"region\"".to_owned(), "region = \"text not null\"\n", both.0, both.1)
        };
        format!(
            "[tables.{parent}]\nkey = [\"id\"]\npartition = \"region\"\nconflict = \"{parent_rule}\"\n\
             unique = [[{column}], [\"id\", \"region\"]]\n\
             references = [{{ columns = [\"up\", \"region\"], table = {parent}, target = [\"id\", \"region\"] }}]\n\
             [tables.{parent}.columns]\nid = \"text not null\"\nregion = \"text not null\"\n{column} = \"int\"\nup = \"text\"\nbody = \"text\"\n\
             [tables.{child}]\nkey = [\"id\"]\npartition = {by}\nconflict = \"{child_rule}\"\n\
             references = [{{ columns = [{refers}], table = {parent}, target = [{target}], on_delete = \"cascade\" }}]\n\
             [tables.{child}.columns]\nid = \"text not null\"\n{own_region}parent = \"text\"\nn = \"int\"\n\
             [tables.{leaf}]\nkey = [\"id\"]\npartition = {{ through = {child} }}\nconflict = \"{parent_rule}\"\n\
             references = [{{ columns = [\"twig\"], table = {child}, on_delete = \"cascade\" }}]\n\
             columns = {{ id = \"text not null\", twig = \"text\", n = \"int\" }}\n"
        )
    }

    fn other_models(&self) -> String {
        let [one, other] = &self.other_rules;
        let (key, p, reference, value) = (self.key.model, self.partition.model, self.reference.model, self.value.model);
        let refers = if self.has_reference {
            "references = [{ columns = [\"kind\"], table = \"kind\", target = [\"code\"] }]\n"
        } else {
            ""
        };
        let unique = if self.has_reference { "unique = [[\"code\"]]\n" } else { "" };
        let simple = |name: &str, rest: &str, columns: &str| {
            format!("[tables.{name}]\nkey = [\"id\"]\n{rest}\ncolumns = {{ {columns} }}\n")
        };
        [
            "[tables.bank]\nkey = [\"id\"]\ndirection = \"download\"\ncolumns = { id = \"text not null\", amount = \"int not null\" }\n".to_owned(),
            simple("kind", &format!("{unique}conflict = \"{one}\""), &format!("id = \"text not null\", code = \"{reference}\", label = \"text\"")),
            simple("thing", &format!("{refers}partition = \"own\"\nconflict = \"{other}\""), &format!(
                "id = \"{key} not null\", p = \"{p} not null\", q = \"{p} not null\", kind = \"{reference}\", val = \"{value}\", \
                 spare = \"{value}\", price = \"decimal(10,2)\", mood = \"text\", label = \"text\""
            )),
            simple("twin_a", &format!("conflict = \"{one}\""), "id = \"text not null\", body = \"text\", spare = \"text\""),
            simple("twin_b", &format!("conflict = \"{other}\""), "id = \"text not null\", body = \"text\", spare = \"text\""),
            simple("stock", "conflict = { merge = \"consolidated\", sum = [\"qty\"] }", "id = \"text not null\", qty = \"int not null\", body = \"text\""),
            simple("numbered", "key_range = { size = 6, from = 1000 }", "id = \"int not null\", body = \"text\""),
            format!(
                "[tables.lot]\nkey = [\"id\", \"bucket\"]\npartition = \"region\"\nconflict = \"{one}\"\n\
                 columns = {{ id = \"text not null\", bucket = \"int not null\", region = \"text not null\", body = \"text\" }}\n"
            ),
        ]
        .concat()
    }
}

/// A table with the region's column is in the partition of that.
const REGION: &str = "region IN (SELECT region FROM member WHERE user_name = {user})";
