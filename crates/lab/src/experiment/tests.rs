//! Cells of valid experiments, and what is said of wrong ones.

use super::*;

fn parse(text: &str) -> Result<Experiment, Vec<SpecError>> {
    let files = |path: &str| match path {
        "own/scenario.toml" => Ok("name = \"own\"\nparameters.n = 3\n[[transaction]]\nfile = \"t.sql\"".to_owned()),
        "own/t.sql" => Ok("SELECT :n".to_owned()),
        "broken.toml" => Ok("name = \"broken\"\ntransactoin = 1".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    Experiment::parse("x.toml", text, &files)
}

const HEAD: &str = "name = \"x\"\nstop.duration = \"1s\"\nscenario.name = \"tpcb\"\n";

fn valid(rest: &str) -> Experiment {
    parse(&format!("{HEAD}{rest}")).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

/// The errors' lines; HEAD has three lines, so the rest begins at line 4.
fn errors(rest: &str) -> Vec<String> {
    errors_of(&format!("{HEAD}{rest}"))
}

fn errors_of(text: &str) -> Vec<String> {
    parse(text).expect_err("refused").iter().map(ToString::to_string).collect()
}

fn varied(experiment: &Experiment) -> Vec<String> {
    let shown = |cell: &Cell| cell.varied.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
    experiment.cells.iter().map(shown).collect()
}

#[test]
fn lists_make_the_cross_product_in_the_order_of_the_file() {
    let experiment = valid("load.clients = [1, 2]\ntarget.setup = [\"A\", \"B\"]\nscenario.branches = 3");
    assert_eq!(varied(&experiment), ["1 A", "1 B", "2 A", "2 B"]);
    let cell = &experiment.cells[2];
    assert_eq!((cell.load.clients, cell.target.setup.as_deref()), (2, Some("A")));
    let expected = [("branches", 3), ("tellers", 10), ("accounts", 100_000), ("query_percent", 0)];
    assert_eq!(cell.parameters, expected.map(|(name, value)| (name.to_owned(), Value::Integer(value))));
}

#[test]
fn zipped_lists_go_together() {
    let open = "load.arrival = \"poisson\"\nload.timeout = [\"1s\", \"2s\"]\n";
    let rest =
        format!("{open}load.clients = [1, 2]\nload.rate = [10, 20.5]\nzip = [[\"load.clients\", \"load.rate\"]]");
    assert_eq!(varied(&valid(&rest)), ["1s 1 10", "1s 2 20.5", "2s 1 10", "2s 2 20.5"]);
    let wrong = errors("load.clients = [1, 2]\nload.threads = 1\nzip = [[\"load.clients\", \"load.threads\"]]");
    assert_eq!(
        wrong,
        ["x.toml:6:25: load.threads has 1 values, load.clients has 2, expected as many in each key of a group"]
    );
    let wrong = errors("load.clients = [1, 2]\nzip = [[\"load.clients\", \"load.rates\"]]");
    assert!(wrong[0].starts_with("x.toml:5:25: zip names \"load.rates\", which has no value here"), "{wrong:?}");
}

#[test]
fn what_is_excluded_is_left_out() {
    let lists = "load.clients = [1, 2, 3]\nscenario.branches = [1, 2]\n";
    let experiment = valid(&format!("{lists}exclude = [{{ load.clients = [2, 3], scenario.branches = 1 }}]"));
    assert_eq!(varied(&experiment), ["1 1", "1 2", "2 2", "3 2"]);
    let wrong = errors(&format!("{lists}exclude = [{{ load.clients = 5 }}]"));
    assert_eq!(wrong, ["x.toml:6:29: exclude has load.clients = 5, expected one of its values: 1, 2, 3"]);
    let wrong = errors(&format!("{lists}exclude = [{{ load.clients = [1, 2, 3] }}]"));
    assert_eq!(wrong, ["x.toml:1:1: every cell is excluded, expected at least one to run"]);
}

#[test]
fn a_users_own_scenario_is_read_from_its_files() {
    let text = "name = \"x\"\nstop.iterations = 5\nscenario.file = \"own/scenario.toml\"\nscenario.n = [1, 2]";
    let experiment = parse(text).expect("valid");
    assert_eq!(experiment.scenarios[0].transactions[0].steps[0].statements.sqlite, ["SELECT :n"]);
    assert_eq!(varied(&experiment), ["1", "2"]);
    let wrong = errors_of("name = \"x\"\nstop.iterations = 5\nscenario.file = \"broken.toml\"");
    assert!(wrong[0].starts_with("broken.toml:2:1: unknown key \"transactoin\""), "{wrong:?}");
    let wrong = errors_of("name = \"x\"\nstop.iterations = 5\nscenario.file = \"none.toml\"");
    assert_eq!(wrong, ["x.toml:3:17: \"none.toml\" could not be read: no such file, expected a scenario's file"]);
}

#[test]
fn wrong_words_and_types_are_told_at_their_place() {
    for (rest, start) in [
        ("load.client = 1", "x.toml:4:6: unknown key \"client\" in [load]"),
        ("laod.clients = 1", "x.toml:4:1: unknown key \"laod\" in the experiment"),
        ("load.clients = [1, \"two\"]", "x.toml:4:20: clients is the string \"two\""),
        ("load.clients = [1, 0]", "x.toml:4:20: clients is the number 0"),
        ("load.clients = []", "x.toml:4:16: clients is an array"),
        ("load.clients = [[1]]", "x.toml:4:17: clients is an array"),
        ("load.timeout = 5", "x.toml:4:16: timeout is the number 5"),
        ("load.arrival = \"open\"", "x.toml:4:16: arrival is \"open\""),
        ("scenario.branch = 1", "x.toml:4:10: unknown parameter \"branch\" of scenario \"tpcb\""),
        ("scenario.branches = \"1\"", "x.toml:4:21: branches is the string \"1\""),
        ("scenario.branches = [1, 0]", "x.toml:4:25: scenario \"tpcb\" can't draw its value aid"),
        ("repetitions = 0", "x.toml:4:15: repetitions is the number 0"),
        ("seed = -1", "x.toml:4:8: seed is the number -1"),
        ("load = 1", "x.toml:4:8: load is the number 1"),
        ("= 1", "x.toml:4:1: the file is not TOML"),
    ] {
        let errors = errors(rest);
        assert!(errors[0].starts_with(start), "{rest}: {errors:?}");
    }
    let hint = errors("scenario.branch = 1");
    assert!(hint[0].ends_with("did you mean \"branches\"?"), "{hint:?}");
    let unknown = errors_of("name = \"x\"\nstop.duration = \"1s\"\nscenario.name = \"tpc-b\"");
    assert!(unknown[0].starts_with("x.toml:3:17: unknown scenario \"tpc-b\", expected read_simple, "), "{unknown:?}");
    assert!(unknown[0].ends_with("did you mean \"tpcb\"?"), "{unknown:?}");
}

#[test]
fn what_is_sampled_is_read() {
    use crate::sampling::Find;
    assert!(valid("").sample.has_waits);
    let text = "[sample]\nwaits = false\nprocess.squid.port = 3128\nprocess.database.pid_file = \"db.pid\"";
    let sample = valid(text).sample;
    assert!(!sample.has_waits);
    let expected = [("squid", Find::Port(3128)), ("database", Find::PidFile("db.pid".to_owned()))];
    assert_eq!(sample.processes, expected.map(|(name, find)| (name.to_owned(), find)));
    for (rest, start) in [
        (
            "sample.wait = false",
            "x.toml:4:8: unknown key \"wait\" in [sample], expected waits or process; did you mean",
        ),
        ("sample.waits = 1", "x.toml:4:16: "),
        ("sample.process.a.port = 0", "x.toml:4:25: "),
        ("sample.process.a.prot = 80", "x.toml:4:18: unknown key \"prot\" in [sample.process.a]"),
        ("sample.process.a = { port = 1, command = \"x\" }", "x.toml:4:20: "),
        ("sample.process.lab.port = 80", "x.toml:4:"),
    ] {
        let errors = errors(rest);
        assert!(errors[0].starts_with(start), "{rest}: {errors:?}");
    }
}

#[test]
fn impossible_combinations_are_told_at_their_place() {
    for (rest, start) in [
        ("load.rate = 10", "x.toml:4:6: load.rate with arrival = \"closed\""),
        ("load.arrival = \"poisson\"", "x.toml:4:16: arrival = \"poisson\" without a rate"),
        ("load.arrival = \"constant\"\nload.rate = 1\nload.think = \"1s\"", "x.toml:6:6: load.think with"),
        ("load.ramp = \"5s\"", "x.toml:4:13: load.ramp is longer than stop.warmup"),
        (
            "load = { arrival = \"constant\", rate = 1, ramp = \"1s\" }\nstop.warmup = \"2s\"",
            "x.toml:4:42: load.ramp with",
        ),
        ("stop.iterations = 5", "x.toml:4:6: stop.iterations beside stop.duration"),
        ("stop.at_most = \"5s\"", "x.toml:4:6: stop.at_most with stop.duration"),
        ("load.threads = 2", "x.toml:4:16: load.threads is 2, load.clients is 1"),
        ("stop.steady_within = \"5s\"", "x.toml:4:22: too little time to become steady, expected at least 15s"),
        ("stop.warmup = \"2m\"\nstop.steady_within = \"1m\"", "x.toml:5:22: too little time to become steady"),
        ("load.timeout = \"0s\"", "x.toml:4:16: a timeout of nothing"),
    ] {
        let errors = errors(rest);
        assert!(errors[0].starts_with(start), "{rest}: {errors:?}");
    }
    let none = errors_of("name = \"x\"\nstop.warmup = \"1s\"\nscenario.name = \"tpcb\"");
    assert!(none[0].contains("no stop rule"), "{none:?}");
    let many = format!("[{}]", (1..=400).map(|n| n.to_string()).collect::<Vec<_>>().join(", "));
    let errors = errors(&format!("load.clients = {many}\nscenario.branches = {many}"));
    assert!(errors[0].contains("too many cells, expected at most 100000"), "{errors:?}");
}

#[test]
fn addresses_are_shown_without_passwords() {
    let experiment = valid("target.url = [\"postgres://me:secret@a/x\", \"postgres://me:secret@b/x\"]");
    assert_eq!(varied(&experiment), ["postgres://me@a/x", "postgres://me@b/x"]);
    assert_eq!(experiment.cells[0].target.url.as_deref(), Some("postgres://me:secret@a/x"));
}

#[test]
fn requests_have_keys_of_their_own() {
    let of = |rest: &str| format!("name = \"x\"\nstop.duration = \"1s\"\nscenario.name = \"http\"\n{rest}");
    for (rest, said) in [
        ("scenario.hit_ratio = 1.5", "scenario \"http\" can't have hit_ratio = 1.5, only 0 to 1"),
        ("scenario.column = \"date\"", "can't have the column \"date\", only int, float, double, text, blob"),
        ("scenario.compression = 10", "can't have compression = 10, only 0 to 9"),
        ("scenario.payload_bytes = 63", "can't have payload_bytes = 63, only 64 to 268435456"),
        ("scenario.expect_crc32 = \"12\"", "can't have expect_crc32 = \"12\", only eight hex digits"),
        ("scenario.link_bits_per_s = 299", "can't have a link of 299 bits a second"),
        ("target.setup = \"SET x = 1\"", "target.setup with scenario \"http\""),
    ] {
        let told = errors_of(&of(rest));
        assert!(told.len() == 1 && told[0].starts_with("x.toml:4:") && told[0].contains(said), "{told:?}");
    }
    let told = errors("target.proxy = \"http://squid:3128\"");
    assert!(told[0].starts_with("x.toml:4:16: target.proxy with a database"), "{told:?}");
    let secret = "target.url = \"origin:\"\ntarget.proxy = [\"none\", \"http://me:secret@squid:3128\"]";
    let told = errors_of(&of(secret));
    assert!(told[0].starts_with("x.toml:4:14: target.proxy has a user, which is not sent"), "{told:?}");
    assert!(!told.concat().contains("secret"), "{told:?}");
    let open = "target.url = \"origin:\"\ntarget.proxy = [\"none\", \"http://squid:3128\"]";
    let experiment = parse(&of(open)).unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert_eq!(varied(&experiment), ["none", "http://squid:3128"]);
    assert!(experiment.text.contains("origin:"), "{}", experiment.text);
}
