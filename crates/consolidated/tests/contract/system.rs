//! What Headwater keeps, and what `check` and `init` see.

use headwater_consolidated::check::{Severity, check};
use headwater_consolidated::init::first_model;
use headwater_consolidated::system::{self, Greeting, SealRequest, greet, greet_before_upload, seal_watermarks};
use headwater_consolidated::{Dialect, Plan};
use headwater_protocol::message::KeyRange;

use super::database::{Database, MODEL, plan};
use super::replica::Replica;

pub(crate) fn a_remote_is_bound_to_its_secret(database: &Database) {
    let plan = database.standard();
    let remote = Replica::synced(database, &plan, "anna");
    let mut thief = remote.hello(&plan);
    thief.secret = [0; 32];
    let mut connection = database.connect();
    for greet in [greet, greet_before_upload] {
        assert_eq!(greet(&mut *connection, &plan, "anna", &thief).expect("greeted"), Greeting::WrongSecret);
    }
    let hello = remote.hello(&plan);
    let Greeting::Welcome(greeted) = greet(&mut *connection, &plan, "ben", &hello).expect("greeted") else {
        panic!("the secret is right, whoever the user is")
    };
    let welcome = greeted.welcome;
    assert!(!welcome.restart && welcome.upload_sequence == 0);
    let request = SealRequest { plan: &plan, user: "ben", hello: &hello, greeted: &greeted };
    seal_watermarks(&mut *connection, &request, greeted.watermarks.clone()).expect("noted");
    let remotes = system::remotes(&mut *connection, 10).expect("listed");
    assert_eq!(remotes.len(), 1);
    assert_eq!((remotes[0].remote_id, remotes[0].user.as_str()), (remote.id, "ben"));
    assert_eq!((remotes[0].model.as_str(), remotes[0].model_version), ("contract", 1));
}

pub(crate) fn accounts_and_notes(database: &Database) {
    let mut connection = database.connect();
    let missing = system::identity(&mut *connection);
    assert!(missing.is_err(), "nothing is installed yet");
    let identity = system::install(&mut *connection).expect("installed");
    assert_eq!(system::install(&mut *connection).expect("again"), identity);
    assert_eq!(system::identity(&mut *connection).expect("read"), identity);
    let note = system::take_note(&mut *connection).expect("noted");
    let now = system::identity(&mut *connection).expect("read");
    assert_eq!((now.note, now.incarnation), (note, identity.incarnation));
    assert!(!format!("{now:?}").contains(&hex::encode(now.token_key)), "keys are never printed");

    assert!(system::add_account(&mut *connection, "anna", "$argon2id$one").expect("added"));
    assert!(!system::add_account(&mut *connection, "anna", "$argon2id$two").expect("the name is taken"));
    system::add_account(&mut *connection, "Ånna", "$argon2id$three").expect("added");
    let anna = system::find_account(&mut *connection, "anna").expect("read").expect("found");
    assert_eq!((anna.password_hash.as_str(), anna.disabled), ("$argon2id$one", false));
    assert!(system::set_account_disabled(&mut *connection, "anna", true).expect("disabled"));
    assert!(!system::set_account_disabled(&mut *connection, "nobody", true).expect("nobody there"));
    let accounts = system::accounts(&mut *connection).expect("listed");
    assert_eq!(accounts.iter().filter(|account| account.disabled).count(), 1);
    assert_eq!(accounts.len(), 2);
    assert_eq!(system::find_account(&mut *connection, "bob").expect("read"), None);
}

const KEYED: &str = r#"
    name = "keyed"
    version = 1
    [tables.item]
    key = ["id"]
    key_range = { size = 10, from = 1000 }
    columns = { id = "int not null" }
"#;

pub(crate) fn keys_go_behind_what_is_stored(database: &Database) {
    let plan = plan(KEYED);
    // A key that nobody has come to by counting takes none from the others, nor does a range that somebody claims there.
    database.application(
        "CREATE TABLE item (id bigint NOT NULL PRIMARY KEY); INSERT INTO item VALUES (1500), (9223372036854775807)",
    );
    system::install(&mut *database.connect()).expect("installed");
    if database.dialect() == Dialect::Postgres {
        // The model's tables are in the schema public, whatever a role looks through first.
        database.application(
            "CREATE SCHEMA other; CREATE TABLE other.item (id bigint); \
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = other', current_database()); END $$",
        );
    }
    let ranges = system::key_ranges(&mut *database.connect(), &plan, &[1; 16], &[]).expect("handed out");
    assert_eq!(ranges, [KeyRange { table: 0, first: 1501, last: 1510 }]);
    let claimed = [KeyRange { table: 0, first: i64::MAX - 9, last: i64::MAX }];
    let ranges = system::key_ranges(&mut *database.connect(), &plan, &[3; 16], &claimed).expect("handed out");
    assert_eq!(ranges, [KeyRange { table: 0, first: 1511, last: 1520 }]);
    // Where there is none left there is none, and that ends no sync.
    let top = KEYED.replace("from = 1000", &format!("from = {}", i64::MAX - 3));
    assert_ne!(top, KEYED);
    let ranges =
        system::key_ranges(&mut *database.connect(), &super::database::plan(&top), &[4; 16], &[]).expect("none");
    assert_eq!(ranges, []);
}

pub(crate) fn a_remote_may_say_anything_of_its_ranges(database: &Database) {
    let plan = plan(KEYED);
    database.application("CREATE TABLE item (id bigint NOT NULL PRIMARY KEY)");
    let mut connection = database.connect();
    system::install(&mut *connection).expect("installed");
    let first = system::key_ranges(&mut *connection, &plan, &[1; 16], &[]).expect("handed out");
    let told = [KeyRange { first: i64::MIN, ..first[0] }];
    assert_eq!(system::key_ranges(&mut *connection, &plan, &[1; 16], &told).expect("told"), [], "it has plenty left");
}

fn codes(database: &Database, plan: &Plan) -> Vec<(Severity, &'static str, Option<String>)> {
    let findings = check(&mut *database.connect(), plan).expect("checked");
    findings.into_iter().map(|finding| (finding.severity, finding.code, finding.table)).collect()
}

pub(crate) fn check_and_init_see_what_is_there(database: &Database) {
    let good = database.standard();
    let errors = |plan: &Plan| -> Vec<&'static str> {
        codes(database, plan).into_iter().filter(|found| found.0 == Severity::Error).map(|found| found.1).collect()
    };
    assert_eq!(errors(&good), Vec::<&str>::new());
    let cases = [
        ("[tables.price]", "[tables.pirce]", "table_missing"),
        (
            "amount = \"decimal\" }\n\n    [tables.node]",
            "amounts = \"decimal\" }\n\n    [tables.node]",
            "column_missing",
        ),
        (
            "code = \"text not null\", name = \"text\"",
            "code = \"text not null\", name = \"text not null\"",
            "nullable_differs",
        ),
        ("SELECT region FROM member", "SELECT regoin FROM member", "membership_query"),
        ("SELECT region FROM member", "SELECT region, region FROM member", "membership_query"),
    ];
    let unread = ("SELECT region FROM member", "SELECT CAST(region AS interval) FROM member", "membership_query");
    let unread = (database.dialect() == Dialect::Postgres).then_some(unread);
    for (from, to, code) in cases.into_iter().chain(unread) {
        assert!(MODEL.contains(from), "{from}");
        let found = errors(&plan(&MODEL.replacen(from, to, 1)));
        assert!(found.contains(&code), "{code}: {found:?}");
    }
    // A key that is not unique, and one that is compared in another way.
    database.application(match database.dialect() {
        Dialect::Sqlite => "CREATE TABLE odd (a TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, b BIGINT NOT NULL)",
        Dialect::Postgres => {
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             CREATE TABLE odd (a text COLLATE loose NOT NULL PRIMARY KEY, b bigint NOT NULL)"
        }
    });
    let odd = |key: &str| {
        plan(&format!(
            "name = \"odd\"\nversion = 1\n[tables.odd]\nkey = [\"{key}\"]\ncolumns = {{ a = \"text not null\", b = \"int not null\" }}"
        ))
    };
    assert!(errors(&odd("a")).contains(&"key_equality"));
    assert!(errors(&odd("b")).contains(&"key_not_unique"));
    assert!(errors(&odd("a")).contains(&"not_tracked"));

    database
        .application("CREATE TABLE keyless (a {int}); CREATE TABLE ours (id {int} NOT NULL PRIMARY KEY, hw_x text)");
    let awkward = match database.dialect() {
        Dialect::Sqlite => ("loose", "CREATE TABLE loose (name text PRIMARY KEY)"),
        Dialect::Postgres => (
            "node",
            "CREATE SCHEMA second; CREATE TABLE second.node (id bigint PRIMARY KEY); \
             CREATE TABLE cased (id bigint PRIMARY KEY, \"Note\" text, note text); \
             CREATE TABLE made (base bigint, id bigint GENERATED ALWAYS AS (base * 2) STORED PRIMARY KEY)",
        ),
    };
    database.application(awkward.1);
    let catalogue = database.connect().catalogue().expect("a catalogue");
    assert!(catalogue.tables.iter().all(|table| !table.name.contains("headwater")), "none of our own");
    let first = first_model("first", &catalogue);
    let names: Vec<&str> = first.model.tables.iter().map(|table| table.name.as_str()).collect();
    assert!(
        names.contains(&"customer")
            && names.contains(&"line")
            && !names.contains(&"keyless")
            && !names.contains(&"odd")
    );
    let place = |name: &str| names.iter().position(|found| *found == name);
    assert!(place("orders") < place("line"), "parents first: {names:?}");
    for table in ["keyless", "ours", awkward.0] {
        assert!(first.left_out.iter().any(|(left_out, _)| left_out == table), "{table}: {:?}", first.left_out);
    }
    assert_eq!(names.iter().filter(|name| **name == "node").count(), 1);
    if database.dialect() == Dialect::Postgres {
        let two_cases = first.model.table("cased").expect("all but one of its columns travel");
        assert_eq!(two_cases.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["id", "Note"]);
        let why =
            |table: &str| first.left_out.iter().find(|(left_out, _)| left_out == table).map(|(_, why)| why.as_str());
        assert_eq!(why("cased"), Some("column `note`: a remote does not tell it from `Note`"));
        assert_eq!(why("made"), Some("of its key, column `id`: the database makes its value"));
    }
    let customer = first.model.table("customer").expect("customer");
    assert_eq!((customer.key.as_slice(), customer.unique.as_slice()), (&[0][..], &[vec![1]][..]));
    let line = first.model.table("line").expect("line");
    assert_eq!(line.references.len(), 1);
    assert_eq!(line.references[0].columns, [0]);
}
