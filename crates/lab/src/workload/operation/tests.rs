use super::*;

fn kinds(transaction: &str, parameters: &str) -> (Scenario, Kinds) {
    let text = format!("name = \"s\"\nparameters = {{ {parameters} }}\n[[transaction]]\n{transaction}");
    let scenario = Scenario::parse("s.toml", &text, &|_| Err("none".to_owned())).expect("valid");
    let kinds = Kinds::new(&scenario, &scenario.parameters, Database::Sqlite).expect("possible");
    (scenario, kinds)
}

/// What each of so many operations does, as text.
fn drawn(scenario: &Scenario, kinds: &Kinds, operations: usize) -> Vec<Vec<String>> {
    let mut operation = Operation::new(scenario, &scenario.parameters, Random::seeded(1), (0, 1));
    let mut next = |_| {
        kinds.draw(&mut operation);
        let executed = |statement: usize, base: usize| {
            let values = kinds.values(&operation, statement, base);
            let values: Vec<_> = values.into_iter().map(ToString::to_string).collect();
            format!("{} [{}]", kinds.statements[statement].sql, values.join(", "))
        };
        let shown = |act: &Act| match act {
            Act::Execute { statement, base } => executed(*statement, *base),
            Act::Bulk { statement, base, own, count } => {
                (0..*count).map(|number| executed(*statement, base + number * own)).collect::<Vec<_>>().join(" & ")
            }
            Act::Send(text) => text.clone(),
            Act::Pause(time) => format!("{time:?}"),
        };
        operation.acts().iter().map(shown).collect()
    };
    (0..operations).map(&mut next).collect()
}

const INSERT: &str = "sql = \"INSERT INTO t VALUES (:id, :n)\"\nvalues.id = { sequence = 1 }\nrepeat = \"n\"\n";

#[test]
fn each_repetition_draws_anew() {
    let (scenario, kinds) = kinds(&format!("{INSERT}pause_ms = 2"), "n = 2");
    let insert = |id: u32| format!("INSERT INTO t VALUES (?1, ?2) [{id}, 2]");
    let pause = || "2ms".to_owned();
    let expected = [[insert(1), pause(), insert(2), pause()], [insert(3), pause(), insert(4), pause()]];
    assert_eq!(drawn(&scenario, &kinds, 2), expected);
}

#[test]
fn rows_go_in_batches_and_what_is_left_over_too() {
    let (scenario, kinds) = kinds(&format!("{INSERT}send = \"rows\"\nbatch = 2"), "n = 3");
    let expected = ["INSERT INTO t VALUES (?1, ?2), (?3, ?2) [1, 3, 2]", "INSERT INTO t VALUES (?1, ?2) [3, 3]"];
    assert_eq!(drawn(&scenario, &kinds, 1), [expected]);
    assert_eq!(kinds.statements.len(), 2);
}

#[test]
fn bulks_are_of_one_statement() {
    let (scenario, kinds) = kinds(&format!("{INSERT}send = \"bulk\"\nbatch = 2"), "n = 3");
    let insert = |id: u32| format!("INSERT INTO t VALUES (?1, ?2) [{id}, 3]");
    assert_eq!(drawn(&scenario, &kinds, 1), [[format!("{} & {}", insert(1), insert(2)), insert(3)]]);
    assert_eq!(kinds.statements.len(), 1);
}

#[test]
fn joined_statements_are_one_text() {
    let (scenario, kinds) = kinds(&format!("{INSERT}send = \":how\"\nbatch = 2"), "n = 3, how = \"rows\"");
    assert_eq!(drawn(&scenario, &kinds, 1)[0].len(), 2, "by rows");
    let mut parameters = scenario.parameters.clone();
    parameters[1].1 = Value::Text("joined".to_owned());
    let kinds = Kinds::new(&scenario, &parameters, Database::Sqlite).expect("possible");
    let expected = ["INSERT INTO t VALUES (1, 3);\nINSERT INTO t VALUES (2, 3);\n", "INSERT INTO t VALUES (3, 3);\n"];
    assert_eq!(drawn(&scenario, &kinds, 1), [expected]);
    assert!(kinds.statements.is_empty(), "nothing is prepared");
}

#[test]
fn steps_share_the_transactions_values_and_come_by_chance() {
    let text = "values.a = { sequence = 7 }\n\
                [[transaction.step]]\nname = \"x\"\nsql = \"SELECT :a\"\nchance = \"share\"\n\
                [[transaction.step]]\nname = \"y\"\nsql = \"SELECT :b, :a\"\nvalues.b = { sequence = 1 }\n";
    let (scenario, kinds) = kinds(text, "share = 25");
    let all = drawn(&scenario, &kinds, 4000);
    let both = all.iter().filter(|acts| acts.len() == 2).count();
    assert!((900..1100).contains(&both), "{both} of 4000 have the step of 25 %");
    for (number, acts) in all.iter().enumerate() {
        assert_eq!(acts.last(), Some(&format!("SELECT ?1, ?2 [{}, {}]", number + 1, number + 7)));
        assert!(acts.len() == 1 || acts[0] == format!("SELECT ?1 [{}]", number + 7), "{acts:?}");
    }
}

#[test]
fn what_statements_do_is_counted_by_their_first_words() {
    let step = "[[transaction.step]]\nfile = \"a.sql\"\nrepeat = 3\n[[transaction.step]]\nsql = \"SELECT 1\"\n";
    let text = format!("name = \"s\"\n[[transaction]]\n{step}");
    let file = "-- SELECT; perhaps\n/* an */ insert INTO t VALUES (1);\nUpdate t SET n = 1;DELETE FROM t;LOCK t;\nWITH a AS (SELECT 1) SELECT 2;";
    let scenario = Scenario::parse("s.toml", &text, &|_| Ok(file.to_owned())).expect("valid");
    let kinds = Kinds::new(&scenario, &[], Database::Postgresql).expect("possible");
    let mut operation = Operation::new(&scenario, &[], Random::seeded(1), (0, 1));
    kinds.draw(&mut operation);
    let expected = Work { queries: 4, rows_read: 0, updates: 3, deletes: 3, inserts: 3 };
    assert_eq!(kinds.work(&operation), expected);
}
