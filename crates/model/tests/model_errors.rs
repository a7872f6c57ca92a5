//! What a person is told of a model file that is wrong: every rule once, as the text that they see.

use headwater_model::parse::parse;
use insta::assert_snapshot;

/// All errors of a file, a line each; panics if there are none.
fn errors(text: &str) -> String {
    let errors = parse("m.toml", text).expect_err("the file has errors");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Errors of a file that has a sound head and table `p`, and then this.
fn errors_after(text: &str) -> String {
    errors(&format!(
        "name = \"m\"\nversion = 1\n\
         [partitions.region]\ncolumns = {{ region = \"text\" }}\nmembers = \"SELECT region FROM member WHERE u = :s.user\"\n\
         [tables.p]\nkey = [\"id\"]\ncolumns = {{ id = \"int not null\", code = \"text\", region = \"text\" }}\n{text}"
    ))
}

#[test]
fn everything_wrong_is_told_at_once_in_the_files_order() {
    assert_snapshot!(errors(
        r#"
nmae = "flights"
version = 0
[partitions.origin]
columns = { origin = "varchar" }
members = "SELECT origin FROM member WHERE user_name = :user; SELECT $1"
[tables.flights]
conflic = "off"
key = ["time_hour", "carier"]
partition = "orign"
[tables.flights.columns]
time_hour = "timestamptz"
carrier = "string not null"
origin = 7
"#
    ), @r#"
m.toml:1:1: the model has no name, expected name = "..."
m.toml:2:1: unknown key "nmae" in the model, expected name, version, on_error, values, partitions or tables; did you mean "name"?
m.toml:3:11: version is the number 0, expected a whole number from 1 to 4294967295
m.toml:5:22: unknown type "varchar", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json; did you mean "text"?
m.toml:6:11: members has the parameter :user, expected :s.user or :s.remote_id
m.toml:6:11: members has the parameter $1, expected :s.user or :s.remote_id
m.toml:6:11: members has a semicolon, expected one SELECT without a semicolon
m.toml:8:1: unknown key "conflic" in table "flights", expected schema, direction, conflict, key, key_range, partition, shared, references, unique, scripts or columns; did you mean "conflict"?
m.toml:9:21: unknown column "carier" in table "flights", expected time_hour or carrier; did you mean "carrier"?
m.toml:10:13: unknown partition "orign", expected origin; did you mean "origin"?
m.toml:13:11: unknown type "string", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json; did you mean "text"?
m.toml:14:10: origin is the number 7, expected a string
"#);
}

#[test]
fn text_that_is_no_toml_is_told_alone() {
    assert_snapshot!(errors("name = \"x\nversion = = 1\n[tables.t"), @r#"
m.toml:1:10: the file is not TOML: invalid basic string, expected `"`
m.toml:2:11: the file is not TOML: extra `=`, expected nothing
m.toml:2:13: the file is not TOML: unexpected key or value, expected newline, `#`
m.toml:3:10: the file is not TOML: unclosed table, expected `]`
"#);
}

#[test]
fn an_empty_file_lacks_name_version_and_tables() {
    assert_snapshot!(errors(""), @r#"
m.toml:1:1: the model has no name, expected name = "..."
m.toml:1:1: the model has no version, expected version = 1
m.toml:1:1: the model has no tables, expected [tables.NAME] with columns and a key
"#);
}

#[test]
fn values_of_other_kinds() {
    assert_snapshot!(errors("name = 1\nversion = \"1\"\ntables = []\npartitions = 3"), @r#"
m.toml:1:1: the model has no tables, expected [tables.NAME] with columns and a key
m.toml:1:8: name is the number 1, expected a string
m.toml:2:11: version is the string "1", expected a whole number from 1 to 4294967295
m.toml:3:10: tables is an array, expected a table
m.toml:4:14: partitions is the number 3, expected a table
"#);
    assert_snapshot!(errors("name = \"m\"\nversion = -1\n[tables.t]\nkey = \"a\"\nunique = [3]\ncolumns = { a = \"int\" }"), @r#"
m.toml:2:11: version is the number -1, expected a whole number from 1 to 4294967295
m.toml:4:7: key is the string "a", expected an array
m.toml:5:11: unique is the number 3, expected an array
"#);
}

#[test]
fn keys() {
    assert_snapshot!(errors_after("[tables.t]\ncolumns = { a = \"int not null\", b = \"int\" }"), @r#"m.toml:9:9: table "t" has no key, expected key = ["column", ...]"#);
    assert_snapshot!(errors_after("[tables.t]\nkey = []\ncolumns = { a = \"int not null\" }"), @r#"m.toml:10:7: key of table "t" names no column, expected at least one"#);
    assert_snapshot!(errors_after("[tables.t]\nkey = [\"a\", \"b\", \"a\", \"A\"]\ncolumns = { a = \"int not null\", b = \"int\" }"), @r#"
m.toml:10:18: key of table "t" names a column twice, expected each column once
m.toml:10:23: unknown column "A" in table "t", expected a or b; did you mean "a"?
"#);
}

#[test]
fn shared_tables() {
    assert_snapshot!(errors_after(
        "[tables.t]\nkey = [\"a\"]\nshared = 1\ncolumns = { a = \"int not null\" }\n\
         [tables.u]\nkey = [\"a\"]\nshared = true\nscripts = { download_cursor = \"u.sql\" }\ncolumns = { a = \"int not null\" }\n\
         [tables.v]\nkey = [\"a\"]\nshared = true\ndirection = \"upload\"\ncolumns = { a = \"int not null\" }\n\
         [tables.w]\nkey = [\"a\"]\nshared = true\nscripts = { upload_insert = \"w.sql\" }\ncolumns = { a = \"int not null\" }"
    ), @r#"
m.toml:11:10: shared is the number 1, expected true or false
m.toml:15:10: table "u" is shared, but its download is a script, which may give each user other rows, expected shared = false, or no such key
m.toml:20:10: table "v" is shared, but nothing of it comes down, expected shared = false, or no such key
"#);
}

#[test]
fn names() {
    let long = "n".repeat(129);
    assert_snapshot!(errors_after(&format!(
        "[tables.P]\nkey = [\"a\"]\ncolumns = {{ a = \"int not null\", A = \"int\" }}\n\
         [tables.hw_log]\nkey = [\"a\"]\ncolumns = {{ a = \"int not null\" }}\n\
         [tables.SQLite_x]\nkey = [\"{long}\"]\ncolumns = {{ {long} = \"int not null\", \"\" = \"int\", \"a\\nb\" = \"int\" }}"
    )), @r#"
m.toml:9:9: table "P" has the name of table "p" in other case, expected names that differ by more than case, which SQLite ignores
m.toml:11:33: column "A" has the name of column "a" in other case, expected names that differ by more than case, which SQLite ignores
m.toml:12:9: table name "hw_log" begins with hw_, which is reserved, expected another name
m.toml:15:9: table name "SQLite_x" begins with sqlite_, which is reserved, expected another name
m.toml:17:13: column name "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn" is longer than 128 bytes, expected another name
m.toml:17:161: column name "" is empty, expected another name
m.toml:17:173: column name "a\nb" has control characters, expected another name
"#);
}

#[test]
fn partitions() {
    assert_snapshot!(errors_after(
        "[tables.t]\nkey = [\"a\"]\npartition = \"region\"\ncolumns = { a = \"int not null\", Region = \"text\" }\n\
         [tables.u]\nkey = [\"a\"]\npartition = { name = \"region\", columns = [\"a\"] }\ncolumns = { a = \"int not null\" }\n\
         [tables.v]\nkey = [\"a\"]\npartition = { name = \"region\", columns = [\"a\", \"b\"] }\n\
         columns = { a = \"text not null\", b = \"text\" }\n\
         [tables.w]\nkey = [\"a\"]\npartition = { nam = \"region\" }\ncolumns = { a = \"text not null\" }"
    ), @r#"
m.toml:11:13: unknown column "region" in table "t", expected a or Region; did you mean "Region"?
m.toml:16:17: column "a" of table "u" is int, expected text, as column "region" of partition "region"
m.toml:19:42: table "v" gives partition "region" 2 columns, expected 1, as the partition has
m.toml:23:1: the partition of table "w" has no name, expected name = "..."
m.toml:23:15: unknown key "nam" in the partition of table "w", expected name, columns, through or by; did you mean "name"?
"#);
    assert_snapshot!(errors(
        "name = \"m\"\nversion = 1\n[partitions.a]\n[partitions.b]\ncolumns = {}\nmembers = \" \"\n[partitions.c]\n\
         columns = { x = \"text not null\" }\nmembers = \"SELECT ':x', ?\"\n\
         [tables.t]\nkey = [\"a\"]\ncolumns = { a = \"int not null\" }"
    ), @r#"
m.toml:3:13: partition "a" has no columns, expected columns = { region = "text" }
m.toml:3:13: partition "a" has no members, expected members = "SELECT ... WHERE user_name = :s.user"
m.toml:4:13: partition "b" has no columns, expected at least one
m.toml:6:11: members is empty, expected a SELECT that gives a row for each membership of :s.user
m.toml:8:17: unknown type "text not null", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json
m.toml:9:11: members has the parameter ?, expected :s.user or :s.remote_id
"#);
}

#[test]
fn references() {
    assert_snapshot!(errors_after(
        "[tables.t]\nkey = [\"a\"]\ncolumns = { a = \"int not null\", b = \"int\", c = \"text not null\" }\n\
         references = [\n\
         { columns = [\"b\"], table = \"q\" },\n\
         { columns = [\"b\", \"c\"], table = \"p\" },\n\
         { columns = [\"c\"], table = \"p\", target = [\"code\"] },\n\
         { columns = [\"d\"], table = \"p\", target = [\"idd\"] },\n\
         { columns = [\"c\"], table = \"p\", on_delete = \"set null\" },\n\
         { columns = [\"b\"], table = \"p\", on_delete = \"cascades\" },\n\
         { table = \"p\", tabel = 3 },\n\
         ]"
    ), @r#"
m.toml:13:28: a reference of table "t" names the unknown table "q", expected p or t; did you mean "p"?
m.toml:14:1: a reference of 2 columns of table "t" has 1 target columns, expected as many on both sides
m.toml:15:42: a reference's target is neither the key nor unique in table "p", expected the key, or these columns in unique of table "p"
m.toml:16:14: unknown column "d" in table "t", expected a, b or c; did you mean "a"?
m.toml:16:43: unknown column "idd" in table "p", expected id, code or region; did you mean "id"?
m.toml:17:1: on_delete is "set null", but column "c" may not be NULL, expected "no action" or "cascade"
m.toml:18:45: unknown on_delete "cascades", expected no action, cascade or set null; did you mean "cascade"?
m.toml:19:1: a reference of table "t" has no columns, expected columns = ["column", ...]
m.toml:19:16: unknown key "tabel" in a reference of table "t", expected columns, table, target or on_delete; did you mean "table"?
"#);
}

#[test]
fn rules_and_directions() {
    assert_snapshot!(errors_after(
        "[tables.t]\nkey = [\"a\"]\ncolumns = { a = \"int not null\" }\ndirection = \"up\"\nconflict = \"merge\"\n\
         [tables.u]\nkey = [\"a\"]\ncolumns = { a = \"int not null\" }\ndirection = \"downlaod\"\nconflict = \"newer_wins(changed)\"\n\
         [tables.v]\nkey = [\"a\"]\ncolumns = { a = \"int not null\" }\nconflict = \"remote-wins\""
    ), @r#"
m.toml:12:13: unknown direction "up", expected both, download or upload
m.toml:13:12: unknown conflict rule "merge", expected off, consolidated_wins, remote_wins, newer_wins(column), merge(consolidated) or merge(remote)
m.toml:17:13: unknown direction "downlaod", expected both, download or upload; did you mean "download"?
m.toml:18:12: unknown column "changed" in table "u", expected a
m.toml:22:12: unknown conflict rule "remote-wins", expected off, consolidated_wins, remote_wins, newer_wins(column), merge(consolidated) or merge(remote); did you mean "remote_wins"?
"#);
}

#[test]
fn counters() {
    let of = |conflict: &str| {
        errors_after(&format!(
            "[tables.t]\nkey = [\"id\"]\npartition = \"region\"\nconflict = {conflict}\n\
             columns = {{ id = \"int not null\", region = \"text\", qty = \"int\", part = \"real\", price = \"decimal\" }}"
        ))
    };
    let errors = of("{ merge = \"consolidated\", sum = [\"id\", \"region\", \"part\", \"price\", \"qty\"] }");
    assert_snapshot!(errors, @r#"
m.toml:12:12: table "t": sum names column "id", which is in the key, expected a column outside the key
m.toml:12:12: table "t": sum names column "region", which is text, expected int or decimal(precision,scale)
m.toml:12:12: table "t": sum names column "part", which is real, expected int or decimal(precision,scale)
m.toml:12:12: table "t": sum names column "price", which is decimal, expected int or decimal(precision,scale)
"#);
    assert_snapshot!(of("{ sum = [\"qty\"] }"), @r#"m.toml:12:1: the conflict rule of table "t" has no merge, expected merge = "consolidated""#);
    assert_snapshot!(of("{ merge = \"remot\", sum = [\"qty\"] }"), @r#"m.toml:12:22: unknown side "remot", expected consolidated or remote; did you mean "remote"?"#);
    assert_snapshot!(of("{ merge = \"remote\", sum = [\"quantity\"] }"), @r#"m.toml:12:39: unknown column "quantity" in table "t", expected id, region, qty, part or price"#);
    assert_snapshot!(of("{ merge = \"remote\", sum = [] }"), @r#"m.toml:12:38: sum of table "t" names no column, expected at least one"#);
    let by_parent = "[tables.o]\nkey = [\"id\"]\npartition = \"region\"\ncolumns = { id = \"int not null\", region = \"text\" }\n\
                     [tables.l]\nkey = [\"id\"]\npartition = { through = \"o\" }\nconflict = { merge = \"remote\", sum = [\"o\"] }\n\
                     references = [{ columns = [\"o\"], table = \"o\" }]\ncolumns = { id = \"int not null\", o = \"int\" }";
    assert_snapshot!(errors_after(by_parent), @r#"m.toml:16:12: table "l": sum names column "o", by which the partition is found, expected a column outside the partition"#);
}

#[test]
fn types() {
    assert_snapshot!(errors_after(
        "[tables.t]\nkey = [\"a\"]\n[tables.t.columns]\na = \"decimal(1001,2) not null\"\nb = \"decimal(5,6)\"\nc = \"text(10)\"\n\
         d = \"varchar(10)\"\ne = \"jsonb\"\nf = \"tiem\"\ng = \"int not\"\nh = \"\""
    ), @r#"
m.toml:12:5: type "decimal(1001,2)", expected precision 1 to 1000 and scale 0 to the precision
m.toml:13:5: type "decimal(5,6)", expected precision 1 to 1000 and scale 0 to the precision
m.toml:14:5: type "text(10)", expected "text"; only decimal takes (precision,scale)
m.toml:15:5: unknown type "varchar(10)", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json; did you mean "text"?
m.toml:16:5: unknown type "jsonb", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json; did you mean "json"?
m.toml:17:5: unknown type "tiem", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json; did you mean "time"?
m.toml:18:5: unknown type "int not", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json
m.toml:19:5: unknown type "", expected bool, int, real, decimal, text, bytes, date, time, timestamp, timestamptz, uuid, json
"#);
}

#[test]
fn limits() {
    let columns: Vec<_> = (0..1001).map(|n| format!("c{n} = \"int not null\"")).collect();
    assert_snapshot!(errors_after(&format!("[tables.t]\nkey = [\"c0\"]\ncolumns = {{ {} }}", columns.join(","))), @r#"m.toml:11:21690: table "t" has 1001 columns, expected at most 990"#);
    let table = |n: usize| format!("[tables.t{n}]\nkey = [\"a\"]\ncolumns = {{ a = \"int not null\" }}\n");
    assert_snapshot!(errors_after(&(0..1000).map(table).collect::<String>()), @"m.toml:3006:1: the model has 1001 tables, expected at most 1000");
}

#[test]
fn partitions_by_a_parent() {
    let orders = "[tables.orders]\nkey = [\"id\"]\npartition = \"region\"\ncolumns = { id = \"int not null\", region = \"text\", up = \"int\" }\n";
    let line = |partition: &str, references: &str| {
        format!(
            "{orders}[tables.line]\nkey = [\"id\"]\npartition = {partition}\nreferences = [{references}]\n\
             columns = {{ id = \"int not null\", orders = \"int\", other = \"int\", word = \"text\" }}"
        )
    };
    let by_orders = "{ columns = [\"orders\"], table = \"orders\" }";
    let of = |partition: &str, references: &str| errors_after(&line(partition, references));
    assert_snapshot!(of("{ through = \"order\" }", by_orders), @r#"m.toml:15:25: the partition of table "line" comes through the unknown table "order", expected p, orders or line; did you mean "orders"?"#);
    assert_snapshot!(of("{ through = \"orders\" }", ""), @r#"m.toml:15:25: table "line" takes its partition through "orders", but has no such reference, expected one of its references, or another in `references`"#);
    assert_snapshot!(of("{ through = \"orders\", name = \"region\" }", by_orders), @r#"m.toml:15:35: unknown key "name" in the partition of table "line", expected through or by"#);
    let both = format!("{by_orders}, {{ columns = [\"other\"], table = \"orders\" }}");
    assert_snapshot!(of("{ through = \"orders\" }", &both), @r#"m.toml:15:25: table "line" has several references to "orders", expected by = ["column", ...] beside through"#);
    assert_snapshot!(of("{ through = \"orders\", by = [\"word\"] }", &both), @r#"m.toml:15:25: table "line" takes its partition through "orders", but has no such reference, expected one of its references, or another in `references`"#);
    let nulled = "{ columns = [\"orders\"], table = \"orders\", on_delete = \"set null\" }";
    assert_snapshot!(of("{ through = \"orders\" }", nulled), @r#"m.toml:15:25: table "line": its rows would be in no partition once their row of "orders" is deleted, expected on_delete = "cascade", or none"#);
    assert_snapshot!(of("{ through = \"orders\" }", "{ columns = [\"word\"], table = \"orders\" }"), @r#"m.toml:15:25: table "line": it takes its partition from "orders" by columns of other types than its key, expected columns of the same types"#);
    assert_snapshot!(of("{ through = \"line\" }", "{ columns = [\"other\"], table = \"line\" }"), @r#"m.toml:15:25: table "line" takes its partition from itself, by way of others or not, expected a table that has a partition of its own at the end"#);
    assert_snapshot!(of("{ through = \"p\" }", "{ columns = [\"other\"], table = \"p\" }"), @r#"m.toml:15:25: table "line" takes its partition from "p", which has none, expected partition = ... under [tables.p]"#);
    assert_snapshot!(errors_after(&line("{ through = \"orders\" }", by_orders).replace("partition = \"region\"", "direction = \"upload\"\npartition = \"region\"")), @r#"m.toml:16:25: table "line": it takes its partition from "orders", which only goes up, expected another direction"#);
    assert_snapshot!(errors_after(&line("{ through = \"orders\" }", by_orders).replace("partition = \"region\"", "unique = [[\"up\"]]\npartition = \"region\"").replace("table = \"orders\" }", "table = \"orders\", target = [\"up\"] }")), @r#"m.toml:16:25: table "line": it takes its partition by a reference that is not to the key of "orders", expected a reference to the key"#);
    assert_snapshot!(errors_after(&line("{ through = \"orders\" }", by_orders).replace("partition = \"region\"", "scripts = { download_cursor = \"x.sql\" }\npartition = \"region\"")), @r#"m.toml:16:25: table "line": its rows move as those of "orders" do, but "orders" has a download_cursor, expected change tracking for both tables"#);
    let circle = line("{ through = \"orders\" }", by_orders).replace(
        "partition = \"region\"",
        "references = [{ columns = [\"up\"], table = \"line\" }]\npartition = { through = \"line\" }",
    );
    assert_snapshot!(errors_after(&circle), @r#"
m.toml:12:25: table "orders" takes its partition from itself, by way of others or not, expected a table that has a partition of its own at the end
m.toml:16:25: table "line" takes its partition from itself, by way of others or not, expected a table that has a partition of its own at the end
"#);
}
