//! What the machine did meanwhile, against what is swept.

use rusqlite::Connection;

use super::Place;

#[test]
fn requests_have_their_processors_and_load_drawn() {
    let place = Place::new(
        "name = \"r\"\nscenario.name = \"http\"\ntarget.url = \"origin:\"\nload.clients = [1, 4]\nstop.duration = \"1500ms\"\n",
    );
    assert_eq!(place.run(&["run", "x.toml", "--results", "r.lab"]).code, 0);
    let said = place.run(&["report", "r.lab", "--out", "r.html", "--plots", "."]);
    assert_eq!(said.code, 0, "{said:?}");
    let results = Connection::open(place.path("r.lab")).expect("results");
    let sql = "SELECT sum(busy_ns) * 1.0 / sum(span_ns) FROM machine WHERE run = (SELECT id FROM run WHERE cell = 2)";
    let busy: f64 = results.query_row(sql, [], |row| row.get(0)).expect("samples");
    assert!(busy > 0.0, "four clients that never wait keep something busy");
    for (name, axis) in [("processors", "processors"), ("load", "load average")] {
        let plot = std::fs::read_to_string(place.path(&format!("r-0-{name}.svg"))).expect("a plot");
        assert!(plot.contains(axis), "{plot}");
        // The text for those who can't see it has the last point's number.
        let described = plot.split("<desc>").nth(1).and_then(|rest| rest.split("</desc>").next()).expect("words");
        assert!(described.contains(" at 4"), "{described}");
        if name == "processors" {
            let last = described.split(" first, ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
            let drawn: f64 = last.parse().expect(described);
            assert!((drawn / busy - 1.0).abs() < 0.02, "{drawn} is drawn, {busy} was");
        }
    }
}
