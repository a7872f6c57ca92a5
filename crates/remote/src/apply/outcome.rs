//! Conflicts that were lost, and whose outcome has not come: the receipt was applied, and the download that had the row that won broke for
//! good, or was not asked for.
//!
//! The next download brings that row, which has changed since what the remote has seen, if it lies in a partition of the remote's. If it
//! lies elsewhere nothing comes, and the remote would keep its own. So the table is asked for as a whole: its partitions get a mark that
//! is nobody's. (Without any mark, the server would not know which partitions the remote may have to leave.)

use headwater_model::Direction;
use headwater_protocol::message::Watermarks;

use super::Apply;
use crate::error::{Error, While};
use crate::plan::TablePlan;

/// Conflicts of a table that the consolidated row has won, or has a part in.
const LOST: &str = "\"table\" = ? AND \"is_open\" = 1 AND \"end\" <> 'remote'";

impl Apply<'_> {
    /// Everything has come. Has tables come whole, next time, of which an outcome is missing still.
    pub(super) fn ask_for_outcomes(&self, watermarks: &mut Watermarks) -> Result<(), Error> {
        for table in self.plan.tables.iter().filter(|table| table.table.direction != Direction::Upload) {
            let open = format!("SELECT EXISTS (SELECT 1 FROM \"hw_conflict\" WHERE {LOST})");
            let open = self.rows.prepare(&open)?.query_row([table.number], |row| row.get(0));
            if !open.while_doing("looking for conflicts")? {
                continue;
            }
            if self.has_come_whole(table, watermarks) {
                // So it lies in none of the remote's partitions.
                let close = format!("UPDATE \"hw_conflict\" SET \"is_open\" = 0 WHERE {LOST}");
                self.rows.prepare(&close)?.execute([table.number]).while_doing("closing conflicts")?;
                continue;
            }
            let nobodys = watermarks.marks.len() as u32;
            watermarks.marks.push(Vec::new());
            for entry in watermarks.entries.iter_mut().filter(|entry| entry.table == table.number) {
                entry.mark = nobodys;
            }
        }
        Ok(())
    }

    fn has_come_whole(&self, table: &TablePlan, watermarks: &Watermarks) -> bool {
        let mut entries = watermarks.entries.iter().filter(|entry| entry.table == table.number);
        entries.all(|entry| self.came_whole.contains(&(entry.table, entry.partition.clone())))
    }
}
