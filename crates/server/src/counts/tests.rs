use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use headwater_consolidated::Plan;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::system::{Greeted, Greeting, Life};
use headwater_consolidated::{Backend as _, system};
use headwater_protocol::message::{Hello, Watermarks, Welcome};

use super::*;

const MODEL: &str = "name = \"m\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\ndirection = \"both\"\nconflict = \"off\"\n\
                     [tables.item.columns]\nid = \"int not null\"\n";

fn tally(backend: Option<&Sqlite>, remote: u8) -> Tally {
    let plan = Plan::new(headwater_model::parse::parse("m.toml", MODEL).expect("a model"));
    let hello = Hello {
        remote_id: [remote; 16],
        secret: [1; 32],
        model: "m".to_owned(),
        model_version: 1,
        fingerprint: plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        takes_chunks: false,
        knows_leaving: false,
        wants_download: true,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    };
    let greeted = match backend {
        Some(backend) => {
            let mut connection = backend.connect().expect("a connection");
            match system::greet_before_count(&mut *connection, &plan, "anna", &hello).expect("greeted") {
                Greeting::Welcome(greeted) => greeted,
                Greeting::WrongSecret => panic!("nobody has this ID"),
            }
        }
        None => Greeted {
            welcome: Welcome::default(),
            watermarks: Watermarks::default(),
            extended: Vec::new(),
            is_copy: false,
            counted_lately: false,
            is_new: true,
            life: Life::default(),
            presented: 0,
        },
    };
    Tally::of(&plan, "anna", &hello, &greeted, &Watermarks::default())
}

/// While one is counted, three others come: they share the next commit, and each is told what became of its own.
#[test]
fn those_who_come_meanwhile_share_the_next_commit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("central.db");
    std::fs::File::create(&path).expect("a file");
    let backend = Sqlite::new(path);
    system::install(&mut *backend.connect().expect("a connection")).expect("installed");
    let (counts, commits) = (Counts::default(), AtomicUsize::new(0));
    let (tell, told) = mpsc::channel::<()>();
    let counts = &counts;
    let (commits, backend) = (&commits, &backend);
    let run = move |tallies: &[Tally]| {
        commits.fetch_add(1, Ordering::SeqCst);
        Ok(system::count_downloads(&mut *backend.connect().expect("a connection"), tallies).expect("counted"))
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            let mut told = Some(told);
            counts.count(tally(Some(backend), 1), |tallies| {
                if let Some(told) = told.take() {
                    told.recv().expect("the others have come");
                }
                run(tallies)
            })
        });
        while !counts.lock().is_counting {
            std::thread::yield_now();
        }
        let others: Vec<_> =
            (2..5).map(|remote| scope.spawn(move || counts.count(tally(Some(backend), remote), run))).collect();
        while counts.lock().waiting.len() < 3 {
            std::thread::yield_now();
        }
        tell.send(()).expect("the first counts");
        for counted in std::iter::once(first).chain(others) {
            let counted = counted.join().expect("no panic").expect("no failure");
            assert!(matches!(counted, Count::Counted(_)), "{counted:?}");
        }
    });
    assert_eq!(commits.load(Ordering::SeqCst), 2);
    let state = counts.lock();
    assert!(state.waiting.is_empty() && state.done.is_empty() && !state.is_counting);
}

/// Who fails, or panics, while it counts is told; those whom it has taken along are counted by another.
#[test]
fn a_failure_is_told_to_one_alone() {
    for panics in [false, true] {
        let counts = Counts::default();
        let (tell, told) = mpsc::channel::<()>();
        let (counts, failing, again) = (&counts, &AtomicUsize::new(0), &AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                counts.count(tally(None, 1), |_| {
                    told.recv().expect("the others have come");
                    Ok(vec![Count::Busy])
                })
            });
            while !counts.lock().is_counting {
                std::thread::yield_now();
            }
            let others: Vec<_> = (2..5)
                .map(|remote| {
                    scope.spawn(move || {
                        counts.count(tally(None, remote), |tallies| {
                            if failing.fetch_add(1, Ordering::SeqCst) > 0 {
                                again.fetch_add(tallies.len(), Ordering::SeqCst);
                                return Ok(vec![Count::Busy; tallies.len()]);
                            }
                            assert!(!panics, "as it is meant to");
                            Err(Failure::internal("as it is meant to"))
                        })
                    })
                })
                .collect();
            while counts.lock().waiting.len() < 3 {
                std::thread::yield_now();
            }
            tell.send(()).expect("the first counts");
            assert!(first.join().expect("no panic").is_ok());
            let ends: Vec<_> = others.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            let well = ends.iter().filter(|end| matches!(end, Ok(Ok(Count::Busy)))).count();
            assert_eq!((ends.len(), well, again.load(Ordering::SeqCst)), (3, 2, 2), "{ends:?}");
        });
        assert!(!counts.lock().is_counting);
    }
}
