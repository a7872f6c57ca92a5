use super::*;
use crate::reading::SpecError;

fn parse(text: &str) -> Result<Scenario, Vec<SpecError>> {
    Scenario::parse("s.toml", text, &|name| Ok(format!("SELECT '{name}'")))
}

const HEAD: &str = "name = \"s\"\nparameters = { n = 3, how = \"rows\", share = 100 }\n";

#[test]
fn a_transaction_is_its_only_step_or_has_some() {
    let one =
        parse(&format!("{HEAD}[[transaction]]\nname = \"a\"\nrepeat = \"2 * n\"\nsql = \"SELECT :n\"")).expect("valid");
    let [step] = &one.transactions[0].steps[..] else { panic!("{one:?}") };
    assert_eq!((step.name.as_str(), one.transactions[0].begin.sqlite.as_deref()), ("a", Some("BEGIN")));
    assert_eq!(step.resolve(&one.parameters).map(|numbers| numbers.repeat), Ok(6));

    let text = "[[transaction]]\nbegin = { postgresql = \"BEGIN\", sqlite = \"\" }\nvalues.a = { sequence = 1 }\n\
                [[transaction.step]]\nname = \"x\"\nfile = { postgresql = \"p.sql\", sqlite = \"s.sql\" }\nchance = \"share\"\n\
                [[transaction.step]]\nname = \"y\"\nsql = \"SELECT :a, :b\"\nvalues.b = { uniform = [1, \"n\"] }\n\
                [[verify]]\nwhat = \"x\"\nsql = \"SELECT :x, :y, :read, :done\"";
    let two = parse(&format!("{HEAD}{text}")).expect("valid");
    let transaction = &two.transactions[0];
    assert_eq!((transaction.begin.postgresql.as_deref(), transaction.begin.sqlite.as_deref()), (Some("BEGIN"), None));
    assert_eq!(transaction.steps[0].statements.postgresql, ["SELECT 'p.sql'"]);
    assert_eq!(transaction.steps[0].statements.sqlite, ["SELECT 's.sql'"]);
    assert_eq!(two.check(&two.parameters, 1), Ok(()));
}

#[test]
fn what_a_step_cannot_be_is_told_at_its_place() {
    for (text, start) in [
        ("sql = \"SELECT :n\"\nchance = 5", "s.toml:5:1: unknown key \"chance\" in the transaction"),
        ("sql = \"SELECT :n\"\nrepeat = \"m\"", "s.toml:5:10: repeat has the unknown parameter \"m\""),
        ("sql = \"SELECT :n\"\nsend = \"row\"", "s.toml:5:8: send is \"row\", expected one, joined, rows, bulk or"),
        ("sql = \"SELECT :n\"\nsend = \":n\"", "s.toml:5:8: send is \":n\""),
        ("sql = \"SELECT :n\"\nsend = \"rows\"", "s.toml:5:8: send by rows, expected one statement, with VALUES (...)"),
        ("sql = \"SELECT :n\"\nsend = \":how\"", "s.toml:5:8: send by rows"),
        ("sql = { sqlite = \"SELECT 1\" }", "s.toml:4:7: sql is a table, expected a string, or { postgresql"),
        ("sql = { sqlite = \"SELECT 1\", mysql = \"\" }", "s.toml:4:7: sql is a table"),
        ("sql = \"SELECT :n\"\nvalues.a = { blob = 5 }", "s.toml:5:1: the value a is in no statement"),
        (
            "sql = \"SELECT 1\"\n[[transaction.step]]\nsql = \"SELECT 1\"",
            "s.toml:4:1: unknown key \"sql\" in the transaction",
        ),
    ] {
        let errors = parse(&format!("{HEAD}[[transaction]]\n{text}")).expect_err(text);
        assert!(errors.iter().any(|error| error.to_string().starts_with(start)), "{text}: {errors:?}");
    }
}

#[test]
fn what_parameters_make_impossible_is_told() {
    let text = "[[transaction]]\nname = \"a\"\nweight = \"share\"\nrepeat = \"n\"\nbatch = \"n\"\nsend = \":how\"\n\
                sql = \"INSERT INTO t VALUES (:a)\"\nvalues.a = { text = 5 }";
    let scenario = parse(&format!("{HEAD}{text}")).expect("valid");
    let check = |name: &str, value: Value| {
        let mut parameters = scenario.parameters.clone();
        parameters.iter_mut().filter(|(known, _)| known == name).for_each(|(_, old)| *old = value.clone());
        scenario.check(&parameters, 1)
    };
    assert_eq!(check("n", Value::Integer(30_000)), Ok(()));
    for (name, value, expected) in [
        ("n", Value::Integer(-1), "execute its step a: repeat is -1, it may be 0 to 100000"),
        ("n", Value::Integer(0), "execute its step a: batch is 0, it may be 1 to 100000"),
        ("n", Value::Integer(30_001), "execute its step a: 30001 values in one statement, there may be 30000"),
        (
            "how",
            Value::Text("copy".to_owned()),
            "execute its step a: send is \"copy\", it may be one, joined, rows or bulk",
        ),
        ("share", Value::Integer(0), "choose a transaction: all weights are 0"),
        ("share", Value::Integer(-1), "choose a transaction: a weighs -1, it may be 0 to 1000000"),
    ] {
        assert_eq!(check(name, value), Err(expected.to_owned()));
    }
}

#[test]
fn the_built_in_scenarios_are_possible() {
    for name in built_in_names() {
        let scenario = Scenario::built_in(name).expect("it is there");
        assert_eq!(scenario.name, name);
        assert_eq!(scenario.check(&scenario.parameters, 3), Ok(()), "{name}");
        // Syncs have one that is no SQL of the scenario's.
        assert!(scenario.drives != Drives::Transactions || !scenario.checks.is_empty(), "{name} has no verify");
    }
}
