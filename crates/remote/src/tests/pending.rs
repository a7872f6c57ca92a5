//! Pending changes against downloads, by every rule, and what stands in a download's way.

use headwater_model::{ConflictRule, OnDelete, Reference, Side};
use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};
use headwater_protocol::{Decimal, Type, Value};

use super::support::{Fixture, model, row, shop, table};
use crate::{Choice, PendingChoice, Remote};

const RULES: [ConflictRule; 6] = [
    ConflictRule::Off,
    ConflictRule::ConsolidatedWins,
    ConflictRule::RemoteWins,
    ConflictRule::NewerWins(2),
    ConflictRule::Merge(Side::Consolidated),
    ConflictRule::Merge(Side::Remote),
];

/// `doc (id, title, body)` with two rows that came down.
fn docs(rule: ConflictRule) -> Fixture {
    let mut doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("body", Type::Text)]);
    doc.conflict = rule;
    let f = Fixture::new(&model(vec![doc]));
    f.download(f.down().whole("doc", &[]).rows("doc", &[row("1,t,b"), row("2,t,b")]));
    f
}

fn is_merge(rule: ConflictRule) -> bool {
    matches!(rule, ConflictRule::Merge(_))
}

#[test]
fn an_update_beside_a_downloaded_row() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1");
        f.download(f.down().rows("doc", &[row("1,t,theirs")]));
        if is_merge(rule) {
            assert_eq!(f.rows("SELECT * FROM doc WHERE id = 1"), ["1|ours|theirs"]);
            assert_eq!(f.held(), 0, "all of it was taken");
            assert_eq!(f.cut_changes(), ["doc: 1,t,theirs -> 1,ours,theirs"]);
        } else {
            assert_eq!(f.rows("SELECT * FROM doc WHERE id = 1"), ["1|ours|b"], "{rule:?}");
            assert_eq!(f.held(), 1);
            assert_eq!(f.cut_changes(), ["doc: 1,t,b -> 1,ours,b"], "the conflict is not hidden");
        }
    }
}

/// What is left of a change is a spelling (7.0 for 7.00): the one that came stays, for nothing goes up that would bring it back.
#[test]
fn a_merged_change_that_only_spells_a_number_otherwise_is_none() {
    let mut doc = table("doc", &[("id", Type::Int), ("price", Type::Decimal), ("body", Type::Text)]);
    doc.conflict = ConflictRule::Merge(Side::Remote);
    let f = Fixture::new(&model(vec![doc]));
    let came = |price: &str, body: &str| {
        vec![Value::Int(1), Value::Decimal(Decimal::parse(price).expect("a decimal")), Value::text(body)]
    };
    f.download(f.down().whole("doc", &[]).rows("doc", &[came("7.00", "b")]));
    f.sql("UPDATE doc SET price = '7.0' WHERE id = 1");
    f.download(f.down().rows("doc", &[came("7.00", "theirs")]));
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|7.00|theirs"]);
    assert_eq!((f.held(), f.cut()), (0, None));
    f.check();
}

/// The change was applied without a conflict (rule `off`): what was held beside it came before it, and does not come back over it.
#[test]
fn a_row_held_beside_an_applied_change_is_out_of_date() {
    let f = docs(ConflictRule::Off);
    f.sql("UPDATE doc SET title = 'ours' WHERE id = 1; DELETE FROM doc WHERE id = 2");
    f.download(f.down().rows("doc", &[row("1,theirs,new"), row("2,theirs,new")]));
    assert_eq!(f.held(), 2);
    f.upload_all();
    f.download(f.down());
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|ours|b"]);
    assert_eq!(f.held(), 0);
    f.check();
}

/// What is on its way may have arrived: it can't be given up, nor can what was changed since, whose old image it is.
#[test]
fn nothing_is_given_up_while_an_upload_is_on_its_way() {
    let mut f = docs(ConflictRule::ConsolidatedWins);
    f.sql("UPDATE doc SET title = 'ours' WHERE id = 1");
    f.cut();
    f.sql("UPDATE doc SET body = 'x' WHERE id = 1; INSERT INTO doc VALUES (9, 't', 'b')");
    let error = f.remote.drop_pending(&PendingChoice::All).expect_err("an upload is frozen");
    assert!(error.to_string().contains("sync first"), "{error}");
    let listed = f.remote.pending(9).expect("a list");
    let shown: Vec<_> = listed.iter().map(|it| (it.key.as_str(), it.is_on_its_way)).collect();
    assert_eq!(shown, [(r#"{"id":1}"#, true), (r#"{"id":1}"#, false), (r#"{"id":9}"#, false)]);
    f.receipt(Vec::new());
    f.sql("UPDATE doc SET body = 'y' WHERE id = 1");
    assert_eq!(f.remote.drop_pending(&PendingChoice::All).expect("given up"), 2);
    assert_eq!(f.rows("SELECT * FROM doc WHERE id IN (1, 9)"), ["1|ours|b"], "as it went up");
    assert_eq!(f.cut(), None);
    f.check();
}

#[test]
fn both_sides_changed_the_same_column() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1");
        f.download(f.down().rows("doc", &[row("1,theirs,new")]));
        assert_eq!(f.held(), 1);
        let body = if is_merge(rule) { "new" } else { "b" };
        assert_eq!(f.cut_changes(), [format!("doc: 1,t,{body} -> 1,ours,{body}")], "{rule:?}");
        f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Consolidated))]);
        assert_eq!(f.held(), 1, "what foreign keys it breaks is looked at when a download is applied");
        f.download(f.down());
        assert_eq!(f.rows("SELECT * FROM doc WHERE id = 1"), ["1|theirs|new"], "what was held is what stayed");
        assert_eq!(f.held(), 0);
        f.check();
    }
}

#[test]
fn a_change_taken_back_lets_the_held_row_in() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1; DELETE FROM doc WHERE id = 2; INSERT INTO doc VALUES (3, 'n', 'n')");
        f.download(f.down().rows("doc", &[row("1,theirs,new"), row("3,x,x")]).delete("doc", &[row("2")]));
        assert_eq!(f.held(), 3, "a row that goes has perhaps left the partition: its deletion here is to be judged");
        f.sql("UPDATE doc SET title = 't' WHERE id = 1; DELETE FROM doc WHERE id = 3");
        assert_eq!(f.cut_changes(), ["doc: 2,t,b -> -"], "{rule:?}");
        f.receipt(Vec::new());
        f.download(f.down());
        assert_eq!(f.rows("SELECT * FROM doc"), ["1|theirs|new", "3|x|x"]);
        assert_eq!(f.held(), 0);
        f.check();
    }
}

#[test]
fn update_against_delete_and_delete_against_update() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1; DELETE FROM doc WHERE id = 2");
        f.download(f.down().delete("doc", &[row("1")]).rows("doc", &[row("2,theirs,b")]));
        assert_eq!(f.rows("SELECT * FROM doc"), ["1|ours|b"]);
        assert_eq!(f.held(), 2);
        assert_eq!(f.cut_changes(), ["doc: 1,t,b -> 1,ours,b", "doc: 2,t,b -> -"], "{rule:?}");
        let stayed = || Outcome::Conflict(ConflictEnd::Consolidated);
        f.receipt(vec![(0, stayed()), (1, stayed())]);
        f.download(f.down());
        assert_eq!(f.rows("SELECT * FROM doc"), ["2|theirs|b"]);
    }
}

#[test]
fn an_insert_of_a_key_that_came_down() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("INSERT INTO doc VALUES (9, 'ours', 'b'), (10, 'same', 'same')");
        f.download(f.down().rows("doc", &[row("9,theirs,b"), row("10,same,same")]));
        assert_eq!(f.pending().len(), 1, "a change whose result is already there is none");
        assert_eq!(f.cut_changes(), ["doc: - -> 9,ours,b"], "{rule:?}");
        f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Remote))]);
        assert_eq!(f.rows("SELECT * FROM doc WHERE id = 9"), ["9|ours|b"]);
        assert_eq!(f.held(), 0, "the held row is out of date: the consolidated database has ours");
        f.sql("INSERT INTO doc VALUES (11, 'x', 'x')");
        f.download(f.down().rows("doc", &[row("11,y,y")]).delete("doc", &[row("11")]));
        assert_eq!(f.held(), 0, "a row that came and went leaves an insert what it was");
    }
}

#[test]
fn a_row_that_comes_twice_is_waste_and_no_conflict() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1");
        f.download(f.down().rows("doc", &[row("1,other,b")]));
        assert_eq!(f.held(), 1);
        f.download(f.down().rows("doc", &[row("1,t,b")]));
        assert_eq!(f.held(), 0, "it is the old image again: {rule:?}");
        assert_eq!(f.cut_changes(), ["doc: 1,t,b -> 1,ours,b"]);
        f.sql("UPDATE doc SET title = 'later' WHERE id = 1");
        f.receipt(Vec::new());
        f.download(f.down().rows("doc", &[row("1,ours,b")]));
        assert_eq!((f.held(), f.pending().len()), (0, 1));
        assert_eq!(f.cut_changes(), ["doc: 1,ours,b -> 1,later,b"]);
    }
}

#[test]
fn a_whole_partition_goes_round_pending_changes() {
    for rule in RULES {
        let f = docs(rule);
        f.sql("UPDATE doc SET title = 'ours' WHERE id = 1; INSERT INTO doc VALUES (5, 'new', 'n'); INSERT INTO doc VALUES (6, 'x', 'x')");
        f.download(f.down().whole("doc", &[]).rows("doc", &[row("6,y,y"), row("7,t,b")]));
        assert_eq!(f.rows("SELECT * FROM doc"), ["1|ours|b", "5|new|n", "6|x|x", "7|t|b"], "{rule:?}");
        assert_eq!(f.held(), 2, "the deletion of 1, and 6");
        let expected = ["doc: 1,t,b -> 1,ours,b", "doc: - -> 5,new,n", "doc: - -> 6,x,x"];
        assert_eq!(f.cut_changes(), expected);
        f.check();
    }
}

fn regions() -> Fixture {
    let f = Fixture::new(&shop());
    f.download(
        f.down()
            .whole("item", &[Value::text("north")])
            .whole("item", &[Value::text("south")])
            .rows("item", &[row("1,north,axe,$1"), row("2,north,saw,$1"), row("3,south,nut,$1"), row("4,south,fig,$1")])
            .whole("kind", &[])
            .rows("kind", &[row("1,tool"), row("2,fruit")])
            .whole("part", &[])
            .rows("part", &[row("1,1,1")]),
    );
    f
}

#[test]
fn a_partition_that_is_left_takes_its_rows_and_sets_its_changes_aside() {
    let f = regions();
    f.sql(
        "UPDATE item SET price = '2' WHERE id = 1; UPDATE item SET region = 'north' WHERE id = 3;
           UPDATE item SET region = 'south' WHERE id = 2; INSERT INTO item VALUES (9, 'north', 'hoe', '1')",
    );
    f.download(f.down().left("item", &[Value::text("north")]));
    assert_eq!(f.rows("SELECT * FROM item"), ["3|south|nut|1", "4|south|fig|1"], "3 is as it came down");
    let expected = [
        "item {\"id\":9} partition out",
        "item {\"id\":3} partition out",
        "item {\"id\":2} partition out",
        "item {\"id\":1} partition out",
    ];
    let mut aside = f.set_aside();
    aside.sort_unstable();
    let mut expected = expected.map(str::to_owned);
    expected.sort_unstable();
    assert_eq!(aside, expected);
    let list = f.remote.set_aside(10).expect("a list");
    let update = list.iter().find(|change| change.key == "{\"id\":1}").expect("the update");
    assert!(update.old.as_deref().is_some_and(|old| old.contains("\"price\":\"1\"")), "{update:?}");
    assert!(update.new.as_deref().is_some_and(|new| new.contains("\"price\":\"2\"")), "both images are kept");
    assert_eq!(f.cut(), None);
    f.check();
}

#[test]
fn a_unique_value_that_came_down_sets_the_local_row_aside() {
    let f = regions();
    f.sql("INSERT INTO item VALUES (9, 'north', 'hoe', '1'); UPDATE item SET name = 'rake' WHERE id = 2");
    f.download(f.down().rows("item", &[row("20,south,hoe,$5"), row("21,south,rake,$5")]));
    assert_eq!(
        f.rows("SELECT id, name FROM item WHERE id NOT IN (1, 3, 4) ORDER BY id"),
        ["2|saw", "20|hoe", "21|rake"]
    );
    let mut aside = f.set_aside();
    aside.sort_unstable();
    assert_eq!(aside, ["item {\"id\":2} unique out", "item {\"id\":9} unique out"]);
    assert_eq!(f.cut(), None, "what is set aside is not sent");
    f.sql("INSERT INTO item VALUES (9, 'north', 'spade', '1')");
    assert_eq!(f.cut_changes(), ["item: - -> 9,north,spade,1"]);
    assert_eq!(f.set_aside().len(), 2, "what only the list has stays until it is given up");
    f.check();
}

#[test]
fn unique_values_that_were_swapped_there_are_swapped_here() {
    let f = regions();
    f.download(
        f.down()
            .rows("item", &[row("1,north,saw,$1"), row("2,north,axe,$1"), row("3,south,fig,$1")])
            .delete("item", &[row("4")]),
    );
    assert_eq!(f.rows("SELECT id, name FROM item ORDER BY id"), ["1|saw", "2|axe", "3|fig"]);
    // Round a circle of three, with a new row at its end.
    f.download(
        f.down().rows(
            "item",
            &[row("1,north,axe,$1"), row("2,north,fig,$1"), row("3,south,saw,$1"), row("5,south,nut,$1")],
        ),
    );
    assert_eq!(f.rows("SELECT id, name FROM item ORDER BY id"), ["1|axe", "2|fig", "3|saw", "5|nut"]);
    assert_eq!((f.held(), f.set_aside().len()), (0, 0));
    f.check();
}

/// Rows that are held, each with the reason.
fn why_held(f: &Fixture) -> Vec<String> {
    let held = f.remote.held(100).expect("a list");
    held.iter().map(|row| format!("{} {}: {}", row.table, row.key, row.why.as_deref().unwrap_or("pending"))).collect()
}

#[test]
fn an_index_of_the_applications_own_holds_what_it_does_not_take() {
    let mut f = regions();
    f.sql("CREATE UNIQUE INDEX own ON item (region) WHERE region = 'east'");
    f.reopen();
    // Downloads have shown that no row was replaced through it.
    f.sql("UPDATE hw_tracking SET doubt = 0");
    let applied = f.download(f.down().rows("item", &[row("30,east,x1,$1"), row("31,east,x2,$1")]));
    assert_eq!(applied.not_stored, 1);
    assert_eq!(f.rows("SELECT count(*) FROM item WHERE region = 'east'"), ["1"]);
    assert_eq!(f.held(), 1, "nothing that came down is dropped");
    assert_eq!(why_held(&f), [r#"item {"id":30}: another row has a value of it that must be unique"#]);
    f.sql("DROP INDEX own");
    f.reopen();
    f.download(f.down());
    assert_eq!(f.rows("SELECT count(*) FROM item WHERE region = 'east'"), ["2"], "it is tried again");
    assert_eq!(f.held(), 0);
}

#[test]
fn a_row_that_the_table_does_not_take_is_held() {
    let mut strict = table("strict", &[("id", Type::Int), ("name", Type::Text)]);
    strict.columns[1].nullable = false;
    let f = Fixture::new(&model(vec![strict]));
    let applied = f.download(f.down().whole("strict", &[]).rows("strict", &[row("1,-"), row("2,a"), row("x,b")]));
    assert_eq!((applied.not_stored, f.held()), (2, 2));
    let why = why_held(&f);
    assert!(why[0].contains("NOT NULL constraint failed: strict.name") && why[1].contains("mismatch"), "{why:?}");
    assert_eq!(f.rows("SELECT * FROM strict"), ["2|a"]);
    f.download(f.down().rows("strict", &[row("1,fine")]).delete("strict", &[row("x")]));
    assert_eq!((f.rows("SELECT * FROM strict"), f.held()), (vec!["1|fine".to_owned(), "2|a".to_owned()], 0));
}

#[test]
fn a_parent_that_went_sets_the_pending_child_aside() {
    let f = regions();
    f.sql("INSERT INTO part VALUES (5, 2, 1); UPDATE part SET item = 2 WHERE id = 1");
    f.download(f.down().delete("kind", &[row("2")]));
    assert_eq!(f.rows("SELECT * FROM part"), ["1|1|1"], "the update is undone, the insert taken out");
    let mut aside = f.set_aside();
    aside.sort_unstable();
    assert_eq!(aside, ["part {\"id\":1} foreign_key out", "part {\"id\":5} foreign_key out"]);
    f.check();
}

#[test]
fn a_held_deletion_of_a_parent_takes_the_pending_child_with_it() {
    let f = regions();
    f.sql("UPDATE kind SET name = 'plant' WHERE id = 2; INSERT INTO part VALUES (5, 2, 1)");
    f.download(f.down().delete("kind", &[row("2")]));
    assert_eq!(f.held(), 1, "the update of the parent is judged when it goes up");
    f.cut();
    let stayed = Outcome::Conflict(ConflictEnd::Consolidated);
    let refusal = Refusal { code: RefusalCode::ForeignKey, message: String::new() };
    f.receipt(vec![(0, stayed), (1, Outcome::Refused(refusal))]);
    f.check();
    f.download(f.down());
    assert_eq!(
        (f.rows("SELECT id FROM kind"), f.rows("SELECT id FROM part")),
        (vec!["1".to_owned()], vec!["1".to_owned()])
    );
    assert_eq!(f.set_aside(), ["part {\"id\":5} foreign_key out"]);
    f.check();
}

#[test]
fn a_child_that_came_undoes_the_pending_deletion_of_its_parent() {
    let f = regions();
    f.sql("DELETE FROM kind WHERE id = 2; UPDATE kind SET name = 'stone' WHERE id = 1");
    f.download(f.down().rows("part", &[row("7,2,7")]));
    assert_eq!(f.rows("SELECT * FROM kind"), ["1|stone", "2|fruit"]);
    assert_eq!(f.rows("SELECT * FROM part"), ["1|1|1", "7|2|7"]);
    assert_eq!(f.set_aside(), ["kind {\"id\":2} foreign_key out"]);
    assert_eq!(f.cut_changes(), ["kind: 1,tool -> 1,stone"]);
    f.check();
}

#[test]
fn a_child_without_any_parent_is_held_until_it_comes() {
    let f = regions();
    let applied = f.download(f.down().rows("part", &[row("8,77,1"), row("9,1,1")]));
    assert_eq!(applied.not_stored, 1);
    assert_eq!((f.rows("SELECT id FROM part"), f.held()), (vec!["1".to_owned(), "9".to_owned()], 1));
    assert_eq!(why_held(&f), [r#"part {"id":8}: it refers to a row that is not here"#]);
    f.check();
    f.download(f.down().rows("kind", &[row("77,late")]));
    assert_eq!((f.rows("SELECT id FROM part"), f.held()), (vec!["1".to_owned(), "8".to_owned(), "9".to_owned()], 0));
    f.check();
}

#[test]
fn references_by_a_unique_value_and_to_itself() {
    let mut node = table("node", &[("id", Type::Int), ("code", Type::Text), ("parent", Type::Int)]);
    node.unique = vec![vec![1]];
    node.references = vec![Reference { columns: vec![2], table: 0, target: vec![0], on_delete: OnDelete::NoAction }];
    let mut tag = table("tag", &[("id", Type::Int), ("code", Type::Text)]);
    tag.references = vec![Reference { columns: vec![1], table: 0, target: vec![1], on_delete: OnDelete::NoAction }];
    let f = Fixture::new(&model(vec![node, tag]));
    f.download(f.down().whole("node", &[]).rows("node", &[row("1,a,2"), row("2,b,-"), row("3,c,1")]).whole("tag", &[]));
    f.sql("INSERT INTO tag VALUES (1, 'a'); INSERT INTO node VALUES (4, 'd', 3); INSERT INTO node VALUES (5, 'e', 4)");
    // The code of 1 changes, and 3 goes: what refers to them goes with them, and so on.
    f.download(f.down().rows("node", &[row("1,z,2")]).delete("node", &[row("3")]));
    assert_eq!(f.rows("SELECT * FROM node"), ["1|z|2", "2|b|NULL"]);
    assert_eq!(f.rows("SELECT * FROM tag"), Vec::<String>::new());
    let mut aside = f.set_aside();
    aside.sort_unstable();
    let expected =
        ["node {\"id\":4} foreign_key out", "node {\"id\":5} foreign_key out", "tag {\"id\":1} foreign_key out"];
    assert_eq!(aside, expected);
    f.check();
}

/// A row that came down waits beside a local one of its key; a child that refers to it by value comes, and another local row has its
/// unique value: both changes are set aside, and all three downloaded rows are there.
#[test]
fn a_held_parent_is_let_in_when_its_child_comes() {
    let mut node = table("node", &[("id", Type::Int), ("code", Type::Text), ("mark", Type::Int)]);
    node.unique = vec![vec![1], vec![2]];
    let mut tag = table("tag", &[("id", Type::Int), ("code", Type::Text)]);
    tag.references = vec![Reference { columns: vec![1], table: 0, target: vec![1], on_delete: OnDelete::NoAction }];
    let f = Fixture::new(&model(vec![node, tag]));
    f.download(f.down().whole("node", &[]).whole("tag", &[]));
    f.sql("INSERT INTO node VALUES (1, 'ours', 1), (2, 'other', 7)");
    f.download(f.down().rows("node", &[row("1,theirs,7")]));
    assert_eq!(f.held(), 1);
    // Of several children the first brings the parent for all.
    let applied = f.download(f.down().rows("tag", &[row("1,theirs"), row("2,theirs"), row("3,theirs")]));
    assert_eq!((applied.set_aside, applied.not_stored, f.held()), (2, 0, 0));
    assert_eq!(f.rows("SELECT * FROM node"), ["1|theirs|7"]);
    assert_eq!(f.rows("SELECT * FROM tag"), ["1|theirs", "2|theirs", "3|theirs"]);
    let mut aside = f.set_aside();
    aside.sort_unstable();
    assert_eq!(aside, ["node {\"id\":1} foreign_key out", "node {\"id\":2} unique out"]);
    f.check();
}

#[test]
fn a_refused_change_waits_for_the_next_local_one() {
    let refused = |code| Outcome::Refused(Refusal { code, message: String::new() });
    let f = docs(ConflictRule::RemoteWins);
    f.sql(
        "UPDATE doc SET title = 'bad' WHERE id = 1; DELETE FROM doc WHERE id = 2; INSERT INTO doc VALUES (3, 'n', 'n')",
    );
    f.cut();
    f.sql("UPDATE doc SET title = 'newer' WHERE id = 3");
    f.receipt(vec![
        (0, refused(RefusalCode::Check)),
        (1, refused(RefusalCode::ForeignKey)),
        (2, refused(RefusalCode::Unique)),
    ]);
    assert_eq!(f.set_aside(), ["doc {\"id\":2} foreign_key in place", "doc {\"id\":1} check in place"]);
    // 3 was changed again since: its change is not the refused one, and its first old image is that of the insert.
    assert_eq!(f.cut_changes(), ["doc: - -> 3,newer,n"]);
    f.receipt(Vec::new());
    // A held row beside a change set aside.
    f.download(f.down().rows("doc", &[row("1,theirs,b")]));
    assert_eq!((f.held(), f.cut()), (1, None));
    f.sql("UPDATE doc SET body = 'better' WHERE id = 1; INSERT INTO doc VALUES (2, 't', 'b')");
    assert_eq!(f.cut_changes(), ["doc: 1,t,b -> 1,bad,better"], "2 is as it was, and leaves the log");
    assert_eq!(f.set_aside(), Vec::<String>::new());
}

#[test]
fn a_thawed_upload_keeps_the_first_old_images() {
    let f = docs(ConflictRule::RemoteWins);
    f.sql(
        "UPDATE doc SET title = '1' WHERE id = 1; DELETE FROM doc WHERE id = 2; INSERT INTO doc VALUES (3, 'n', 'n')",
    );
    let end = f.cut().expect("an upload");
    f.sql("UPDATE doc SET title = '2' WHERE id = 1; INSERT INTO doc VALUES (2, 'again', 'b'); DELETE FROM doc WHERE id = 3");
    let thaw = |connection: &rusqlite::Connection| crate::cut::thaw(connection, &f.remote.plan, false);
    f.remote.database.write("thawing", thaw).expect("thawed");
    let upload = f.cut_changes();
    assert_eq!(upload, ["doc: 1,t,b -> 1,2,b", "doc: 2,t,b -> 2,again,b"]);
    let next = f.remote.state().expect("a state").frozen.expect("frozen").sequence;
    assert_eq!(next, end.sequence + 1, "a request with the first may be on its way still");
}

#[test]
fn after_a_restart_partitions_that_do_not_come_again_go() {
    let f = regions();
    f.sql("UPDATE item SET price = '7' WHERE id = 1");
    f.remote.database.write("restart", crate::state::State::forget_seen).expect("forgotten");
    f.download(
        f.down()
            .whole("item", &[Value::text("south")])
            .rows("item", &[row("3,south,nut,$1")])
            .whole("kind", &[])
            .rows("kind", &[row("1,tool")])
            .whole("part", &[])
            .rows("part", &[row("1,1,1")]),
    );
    assert_eq!(f.rows("SELECT id FROM item"), ["1", "3"], "1 has a pending change; 2 and 4 are gone");
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,1 -> 1,north,axe,7"]);
    f.check();
}

#[test]
fn a_download_that_makes_no_sense_changes_nothing() {
    let f = docs(ConflictRule::Off);
    let wrong = {
        let mut header = f.header("doc");
        header.columns[1].0 = "other".to_owned();
        super::support::Down::new(vec![header]).rows("doc", &[row("1,x,x")])
    };
    let error = f.try_download(wrong).expect_err("other columns");
    assert_eq!((error.code(), error.is_retryable()), ("unexpected_answer", false));
    let mut frames = f.down().rows("doc", &[row("1,x,x")]).finish();
    frames.pop();
    let mut frames = frames.into_iter();
    let applied = crate::apply::apply(
        &f.remote.database,
        &f.remote.plan,
        super::support::NOW,
        &mut |_| Ok(frames.next()),
        &mut |_| Ok(()),
    );
    assert!(applied.is_err(), "the watermarks are missing");
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|t|b", "2|t|b"]);
    f.sql("UPDATE doc SET title = 'u' WHERE id = 1");
    assert_eq!(f.cut_changes(), ["doc: 1,t,b -> 1,u,b"], "change tracking is on");
    let error = f.try_download(f.down().rows("doc", &[row("2,x,x")])).expect_err("an upload is on its way");
    assert_eq!(error.code(), "unexpected_answer");
    f.check();
}

#[test]
fn the_applications_triggers_see_what_comes_down() {
    let f = regions();
    f.sql(
        "CREATE TABLE seen (id INTEGER, what TEXT);
           CREATE TRIGGER own AFTER INSERT ON item BEGIN INSERT INTO seen VALUES (NEW.id, NEW.name);
             UPDATE kind SET name = 'touched' WHERE id = 1; END",
    );
    f.download(f.down().rows("item", &[row("40,south,pot,$3")]));
    assert_eq!(f.rows("SELECT * FROM seen"), ["40|pot"]);
    assert_eq!(f.cut_changes(), ["kind: 1,tool -> 1,touched"], "what they change in other tables is a local change");
    f.sql("DROP TRIGGER own");
    f.receipt(Vec::new());
    f.download(f.down().rows("item", &[row("41,south,pan,$3")]));
    assert_eq!(f.rows("SELECT count(*) FROM seen"), ["1"]);
    f.check();
}

/// A file from before each row could have several changes on the list: they and the numbers that were given go along.
#[test]
fn a_list_with_one_change_of_each_row_is_made_anew() {
    let mut f = regions();
    f.sql("UPDATE item SET name = 'rake' WHERE id = 2; INSERT INTO item VALUES (9, 'north', 'hoe', '1')");
    f.download(f.down().rows("item", &[row("20,south,hoe,$5"), row("21,south,rake,$5")]));
    let (list, numbers) = (f.set_aside(), f.rows("SELECT id FROM hw_set_aside ORDER BY id"));
    f.remote.drop_set_aside(&Choice::Numbers(vec![2])).expect("the last is given up");
    f.sql(
        "CREATE TEMP TABLE kept AS SELECT * FROM hw_set_aside; DROP TABLE hw_set_aside; \
         CREATE TABLE hw_set_aside (id INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, \"table\" INTEGER NOT NULL, \
         name TEXT NOT NULL, key BLOB NOT NULL, key_text TEXT NOT NULL, code INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL, \
         in_place INTEGER NOT NULL, old BLOB, old_text TEXT, new BLOB, new_text TEXT, UNIQUE (\"table\", key)); \
         INSERT INTO hw_set_aside SELECT * FROM temp.kept; UPDATE sqlite_sequence SET seq = 2 WHERE name = 'hw_set_aside'",
    );
    let path = f.remote.path.clone();
    f.remote = Remote::open(path).expect("it is put right");
    assert_eq!(numbers, ["1", "2"]);
    assert!(f.set_aside().len() == 1 && list.contains(&f.set_aside()[0]), "{:?}", f.set_aside());
    assert_eq!(
        f.rows("SELECT count(*) FROM sqlite_schema WHERE tbl_name = 'hw_set_aside' AND sql LIKE '%INDEX%'"),
        ["2"]
    );
    assert_eq!(
        f.rows("SELECT seq FROM sqlite_sequence WHERE name = 'hw_set_aside'"),
        ["2"],
        "no number is given twice"
    );
    f.check();
}

/// A fresh start in which a row comes with the unique value of one whose partition is left: that one stepped aside, and goes for good.
#[test]
fn a_row_that_stepped_aside_goes_with_its_partition() {
    let mut f = regions();
    f.remote.reset().expect("starting afresh");
    let north = [row("1,north,axe,$1"), row("2,north,saw,$1"), row("7,north,nut,$1")];
    f.download(f.down().whole("item", &[Value::text("north")]).rows("item", &north));
    assert_eq!(f.held(), 0, "{:?}", f.remote.held(9));
    assert_eq!(f.rows("SELECT id FROM item ORDER BY id"), ["1", "2", "7"]);
    f.check();
}
