//! Results as Bristlecone's Evaluator writes them.

use super::{Place, targets};

/// All numbers that an attribute has in XML, added up.
fn sum_of(xml: &str, attribute: &str) -> f64 {
    let before = format!(" {attribute}=\"");
    let values = xml.split(before.as_str()).skip(1).filter_map(|rest| rest.split('"').next());
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}

#[test]
fn a_run_can_be_written_as_the_evaluator_writes_its_results() {
    let place = Place::new(
        "name = \"evaluated\"\nrepetitions = 2\nscenario = { name = \"mixed\", size = 20, inserts = 100, updates = 100, deletes = 0 }\n\
         load = { clients = 3, think = \"50ms\" }\nstop = { warmup = \"20ms\", iterations = 90 }\n",
    );
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        let which = place.run(&["export", &file, "--format", "xml"]);
        assert_eq!(which.code, 2, "{which:?}");
        assert!(which.err.contains("it has 2 runs, and an Evaluator's file one: name it by --run"), "{which:?}");
        let none = place.run(&["export", &file, "--format", "xml", "--run", "3"]);
        assert_eq!(none.code, 2, "{none:?}");
        assert!(none.err.contains("there is no run 3, they are 1 to 2"), "{none:?}");
        for (options, why) in [(["csv", "--run", "1"], "--run goes with"), (["xml", "--rows", "runs"], "no --rows")] {
            let said = place.run(&["export", &file, "--format", options[0], options[1], options[2]]);
            assert_eq!(said.code, 2, "{said:?}");
            assert!(said.err.contains(why), "{said:?}");
        }
        let xml = place.run(&["export", &file, "--format", "xml", "--run", "2"]);
        assert_eq!(xml.code, 0, "{xml:?}");
        let seconds = xml.out.matches("<Stats ").count();
        assert!(xml.out.contains("<EvaluatorResults name=\"evaluated\">") && seconds > 0, "{}", xml.out);
        for kind in ["queries", "queriesPerSecond", "updates", "inserts"] {
            assert_eq!(sum_of(&xml.out, kind).round() as u64, 90, "{kind}: {}", xml.out);
        }
        assert_eq!(sum_of(&xml.out, "deletes").round() as u64, 0, "{}", xml.out);
        assert_eq!(sum_of(&xml.out, "users").round() as usize, 3 * seconds, "{}", xml.out);
        assert!(sum_of(&xml.out, "rowsRead") > 0.0 && sum_of(&xml.out, "avgResponseTime") > 0.0, "{}", xml.out);
    }
}
