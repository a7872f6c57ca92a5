use super::*;
use crate::{Column, ConflictRule, TablePartition};

fn table(name: &str, columns: &[(&str, Type)], key: &[usize]) -> Table {
    let column = |(name, kind): &(&str, Type)| Column {
        name: (*name).to_owned(),
        kind: ColumnType::plain(*kind),
        nullable: true,
    };
    Table {
        schema: None,
        name: name.to_owned(),
        columns: columns.iter().map(column).collect(),
        key: key.to_vec(),
        partition: None,
        direction: Direction::Both,
        conflict: ConflictRule::ConsolidatedWins,
        sum: Vec::new(),
        references: Vec::new(),
        unique: Vec::new(),
        key_range: None,
        shared: false,
        scripts: Vec::new(),
    }
}

fn orders_and_lines() -> Model {
    let mut orders = table("orders", &[("id", Type::Int), ("region", Type::Text), ("note", Type::Text)], &[0]);
    orders.partition = Some(TablePartition { partition: 0, columns: vec![1], through: None });
    orders.unique = vec![vec![0, 1]];
    let mut lines = table("lines", &[("order", Type::Int), ("no", Type::Int), ("region", Type::Text)], &[0, 1]);
    lines.partition = Some(TablePartition { partition: 0, columns: vec![2], through: None });
    lines.references = vec![Reference { columns: vec![0], table: 0, target: vec![0], on_delete: OnDelete::Cascade }];
    Model {
        name: "m".to_owned(),
        version: 1,
        on_error: crate::OnError::default(),
        values: Vec::new(),
        partitions: Vec::new(),
        tables: vec![orders, lines],
        unenforced: Vec::new(),
    }
}

#[test]
fn a_reference_is_enforced_only_where_its_parent_is_sure_to_be() {
    let mut model = orders_and_lines();
    let count = |model: &Model| enforced_references(model, &model.tables[1]).len();
    assert_eq!(count(&model), 0, "an order may lie in another partition than its line says");
    model.tables[1].references[0] =
        Reference { columns: vec![0, 2], table: 0, target: vec![0, 1], on_delete: OnDelete::NoAction };
    assert_eq!(count(&model), 1, "the reference carries the partition");
    model.tables[0].unique.clear();
    assert_eq!(count(&model), 0, "its target is neither the key nor unique");
    model = orders_and_lines();
    model.tables[0].partition = None;
    assert_eq!(count(&model), 1);
    model.tables[0].direction = Direction::Upload;
    assert_eq!(count(&model), 0, "orders of others never come down");
}

#[test]
fn a_table_is_declared_as_its_model_says() {
    let mut model = orders_and_lines();
    model.tables[0].partition = None;
    model.tables[1].columns[2].nullable = false;
    assert_eq!(
        create_table(&model, &model.tables[1]),
        "CREATE TABLE \"lines\" (\n  \"order\" BIGINT NOT NULL,\n  \"no\" BIGINT NOT NULL,\n  \"region\" TEXT NOT NULL,\n  \
         PRIMARY KEY (\"order\", \"no\"),\n  FOREIGN KEY (\"order\") REFERENCES \"orders\" (\"id\") ON DELETE CASCADE\n) \
         WITHOUT ROWID;\n"
    );
    assert!(create_table(&model, &model.tables[0]).contains("\"id\" INTEGER PRIMARY KEY,"));
}

#[test]
fn no_declared_type_has_an_affinity_that_changes_values() {
    // https://www.sqlite.org/datatype3.html, 3.1: the first of these that the name contains decides.
    let affinity = |declared: &str| {
        let rules = [("INT", "integer"), ("CHAR", "text"), ("CLOB", "text"), ("TEXT", "text"), ("BLOB", "blob")];
        let real = [("REAL", "real"), ("FLOA", "real"), ("DOUB", "real")];
        rules.iter().chain(&real).find(|(part, _)| declared.contains(part)).map_or("numeric", |(_, affinity)| affinity)
    };
    for kind in Type::ALL {
        let expected = match kind {
            Type::Bool => "numeric",
            Type::Int => "integer",
            Type::Real => "real",
            Type::Decimal | Type::Text => "text",
            // Numbers in them stay numbers, and texts that look like numbers texts.
            _ => "blob",
        };
        assert_eq!(affinity(&declared_type(ColumnType::plain(kind))), expected, "{kind:?}");
    }
    assert_eq!(affinity(&declared_type(ColumnType { base: Type::Decimal, precision: Some((30, 6)) })), "text");
}

#[test]
fn every_trigger_is_among_the_names_that_are_dropped() {
    let mut item = table("item", &[("id", Type::Int), ("name", Type::Text)], &[0]);
    item.key_range = Some(crate::KeyRangeRule { size: 100, from: 1 });
    item.unique = vec![vec![1]];
    for direction in [Direction::Both, Direction::Download] {
        item.direction = direction;
        let uniques = Unique::of_model(&item);
        for trigger in triggers(0, &item, &uniques, KeyTraits::default()) {
            assert!(trigger_names(&item).contains(&trigger.name), "{}", trigger.name);
        }
    }
}

#[test]
fn download_tables_refuse_and_others_log() {
    let mut model = orders_and_lines();
    let names =
        |table: &Table| triggers(0, table, &[], KeyTraits::default()).into_iter().map(|t| t.name).collect::<Vec<_>>();
    assert_eq!(
        names(&model.tables[1]),
        ["hw_insert_lines", "hw_update_lines", "hw_delete_lines", "hw_update_key_lines"]
    );
    assert!(names(&model.tables[0]).contains(&"hw_inserted_orders".to_owned()));
    model.tables[1].direction = Direction::Download;
    assert!(triggers(1, &model.tables[1], &[], KeyTraits::default()).iter().all(|t| t.sql.contains("RAISE(ABORT")));
    assert!(!create_tables(&model).contains("hw_log_lines"));
}
