//! Counters: what all sides add to a quantity is what it comes to at the end, whoever met whom (`sum` in the conflict rule).

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use headwater_remote::Remote;

use crate::history::History;

const PRODUCTS: u64 = 3;
/// As the schema fills it.
const BEGINNING: i64 = 100;

/// What each quantity has to come to; `None`: a database was put back, or a change was given up.
pub(crate) struct Ledger(Option<BTreeMap<String, i64>>);

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger(Some((0..PRODUCTS).map(|product| (format!("s{product}"), BEGINNING)).collect()))
    }

    /// From now on the sums can't be told.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Before what is set aside is dropped.
    pub(crate) fn close_if_set_aside(&mut self, remote: &Remote) -> Result<()> {
        if remote.set_aside(10_000)?.iter().any(|change| change.table == "stock") {
            self.close();
        }
        Ok(())
    }
}

impl History {
    /// Somebody adds to a quantity: a remote, or the application at the consolidated database.
    pub(crate) fn count_at(&mut self, place: Option<usize>) -> Result<()> {
        let product = format!("s{}", self.random.below(PRODUCTS));
        let difference = self.random.below(9) as i64 - 4;
        let body =
            if self.random.chance(30) { format!(", body = 'body {}'", self.random.below(9)) } else { String::new() };
        let sql = format!("UPDATE stock SET qty = qty + {difference}{body} WHERE id = '{product}'");
        match place {
            Some(place) => {
                let name = self.sites[place].name.clone();
                let held = self.world.rows(&name, &format!("SELECT 1 FROM stock WHERE id = '{product}'"))?;
                ensure!(held.len() == 1, "{name} has no {product}");
                self.world.edit(&name, &sql)?;
                self.count("writes", 1);
                self.tell(format!("{name} writes {sql}"));
            }
            None => self.at_the_head(&sql)?,
        }
        self.count("counted", 1);
        if let Some(sum) = self.ledger.0.as_mut().and_then(|ledger| ledger.get_mut(&product)) {
            *sum += difference;
        }
        Ok(())
    }

    /// When all is quiet.
    pub(crate) fn add_up(&mut self) -> Result<()> {
        let Some(ledger) = &self.ledger.0 else { return Ok(()) };
        let expected: Vec<Vec<Option<String>>> =
            ledger.iter().map(|(id, sum)| vec![Some(id.clone()), Some(sum.to_string())]).collect();
        let stored = self.world.central.rows("SELECT id, qty FROM stock ORDER BY id")?;
        ensure!(stored == expected, "the counters come to {stored:?}, and were to be {expected:?}");
        self.count("added_up", 1);
        Ok(())
    }
}
