//! A model as file, value and JSON: the same in each.

use headwater_model::parse::parse;
use headwater_model::script::{Script, Step};
use headwater_model::write::{Comments, to_toml};
use headwater_model::{
    Column, ColumnType, ConflictRule, Direction, FromJsonError, Model, OnDelete, OnError, Partition, Reference, Side,
    Table, TablePartition,
};
use headwater_protocol::Type;
use proptest::prelude::*;

const SHOP: &str = r#"
name = "shop"
version = 3

[values]
branch = "SELECT branch FROM clerk WHERE login = :s.user"

[partitions.region]
columns = { region = "text" }
members = """
SELECT region FROM member
WHERE user_name = :s.user AND note <> ':nothing "here" \\'
"""

[tables.line]
schema = "sales"
key = ["order", "line"]
partition = { name = "region", columns = ["Region of the order"] }
conflict = "newer_wins(changed)"
references = [
    { columns = ["order"], table = "orders", on_delete = "cascade" },
    { columns = ["part"], table = "part", target = ["code"], on_delete = "set null" },
]

[tables.line.columns]
order = "uuid not null"
line = "int not null"
part = "TEXT"
"Region of the order" = "text NOT  NULL"
price = "decimal(30,6) null"
changed = "timestamptz"

[tables.orders]
direction = "upload"
key = ["id"]
columns = { id = "uuid not null", before = "uuid" }
references = [{ columns = ["before"], table = "orders" }]

[tables.part]
direction = "download"
conflict = "merge(remote)"
key = ["id"]
unique = [["code"], ["id", "code"]]
columns = { id = "int not null", code = "text" }
"#;

fn shop() -> Model {
    parse("shop.toml", SHOP).expect("the model is valid")
}

#[test]
fn a_file_becomes_this_model() {
    let model = shop();
    assert_eq!(model.tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["orders", "part", "line"]);
    let line = model.table("line").expect("line");
    assert_eq!(line.schema.as_deref(), Some("sales"));
    assert_eq!(line.key, [0, 1]);
    assert_eq!(line.partition, Some(TablePartition { partition: 0, columns: vec![3], through: None }));
    assert_eq!(line.conflict, ConflictRule::NewerWins(5));
    assert_eq!(line.direction, Direction::Both);
    assert_eq!(
        line.references,
        [
            Reference { columns: vec![0], table: 0, target: vec![0], on_delete: OnDelete::Cascade },
            Reference { columns: vec![2], table: 1, target: vec![1], on_delete: OnDelete::SetNull },
        ]
    );
    let nullable: Vec<_> = line.columns.iter().map(|column| column.nullable).collect();
    assert_eq!(nullable, [false, false, true, false, true, true]);
    assert_eq!(line.column("price").map(|c| c.kind), Some(ColumnType::decimal(30, 6)));
    assert_eq!(model.table("PART").map(|t| t.conflict), Some(ConflictRule::Merge(Side::Remote)));
    assert_eq!(model.table("orders").map(|t| t.references[0].table), Some(0), "a table may refer to itself");
}

#[test]
fn counters_are_read_and_remotes_are_told_of_them() {
    let text = SHOP.replace("conflict = \"merge(remote)\"", "conflict = { merge = \"remote\", sum = [\"qty\"] }");
    let text = text.replace("code = \"text\" }", "code = \"text\", qty = \"decimal(9,2)\" }");
    let model = parse("shop.toml", &text).expect("a model");
    let part = model.table("part").expect("part");
    assert_eq!((part.conflict, part.sum.as_slice()), (ConflictRule::Merge(Side::Remote), &[2][..]));
    assert_eq!([0, 1, 2].map(|place| part.counter(place)), [None, None, Some(Some((9, 2)))]);
    assert_eq!(
        Model::from_json(&model.to_json()).expect("read again").table("part").map(|t| t.sum.clone()),
        Some(vec![2])
    );
    assert!(!shop().to_json().contains("sum"), "a model without counters is told as before");
    let mut other = model.clone();
    other.tables[1].conflict = ConflictRule::RemoteWins;
    let refused = Model::from_json(&other.to_json()).expect_err("sum is merge's");
    assert!(refused.to_string().contains("sum stands beside a conflict rule other than merge"), "{refused}");
}

#[test]
fn the_flights_are_a_model() {
    let text = include_str!("../../../examples/flights/model.toml");
    let model = parse("examples/flights/model.toml", text).expect("the example is valid");
    assert_eq!(model.tables.len(), 5);
    assert_eq!(parse("again", &to_toml(&model, &Comments::default())), Ok(model));
}

#[test]
fn the_public_form_has_no_membership_query() {
    let model = shop();
    assert!(model.partitions[0].members.contains("SELECT"));
    let json = model.to_json();
    assert!(!json.contains("SELECT") && !json.contains("members"), "{json}");
    assert_eq!(Model::from_json(&json).expect("valid"), model.public());
    let full = serde_json::to_string(&model).expect("plain data");
    assert_eq!(Model::from_json(&full).expect("valid"), model.public(), "a query that comes along is dropped");
}

/// The vector is frozen: a changed fingerprint makes every remote in the world download everything afresh.
#[test]
fn the_fingerprint_is_what_it_was() {
    assert_eq!(format!("{:016x}", shop().fingerprint()), "dee233aa0e56af8f");
}

#[test]
fn the_fingerprint_tells_models_apart_but_not_their_queries() {
    let model = shop();
    let same = |change: &dyn Fn(&mut Model)| {
        let mut other = model.clone();
        change(&mut other);
        other.fingerprint() == model.fingerprint()
    };
    assert!(same(&|_| ()));
    assert!(same(&|m| m.partitions[0].members.clear()));
    assert!(!same(&|m| m.version += 1));
    assert!(!same(&|m| m.tables.swap(0, 1)));
    assert!(!same(&|m| m.tables[2].columns[4].kind = ColumnType::decimal(30, 7)));
    assert!(!same(&|m| m.tables[2].columns[4].nullable = false));
    assert!(!same(&|m| m.tables[1].direction = Direction::Both));
    assert!(!same(&|m| m.tables[1].conflict = ConflictRule::Merge(Side::Consolidated)));
    assert!(!same(&|m| m.tables[2].references[0].on_delete = OnDelete::NoAction));
}

#[test]
fn json_that_breaks_a_rule_is_refused() {
    let refused = |change: &dyn Fn(&mut Model)| {
        let mut model = shop();
        change(&mut model);
        match Model::from_json(&serde_json::to_string(&model).expect("plain data")) {
            Err(FromJsonError::Invalid { violation, .. }) => violation.to_string(),
            other => panic!("not refused: {other:?}"),
        }
    };
    insta::assert_snapshot!(refused(&|m| m.tables[2].key = vec![6]), @r#"table "line": the key refers to place 6, expected a place below 6"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].key = vec![]), @r#"table "line": the key names no column"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].key = vec![0, 0]), @r#"table "line": the key names a column twice"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].key = vec![2]), @r#"table "line": a column of the key is nullable"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].references[0].table = 3), @r#"table "line": a reference refers to place 3, expected a place below 3"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].references[0].target = vec![0, 1]), @r#"table "line": a reference has more or fewer columns than its target"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].references[1].target = vec![7]), @r#"table "line": a reference's target refers to place 7, expected a place below 2"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].references[0].target = vec![1]), @r#"table "line": a reference's target is neither the key nor a unique constraint"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].partition = Some(TablePartition { partition: 1, columns: vec![3], through: None })), @r#"table "line": the partition refers to place 1, expected a place below 1"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].partition = Some(TablePartition { partition: 0, columns: vec![1], through: None })), @r#"table "line": the columns of the partition differ in number or type from the partition's"#);
    insta::assert_snapshot!(refused(&|m| m.tables[2].conflict = ConflictRule::NewerWins(usize::MAX)), @r#"table "line": newer_wins refers to place 18446744073709551615, expected a place below 6"#);
    insta::assert_snapshot!(refused(&|m| m.tables[1].unique.push(vec![2])), @r#"table "part": a unique constraint refers to place 2, expected a place below 2"#);
    insta::assert_snapshot!(refused(&|m| m.tables[1].name = "ORDERS".into()), @r#"there are two tables named "ORDERS" (upper and lower case are one name in a remote)"#);
    insta::assert_snapshot!(refused(&|m| m.tables[1].columns[1].name = "hw_x".into()), @r#"column "hw_x" begins with hw_, which is reserved"#);
    insta::assert_snapshot!(refused(&|m| m.name = "a\0b".into()), @r#"model "a\0b" has control characters"#);
    insta::assert_snapshot!(refused(&|m| m.version = 0), @"the version is 0, expected 1 or more");
    insta::assert_snapshot!(refused(&|m| m.tables.clear()), @"the model has 0 tables, expected 1 to 1000");
    insta::assert_snapshot!(refused(&|m| m.partitions[0].columns.clear()), @r#"partition "region" has 0 columns, expected 1 to 990"#);
    let many =
        |m: &mut Model| m.tables[1].columns.extend((0..1000).map(|n| column(&format!("c{n}"), Type::Int.into(), true)));
    insta::assert_snapshot!(refused(&many), @r#"table "part" has 1002 columns, expected 1 to 990"#);
}

#[test]
fn text_that_is_no_models_json_is_refused() {
    let json = shop().to_json();
    for end in 0..json.len() {
        assert!(json.get(..end).is_none_or(|part| Model::from_json(part).is_err()), "cut after {end} bytes");
    }
    let refused = |json: &str| matches!(Model::from_json(json), Err(FromJsonError::Json(_)));
    assert!(refused(&json.replacen("\"version\"", "\"versoin\"", 1)));
    assert!(
        refused(&json.replacen("\"name\"", "\"nature\":1,\"name\"", 1)),
        "a newer server's word is not passed over"
    );
    assert!(refused(&json.replace("decimal(30,6)", "decimal(30,60)")));
    assert!(refused(&json.replacen("\"key\":[0", "\"key\":[-1", 1)));
    assert!(refused(&"[".repeat(100_000)));
    let large = format!("{json}{}", " ".repeat(headwater_model::JSON_BYTES_MAX));
    assert!(matches!(Model::from_json(&large), Err(FromJsonError::TooLarge { .. })));
}

#[test]
fn comments_are_written_where_they_belong() {
    let mut model =
        parse("m", "name='m'\nversion=1\n[tables.t]\nkey=['a']\ncolumns={a='int not null',b='text'}").expect("valid");
    model.tables[0].columns[1].name = "b c".into();
    let mut comments = Comments {
        head: "A model.\n\nTwo paragraphs.".into(),
        tail: "[tables.no_key]: no key".into(),
        ..Comments::default()
    };
    comments.tables.insert("t".into(), "The table.".into());
    comments.columns.insert(("t".into(), "b c".into()), "The column.".into());
    insta::assert_snapshot!(to_toml(&model, &comments), @r#"
# A model.
#
# Two paragraphs.
name = "m"
version = 1

# The table.
[tables.t]
direction = "both"
conflict = "consolidated_wins"
key = ["a"]

[tables.t.columns]
a = "int not null"
# The column.
"b c" = "text"

# [tables.no_key]: no key
"#);
}

fn column(name: &str, kind: ColumnType, nullable: bool) -> Column {
    Column { name: name.to_owned(), kind, nullable }
}

fn name() -> impl Strategy<Value = String> {
    // No control characters; quotes, dots, backslashes, brackets, spaces and other scripts included.
    let any = "[a-zA-Z0-9_\"'.\\\\ #()\u{e9}\u{4e2d}\u{1f98a}-]{1,20}";
    any.prop_filter("reserved", |name| headwater_model::validate::name_fault(&format!("{name}_")).is_none())
}

fn kind() -> impl Strategy<Value = ColumnType> {
    prop_oneof![
        proptest::sample::select(Type::ALL.to_vec()).prop_map(ColumnType::plain),
        (1..=1000_u16).prop_flat_map(|p| (Just(p), 0..=p)).prop_map(|(p, s)| ColumnType::decimal(p, s)),
    ]
}

prop_compose! {
    /// A table `place` of a model whose partition has one text column; it may refer to tables before it.
    fn table(place: usize)(
        columns in proptest::collection::vec((name(), kind(), any::<bool>()), 1..6),
        schema in proptest::option::of(name()),
        partition in any::<bool>(),
        direction in proptest::sample::select(vec![Direction::Both, Direction::Download, Direction::Upload]),
        rule in 0..6_usize,
        parent in proptest::option::of(0..=place),
        on_delete in proptest::sample::select(vec![OnDelete::NoAction, OnDelete::Cascade]),
        shared in any::<bool>(),
        label in name(),
        script in proptest::option::of((proptest::sample::select(vec![Step::UploadInsert, Step::UploadFetch, Step::DownloadCursor]), name())),
    ) -> Table {
        // The place at the end keeps names apart, in a remote too.
        let mut columns: Vec<_> =
            columns.into_iter().enumerate().map(|(n, (name, kind, null))| column(&format!("{name}{n}"), kind, null)).collect();
        columns.insert(0, column("id", Type::Uuid.into(), false));
        columns.push(column("parent", Type::Uuid.into(), true));
        columns.push(column("region", Type::Text.into(), true));
        let last = columns.len() - 1;
        let conflict = match rule {
            0 => ConflictRule::Off,
            1 => ConflictRule::ConsolidatedWins,
            2 => ConflictRule::RemoteWins,
            3 => ConflictRule::NewerWins(last - 2),
            4 => ConflictRule::Merge(Side::Remote),
            _ => ConflictRule::Merge(Side::Consolidated),
        };
        // The id and the last two are in keys, references and partitions.
        let is_counter = |kind: &ColumnType| kind.base == Type::Int || (kind.base == Type::Decimal && kind.precision.is_some());
        let sum = (1..last - 1).filter(|place| matches!(conflict, ConflictRule::Merge(_)) && is_counter(&columns[*place].kind)).collect();
        let references = parent.map(|table| Reference { columns: vec![last - 1], table, target: vec![0], on_delete });
        let script = script.filter(|_| direction == Direction::Both);
        let is_cursor = matches!(script, Some((Step::DownloadCursor, _)));
        Table {
            key_range: None,
            shared: shared && !is_cursor && direction != Direction::Upload,
            scripts: script.map(|(step, file)| Script { step, file, sql: String::new() }).into_iter().collect(),
            schema,
            name: format!("{label}{place}"),
            columns,
            key: vec![0],
            partition: partition.then(|| TablePartition { partition: 0, columns: vec![last], through: None }),
            direction,
            conflict,
            sum,
            references: references.into_iter().collect(),
            unique: vec![vec![last, 0]],
        }
    }
}

prop_compose! {
    fn model()(
        name in name(),
        version in 1..=u32::MAX,
        own_name in any::<bool>(),
        members in "[ -~\n\u{e9}]{0,30}",
        tables in (table(0), table(1), table(2), table(3)),
    ) -> Model {
        let partition = Partition {
            name: name.clone(),
            columns: vec![(if own_name { "region" } else { "r g" }.to_owned(), Type::Text.into())],
            // Quotes would open text, and marks be parameters.
            members: format!("SELECT {}", members.replace(['\'', '"', ':', '$', '?', ';'], "\\\\")),
        };
        let values = if own_name { vec![("shop".to_owned(), partition.members.clone())] } else { Vec::new() };
        let on_error = if own_name { OnError::Reject } else { OnError::SetAside };
        let tables = vec![tables.0, tables.1, tables.2, tables.3];
        Model { name, version, on_error, values, partitions: vec![partition], tables, unenforced: Vec::new() }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(model in model()) {
        let text = to_toml(&model, &Comments::default());
        prop_assert_eq!(parse("m.toml", &text).map_err(|errors| format!("{errors:?}\n{text}")), Ok(model));
    }

    #[test]
    fn json_is_read_back(model in model()) {
        let read = Model::from_json(&model.to_json()).expect("valid");
        prop_assert_eq!(read.fingerprint(), model.fingerprint());
        prop_assert_eq!(read, model.public());
    }

    #[test]
    fn any_text_is_a_model_or_errors_and_no_panic(text in "[ -~\n]{0,200}", cut in 0..SHOP.len(), put in "[ -~\n]{0,3}") {
        let _ = parse("m.toml", &text);
        let damaged = format!("{}{put}{}", SHOP.get(..cut).unwrap_or(""), SHOP.get(cut + 1..).unwrap_or(""));
        if let Err(errors) = parse("m.toml", &damaged) {
            prop_assert!(!errors.is_empty());
        }
    }
}
