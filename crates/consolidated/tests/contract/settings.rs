//! What a database or a role has set for its sessions does not change what Headwater does.

use headwater_consolidated::catalogue::Tracking;
use headwater_consolidated::{system, track};
use headwater_model::tracking::Kin;

use super::database::Database;
use super::replica::Replica;
use super::values::customer;

pub(crate) fn settings_of_a_database_change_nothing(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    for setting in [
        "quote_all_identifiers = on",
        "default_transaction_read_only = on",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
    ] {
        database.application(&format!(
            "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET {} ', current_database()); END $do$",
            setting.replace('\'', "''")
        ));
        for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
            let state = track::state(&mut *database.connect(), &Kin::new(&plan.model, table)).expect("a state");
            assert_eq!(state, Tracking::Complete, "{setting}");
        }
        assert_eq!(track::track(&mut *database.connect(), &plan).expect(setting), Vec::<String>::new());
        remote.update(&plan, "customer", customer(1, "a", setting, 1));
        assert_eq!(remote.sync(database, &plan).refusals(), [], "{setting}");
        // Beside transactions of its own.
        system::take_note(&mut *database.connect()).expect(setting);
        database.application(&format!("UPDATE customer SET changed = length('{}')", setting.replace('\'', "")));
        assert_eq!(remote.sync(database, &plan).count(), 1, "{setting}");
        remote.assert_equals_fresh(database, &plan);
    }
}
