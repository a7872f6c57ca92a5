//! The example experiments of the repository are valid.

use std::path::Path;

use headwater_lab::experiment::Experiment;
use headwater_lab::figures::{Figures, How};

/// What `make bench` measures; no experiment itself.
const FIGURES: &str = "figures.toml";

/// What the names of charts begin with that others have published, and that take a machine to match in full.
const PUBLISHED: [&str; 2] = ["frontier-", "mobilink-"];

/// The experiments of a folder, each with how many cells it has.
fn experiments(folder: &str) -> Vec<(String, usize)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut found: Vec<(String, usize)> = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("a folder of examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with(FIGURES) {
            let experiment = Experiment::open(&path).unwrap_or_else(|error| panic!("{error}"));
            found.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), experiment.cells.len()));
        }
    }
    found.sort();
    found
}

#[test]
fn the_examples_are_valid() {
    let expected = [
        ("bristlecone-batch.toml", 12),
        ("bristlecone-deadlock.toml", 6),
        ("bristlecone-mixed.toml", 6),
        ("bristlecone-read-clients.toml", 7),
        ("bristlecone-read-rows.toml", 10),
        ("bristlecone-read-scaling.toml", 16),
        ("bristlecone-replica.toml", 6),
        ("commit.toml", 8),
        ("crowd.toml", 1),
        ("four-cpus.toml", 16),
        ("frontier-clients.toml", 10),
        ("frontier-compression.toml", 40),
        ("frontier-payload.toml", 24),
        ("gate.toml", 1),
        ("gateway-flights-sql.toml", 12),
        ("gateway-flights.toml", 12),
        ("gateway-frontier.toml", 12),
        ("mobilink-backlog.toml", 20),
        ("mobilink-clients.toml", 32),
        ("mobilink-cpus.toml", 8),
        ("mobilink-headline.toml", 4),
        ("mobilink-retry-delay.toml", 24),
        ("mobilink-rows-per-sync.toml", 20),
        ("mobilink-slower-clients.toml", 32),
        ("mobilink-slowest-clients.toml", 20),
        ("mobilink-upload-cap.toml", 6),
        ("mobilink-workers-with-cap.toml", 12),
        ("mobilink-workers.toml", 24),
        ("open-loop.toml", 5),
        ("own.toml", 6),
        ("speed-clients.toml", 8),
        ("speed-cpus.toml", 8),
        ("speed-crowd.toml", 8),
        ("speed-curves.toml", 21),
        ("speed-slow-lines.toml", 4),
        ("speed-workers.toml", 48),
        ("tpcb.toml", 6),
    ];
    assert_eq!(experiments("lab"), expected.map(|(name, cells)| (name.to_owned(), cells)));
}

#[test]
fn those_of_the_page_about_measuring_are_valid() {
    let expected = [("arms.toml", 2), ("clients.toml", 6), ("stall-closed.toml", 1), ("stall-open.toml", 1)];
    assert_eq!(experiments("lab/measuring"), expected.map(|(name, cells)| (name.to_owned(), cells)));
}

#[test]
fn each_published_chart_has_its_full_form() {
    let names = |folder: &str| -> Vec<String> { experiments(folder).into_iter().map(|(name, _)| name).collect() };
    let small: Vec<String> =
        names("lab").into_iter().filter(|name| PUBLISHED.iter().any(|of| name.starts_with(of))).collect();
    assert_eq!((names("lab/full"), small.len()), (small, 14));
}

#[test]
fn the_list_of_figures_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
    let list = Figures::open(&folder.join(FIGURES)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(list.groups(), ["sync", "lab", "speed", "gateway", "pool", "cursor", "idxbuild"]);
    for measure in list.measures {
        if let How::Experiment(file) = measure.how {
            Experiment::open(&folder.join(file)).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
