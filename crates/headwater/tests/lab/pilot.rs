//! `headwater lab pilot`.

use std::process::Command;

use super::{Database, Place, consolidated};

#[test]
fn a_pilot_predicts_many_and_is_held_against_them() {
    let place = Place::new("");
    let tried = ["--clients", "6", "--for", "30", "--workers", "2,1", "--kind", "download-updates,upload-inserts"];
    let short = ["--rows", "5", "--time", "0.2", "--repetitions", "2", "--check", "--results", "p.lab"];
    for target in consolidated(&place) {
        let url = target.address();
        let said = place.json(&[&["pilot", "--target", &url], &tried[..], &short[..]].concat());
        let predictions = said["predictions"].as_array().expect("predictions");
        let which: Vec<_> = predictions.iter().map(|of| format!("{} {}", of["kind"], of["workers"])).collect();
        let expected =
            ["\"download-updates\" 1", "\"download-updates\" 2", "\"upload-inserts\" 1", "\"upload-inserts\" 2"];
        assert_eq!(which, expected);
        for of in predictions {
            let number = |name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"));
            let (low, middle, high) = (number("all_ended_s_low"), number("all_ended_s"), number("all_ended_s_high"));
            assert!(0.0 < low && low < middle && middle < high, "{of}");
            assert!(number("average_s") < middle && number("by_curve_s") > 0.0, "{of}");
            let (was, off) = (number("actual_all_ended_s"), number("error_percent"));
            assert!(was > 0.0 && (off - (middle / was - 1.0) * 100.0).abs() < 1e-6, "{of}");
        }
        assert!(said["advice"].to_string().contains("--workers"), "{said}");
        assert_eq!(target.tables(), 0);
        std::fs::remove_file(place.path("p.lab")).expect("results");
    }
}

#[test]
fn a_pilot_advises_in_sentences() {
    let place = Place::new("");
    // Long enough for some samples of the processes.
    let short = ["--kind", "upload-inserts", "--workers", "1", "--clients", "3", "--time", "1.6", "--repetitions", "2"];
    let said = place.run(&[&["pilot", "--target", "sqlite:scratch.db"], &short[..]].concat());
    assert_eq!(said.code, 0, "{said:?}");
    for expected in ["1,000 clients at once, as 3 say:", "- Workers: 1", "- Memory: the server took ", "- Processors: "]
    {
        assert!(said.out.contains(expected), "{expected}: {said:?}");
    }
    assert!(!said.out.contains("off by") && !place.path("scratch.db").exists(), "{said:?}");
}

#[test]
fn a_pilot_that_can_tell_nothing_is_refused() {
    let place = Place::new("");
    for (options, expected) in [
        (&["--for", "20"][..], "give --for a larger number"),
        (&["--workers", "7"], "a pilot of 21 clients at least (--clients)"),
        (&["--kind", "download"], "can't be of the kind \"download\", only download-inserts"),
        (&["--time", "0"], "0.1 to 3600 seconds"),
    ] {
        let said = place.run(&[&["pilot", "--target", "sqlite:scratch.db"], options].concat());
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
    let said = place.run(&["pilot", "--target", "sqlite:no/such/scratch.db", "--results", "p.lab"]);
    assert!(said.code == 2 || said.code == 3, "{said:?}");
    assert!(!place.path("p.lab").exists(), "{said:?}");
}

/// A system of one's own: orders of two users, each with an audit that a trigger writes.
pub(super) fn shop(place: &Place, target: &Database) {
    let is_postgresql = matches!(target, Database::Postgres(_));
    let audit = if is_postgresql {
        "CREATE FUNCTION heard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$; \
         CREATE TRIGGER heard AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION heard()"
    } else {
        "CREATE TRIGGER heard AFTER UPDATE ON orders BEGIN INSERT INTO audit VALUES (NEW.id); END"
    };
    target.sql(&format!(
        "CREATE TABLE orders (id bigint PRIMARY KEY NOT NULL, seller varchar(20) NOT NULL, what varchar(20) NOT NULL); \
         CREATE TABLE seller_of (user_name varchar(20) PRIMARY KEY, seller varchar(20) NOT NULL); \
         CREATE TABLE audit (id bigint); {audit}; \
         INSERT INTO seller_of VALUES ('anna', 'north'), ('bert', 'south'); \
         INSERT INTO orders VALUES {}; SELECT 1",
        (1..=12)
            .map(|id| format!("({id}, '{}', 'what {id}')", if id % 3 == 0 { "south" } else { "north" }))
            .collect::<Vec<_>>()
            .join(", ")
    ));
    let model = "name = \"shop\"\nversion = 1\n[partitions.seller]\ncolumns = { seller = \"text\" }\n\
         members = \"SELECT seller FROM seller_of WHERE user_name = :s.user\"\n[tables.orders]\nkey = [\"id\"]\n\
         partition = \"seller\"\n[tables.orders.columns]\nid = \"int not null\"\nseller = \"text not null\"\nwhat = \"text not null\"\n";
    let config = format!("models = [\"shop.toml\"]\n[database]\nurl = \"{}\"\n", target.address());
    for (name, text) in [("shop.toml", model), ("headwater.toml", &config)] {
        std::fs::write(place.path(name), text).expect("written");
    }
    for arguments in [&["track"][..], &["user", "add", "anna"], &["user", "add", "bert"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.current_dir(place.folder.path()).env("HEADWATER_PASSWORD", "a long password").args(arguments);
        let done = command.output().expect("the program runs");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
}

#[test]
fn a_pilot_syncs_with_a_system_of_ones_own_and_leaves_no_remote() {
    for of_target in 0..2 {
        let place = Place::new("");
        let target = consolidated(&place).into_iter().nth(of_target).expect("two databases");
        if let Database::Sqlite(path) = &target {
            std::fs::File::create(path).expect("a file");
        }
        shop(&place, &target);
        let rows = "SELECT sum(id) FROM orders WHERE what = 'what ' || id";
        let short =
            ["--workers", "1", "--clients", "3", "--for", "5", "--time", "0.2", "--repetitions", "2", "--check"];
        let said = place.json(&[&["pilot", "--own", "--rows", "2"], &short[..]].concat());
        let kinds: Vec<_> = said["predictions"].as_array().expect("predictions").iter().map(|of| &of["kind"]).collect();
        assert_eq!(kinds, ["first-download", "upload"], "{said}");
        let prefix = if of_target == 0 { "headwater." } else { "headwater_" };
        assert_eq!(target.sql(&format!("SELECT count(*) FROM {prefix}remote")).as_deref(), Some("0"));
        assert_eq!(target.sql(&format!("SELECT count(*) FROM {prefix}conflict")).as_deref(), Some("0"));
        assert_eq!(target.sql(rows).as_deref(), Some("78"), "the rows are as they were");
        let audited = target.sql("SELECT count(*) FROM audit").and_then(|count| count.parse::<u64>().ok());
        assert!(audited > Some(0), "updates went through the trigger");
    }
}

#[test]
fn a_pilot_of_ones_own_says_what_it_lacks() {
    let place = Place::new("");
    let said = place.run(&["pilot", "--own"]);
    assert!(said.code == 2 && said.err.contains("--config"), "{said:?}");
    let target = Database::Sqlite(place.path("own.db"));
    std::fs::File::create(place.path("own.db")).expect("a file");
    shop(&place, &target);
    for (options, code, expected) in [
        (&["--model", "shops"][..], 2, "there is no model \"shops\", only shop"),
        (&["--kind", "download-inserts"], 2, "be of the kind \"download-inserts\", only first-download, upload"),
        (&["--users", "anna,carl"], 2, "there is no account \"carl\""),
        (&["--users", "bert", "--kind", "upload"], 2, "\"bert\" gets no row that nobody else changes"),
    ] {
        let said = place.run(&[&["pilot", "--own", "--time", "0.1"], options].concat());
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
    assert_eq!(target.sql("SELECT count(*) FROM headwater_remote").as_deref(), Some("0"));
}
