//! Uploaded rows that a trigger of the application stores in another partition, in none, or below another parent (PostgreSQL).

use headwater_consolidated::upload::Verdict;
use headwater_consolidated::{Plan, track};

use super::database::{Database, plan};
use super::kin::{MODEL, tables};
use super::replica::Replica;
use super::values::{NULL, int, text};

const CASCADE: &str = " ON DELETE CASCADE ON UPDATE CASCADE";

/// Rows whose note names a place go there.
const TRIGGERS: &str = "
    CREATE FUNCTION elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.note LIKE 'to %' THEN NEW.region := nullif(substr(NEW.note, 4), 'none'); END IF; RETURN NEW; END $$;
    CREATE TRIGGER elsewhere BEFORE INSERT OR UPDATE ON shop FOR EACH ROW EXECUTE FUNCTION elsewhere();
    CREATE FUNCTION below() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.note LIKE 'to %' THEN NEW.shop := nullif(substr(NEW.note, 4), 'none')::bigint; END IF; RETURN NEW; END $$;
    CREATE TRIGGER below BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION below()";

fn moving(database: &Database) -> Plan {
    database.application(&tables(CASCADE));
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application(TRIGGERS);
    database.application(
        "INSERT INTO shop VALUES (1, 'north', 'n'), (2, 'south', 's'), (3, 'east', 'e'), (4, 'north', 'n'); \
         INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'); INSERT INTO line VALUES (1, 1, 'x')",
    );
    plan
}

/// What a remote sends that the triggers send elsewhere: inserts, and updates that would bring or keep rows where the remote has them.
fn send(plan: &Plan, remote: &mut Replica, first: i64) {
    for (number, place) in (first..).zip(["east", "none", "south", "north"]) {
        remote.insert(plan, "shop", vec![int(number), text("north"), text(&format!("to {place}"))]);
    }
    for (number, shop) in (first..).zip(["3", "none", "2", "1"]) {
        remote.insert(plan, "orders", vec![int(number), int(4), text(&format!("to {shop}"))]);
    }
    remote.update(plan, "shop", vec![int(2), text("north"), text("to south")]);
    remote.update(plan, "orders", vec![int(2), int(4), text("to 2")]);
    remote.update(plan, "orders", vec![int(1), int(4), text("to 3")]);
}

fn arrives(database: &Database, plan: &Plan, anna: &mut Replica) {
    let synced = anna.sync(database, plan);
    assert_eq!(synced.outcomes(), [], "all of it is stored");
    anna.assert_equals_fresh(database, plan);
    assert_eq!(anna.sync(database, plan).count(), 0, "nothing is sent twice");
}

pub(crate) fn what_a_trigger_moves_comes_down_as_it_is(database: &Database) {
    let plan = moving(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    send(&plan, &mut anna, 10);
    arrives(database, &plan, &mut anna);
    // The north and the south alone are hers: the shops 10 and 11, and the orders 10, 11 and 1 with its line, are gone.
    assert_eq!((anna.table(&plan, "shop").len(), anna.table(&plan, "orders").len()), (5, 3));
    assert_eq!(anna.table(&plan, "line"), Vec::<headwater_protocol::Row>::new());
    // By itself, and where keys exist already, so that nothing is taken for new.
    anna.insert(&plan, "shop", vec![int(20), text("north"), text("to none")]);
    anna.insert(&plan, "orders", vec![int(20), int(4), text("to 3")]);
    arrives(database, &plan, &mut anna);
    anna.update(&plan, "shop", vec![int(2), text("south"), text("to none")]);
    arrives(database, &plan, &mut anna);
    assert_eq!(database.rows("SELECT region FROM shop WHERE id = 2"), [vec![NULL]]);
}

/// The receipt of such an upload is lost: its download has to bring the same.
pub(crate) fn what_a_trigger_moved_comes_down_after_a_lost_receipt(database: &Database) {
    let plan = moving(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    send(&plan, &mut anna, 10);
    let first = anna.upload_only(&mut *database.connect(), &plan).expect("applied");
    assert_eq!(first.verdict, Verdict::Applied);
    let synced = anna.sync(database, &plan);
    assert_eq!(synced.uploaded.as_ref().map(|uploaded| uploaded.verdict), Some(Verdict::Replayed));
    anna.assert_equals_fresh(database, &plan);
}

/// The receipt arrives, and the download beside it does not: the next one brings the same.
pub(crate) fn what_a_trigger_moved_comes_down_after_a_lost_download(database: &Database) {
    let plan = moving(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    send(&plan, &mut anna, 10);
    anna.upload(&mut *database.connect(), &plan).expect("applied");
    arrives(database, &plan, &mut anna);
    anna.update(&plan, "shop", vec![int(2), text("south"), text("to none")]);
    anna.upload(&mut *database.connect(), &plan).expect("applied");
    arrives(database, &plan, &mut anna);
}

/// The same of what scripts store elsewhere, otherwise, or not at all.
pub(crate) fn what_scripts_made_comes_down_after_a_lost_download(database: &Database) {
    let scripts = "[tables.shop]\nscripts = { upload_insert = \"insert.sql\", upload_update = \"update.sql\", upload_delete = \"delete.sql\" }\n";
    let texts = [
        (
            "insert.sql",
            "INSERT INTO shop SELECT :r.id, nullif(substr(:r.note, 4), 'none'), :r.note WHERE :r.note <> 'to nowhere'",
        ),
        ("update.sql", "UPDATE shop SET note = 'by the script' WHERE id = :r.id AND :r.note <> 'to nowhere'"),
        ("delete.sql", "UPDATE shop SET note = 'deleted' WHERE id = :o.id AND note <> 's'"),
    ];
    database.application(&tables(CASCADE));
    track::track(&mut *database.connect(), &plan(MODEL)).expect("tracked");
    database.application(
        "INSERT INTO shop VALUES (1, 'north', 'n'), (2, 'south', 's'), (3, 'north', 'n'), (4, 'north', 'n')",
    );
    let mut model =
        headwater_model::parse::parse("moved.toml", &MODEL.replace("[tables.shop]\n", scripts)).expect("a model");
    let text_of = |name: &str| texts.iter().find(|(known, _)| name == *known).map(|(_, text)| (*text).to_owned());
    model.load_scripts(|name| text_of(name).ok_or("there is none")).expect("loaded");
    let plan = Plan::new(model);
    let mut anna = Replica::synced(database, &plan, "anna");
    for (number, place) in (10..).zip(["east", "none", "nowhere", "south", "north"]) {
        anna.insert(&plan, "shop", vec![int(number), text("north"), text(&format!("to {place}"))]);
    }
    anna.update(&plan, "shop", vec![int(1), text("north"), text("mine")]);
    anna.update(&plan, "shop", vec![int(3), text("north"), text("to nowhere")]);
    anna.delete(&plan, "shop", &vec![int(2), text("south"), text("s")]);
    anna.delete(&plan, "shop", &vec![int(4), text("north"), text("n")]);
    anna.upload(&mut *database.connect(), &plan).expect("applied");
    arrives(database, &plan, &mut anna);
    assert_eq!(anna.table(&plan, "shop").len(), 6);
}

/// So it is in a table without partitions.
pub(crate) fn what_a_script_does_not_insert_goes(database: &Database) {
    database.application("CREATE TABLE entry (id bigint NOT NULL PRIMARY KEY, v text)");
    let model = "name = \"entries\"\nversion = 1\n[tables.entry]\nkey = [\"id\"]\nscripts = { upload_insert = \"insert.sql\" }\n\
                 columns = { id = \"int not null\", v = \"text\" }";
    let script =
        "INSERT INTO entry SELECT :r.id + CASE :r.v WHEN 'key' THEN 1000 ELSE 0 END, upper(:r.v) WHERE :r.v <> 'no'";
    let mut model = headwater_model::parse::parse("entries.toml", model).expect("a model");
    model.load_scripts(|_| Ok::<_, std::convert::Infallible>(script.to_owned())).expect("loaded");
    let plan = Plan::new(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut anna = Replica::synced(database, &plan, "anna");
    for (number, v) in (1..).zip(["key", "no", "as it is"]) {
        anna.insert(&plan, "entry", vec![int(number), text(v)]);
    }
    arrives(database, &plan, &mut anna);
    let mut rows = anna.table(&plan, "entry");
    rows.sort_by_key(|row| format!("{row:?}"));
    assert_eq!(rows, [vec![int(1001), text("KEY")], vec![int(3), text("AS IT IS")]]);
}

/// A script of the user's may put a row anywhere.
pub(crate) fn what_a_script_stores_elsewhere_comes_down_as_it_is(database: &Database) {
    let text_of_it = "INSERT INTO shop VALUES (:r.id, nullif(substr(:r.note, 4), 'none'), :r.note)";
    let model = MODEL.replace("[tables.shop]\n", "[tables.shop]\nscripts = { upload_insert = \"insert.sql\" }\n");
    moving(database);
    let mut model = headwater_model::parse::parse("moved.toml", &model).expect("a model");
    model.load_scripts(|_| Ok::<_, std::convert::Infallible>(text_of_it.to_owned())).expect("loaded");
    let plan = Plan::new(model);
    let mut anna = Replica::synced(database, &plan, "anna");
    for (number, place) in (10..).zip(["east", "none", "south", "north"]) {
        anna.insert(&plan, "shop", vec![int(number), text("north"), text(&format!("to {place}"))]);
    }
    arrives(database, &plan, &mut anna);
}
