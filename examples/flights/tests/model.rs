//! `model.toml` describes the tables that the example makes.

use flights::MODEL;
use flights::tables::{Kind, MEMBER, TABLES};
use headwater_model::parse::parse;
use headwater_model::{Direction, Model};
use headwater_protocol::value::Type;

fn model() -> Model {
    parse("model.toml", MODEL).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

#[test]
fn the_model_has_all_tables_as_they_are() {
    let model = model();
    for table in TABLES.iter().filter(|table| table.name != MEMBER.name) {
        let described = model.table(table.name).unwrap_or_else(|| panic!("no table {}", table.name));
        let columns = described.columns.iter().map(|column| (column.name.as_str(), column.kind.base));
        let expected = table.columns.iter().map(|(name, kind)| {
            let kind = match kind {
                Kind::Int => Type::Int,
                Kind::Real => Type::Real,
                Kind::Text => Type::Text,
                Kind::Time => Type::Timestamptz,
            };
            (*name, kind)
        });
        assert!(columns.eq(expected), "the columns of {}", table.name);
        for column in &described.columns {
            let required = table.is_required(&column.name);
            assert_eq!(column.nullable, !required, "{}.{}", table.name, column.name);
        }
        assert!(described.key_columns().map(|column| column.name.as_str()).eq(table.key.iter().copied()));
        assert_eq!(described.references.len(), table.references.len(), "the references of {}", table.name);
        let partitioned = described.partition_columns().map(|column| column.name.as_str()).collect::<Vec<_>>();
        assert_eq!(partitioned, if table.by_month { vec!["origin"] } else { vec![] }, "{}", table.name);
        assert_eq!(described.direction == Direction::Both, table.by_month, "{}", table.name);
    }
    assert_eq!(model.tables.len(), TABLES.len() - 1);
}
