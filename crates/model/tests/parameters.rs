//! Parameters are found in SQL, and in nothing that only looks like it.

use headwater_model::sql::{Syntax, parameters, parameters_in, with_parameters, with_parameters_in};
use proptest::prelude::*;

/// A piece of SQL, and the parameters in it.
fn piece() -> impl Strategy<Value = (String, Vec<String>)> {
    let inside = "[a-z :$?;.\\-/*]{0,12}";
    let quiet = move |before: &'static str, after: &'static str, forbidden: &'static [&'static str]| {
        inside
            .prop_filter("ends it early", move |text| forbidden.iter().all(|end| !text.contains(end)))
            .prop_map(move |text| (format!("{before}{text}{after}"), Vec::new()))
    };
    prop_oneof![
        quiet("'it''s ", "'", &[]),
        quiet("\"odd \"\"", "\"", &[]),
        quiet("E'\\' ", "'", &[]),
        quiet("$$", "$$", &["$"]),
        quiet("$tag$ $$ ", "$tag$", &["$"]),
        quiet("-- ", "\n", &[]),
        // The last character must not begin the end.
        quiet("/* ", " */", &["*/"]),
        Just(("a::text".to_owned(), Vec::new())),
        Just(("f(x)$1".replace("$1", ""), Vec::new())),
        "[ros]\\.[a-z_]{1,8}".prop_map(|name| (format!(":{name}"), vec![format!(":{name}")])),
        "[a-z \"]{1,8}".prop_map(|name| {
            let name = format!(":r.\"{}\"", name.replace('"', "\"\""));
            (name.clone(), vec![name])
        }),
    ]
}

proptest! {
    #[test]
    fn parameters_stand_outside_of_quotes_and_comments(pieces in prop::collection::vec(piece(), 0..12)) {
        let query = pieces.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(" , ");
        let expected: Vec<&String> = pieces.iter().flat_map(|(_, names)| names).collect();
        let found: Vec<String> = parameters(&query).into_iter().map(|p| p.name.to_owned()).collect();
        prop_assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{}", query);
        prop_assert_eq!(with_parameters(&query, str::to_owned), query);
    }

    #[test]
    fn any_text_can_be_looked_through(query in "[a-zE:$?;.'\"\\\\\\-/*!#`\\[\\] \\n\u{e9}]{0,40}") {
        for syntax in [Syntax::Any, Syntax::Sqlite, Syntax::Postgres, Syntax::MariaDb] {
            let mut end = 0;
            for parameter in parameters_in(&query, syntax) {
                prop_assert!(parameter.place.start >= end && parameter.place.end > parameter.place.start);
                end = parameter.place.end;
            }
        }
    }
}

/// What is a comment, a text or a quoted name in one database is none in another.
#[test]
fn each_database_has_its_own_comments_and_quotes() {
    use Syntax::{Any, MariaDb, Postgres, Sqlite};
    for (query, found_in) in [
        ("# :x\n:y", &[(MariaDb, ":y"), (Postgres, ":x :y"), (Sqlite, ":x :y"), (Any, ":x :y")][..]),
        ("a #> :x", &[(Postgres, ":x"), (MariaDb, "")]),
        ("'#' || :x", &[(MariaDb, ":x")]),
        ("5--:x", &[(MariaDb, ":x"), (Postgres, ""), (Sqlite, ""), (Any, "")]),
        ("5-- :x\n--\n:y", &[(MariaDb, ":y"), (Postgres, ":y"), (Sqlite, ":y")]),
        ("/* a /* b */ :x */ :y", &[(Postgres, ":y"), (MariaDb, ":x :y"), (Sqlite, ":x :y")]),
        ("/* a /** / * /*/ */ :x */*/ :y", &[(Postgres, ":y")]),
        ("/* open /* */ :x", &[(Postgres, ""), (Sqlite, ":x")]),
        ("/*! :x */ /*M!100100 :y */ /* :z */", &[(MariaDb, ":x :y"), (Postgres, ""), (Sqlite, "")]),
        ("`a :x`, :y", &[(MariaDb, ":y"), (Sqlite, ":y"), (Postgres, ":x :y")]),
        ("[a :x], :y", &[(Sqlite, ":y"), (MariaDb, ":x :y"), (Postgres, ":x :y")]),
        (r"E'\' :x' :y", &[(Postgres, ":y"), (Any, ":y"), (MariaDb, ":x"), (Sqlite, ":x")]),
        ("$t$ :x $t$ :y", &[(Postgres, ":y"), (Any, ":y"), (MariaDb, ":x :y")]),
        ("a[1:n], a[i:b.n] || a[(f(:x)):n]", &[(Postgres, ":x"), (Any, ":x")]),
        ("a[:x:n], a[:x: :y], a[\"b\":n]", &[(Postgres, ":x :x :y"), (Any, ":x :x :y")]),
        ("ARRAY[:x,:y, 'c'] || a[:x + :y] || :z", &[(Postgres, ":x :y :x :y :z"), (Any, ":x :y :x :y :z")]),
        ("a[b[1:n]:n] = :x AND c:y", &[(Postgres, ":x :y"), (Any, ":x :y")]),
        ("a[CASE WHEN b THEN :x ELSE :y END]", &[(Postgres, ":x :y")]),
        (r"'\' :x", &[(Postgres, ":x"), (MariaDb, ":x"), (Sqlite, ":x")]),
    ] {
        for (syntax, expected) in found_in {
            let found: Vec<&str> = parameters_in(query, *syntax).into_iter().map(|found| found.name).collect();
            assert_eq!(found.join(" "), *expected, "{query:?} in {syntax:?}");
            assert_eq!(with_parameters_in(query, *syntax, str::to_owned), query);
        }
    }
}
