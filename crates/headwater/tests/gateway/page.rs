//! The page of the queries in a real browser: what it shows once its scripts have run.

use headwater_testkit::Browser;
use serde_json::{Value, json};

use super::{Stage, get};

const DELAYS: &str = "-- title = \"Delays by day\"
-- public = true
-- max_age_s = 60
-- [parameters]
-- carrier = { type = \"text\", length_max = 2, default = \"AA\", values = [\"AA\", \"UA\"] }
-- least = { type = \"int\", min = 0, max = 9007199254740993, default = 0 }
-- since = { type = \"date\", min = \"2024-01-01\", max = \"2024-12-31\" }
-- [types]
-- day = \"date\"
-- fare = \"decimal\"
SELECT day, carrier, delay, fare FROM delays WHERE carrier = :carrier AND delay >= :least AND day >= :since ORDER BY day";

const EXACT: &str = "-- public = true
-- [types]
-- big = \"int\"
-- fare = \"decimal\"
-- real = \"real\"
-- doc = \"json\"
-- raw = \"bytes\"
SELECT 9223372036854775807 AS big, '12345678901234567890.10' AS fare, 1e300 AS real, '{\"a\":12345678901234567890}' AS doc, x'00ff' AS raw, '' AS empty,
    NULL AS none, 'NULL' AS word, '  two  ' AS spaces
UNION ALL SELECT -1, '0.5', 1.0, 'null', x'', 'Zürich', NULL, '1,2', '007'";

const HOSTILE: &str = "-- title = \"<img src=x onerror=hostile=1> & more\"
-- public = true
-- [parameters]
-- word = { type = \"text\", default = \"\\\"><script>hostile=2</script>\" }
SELECT '<script>hostile=3</script>' AS \"<b onclick=hostile=4>name</b>\", '\"><img src=x onerror=\"hostile=5\">' AS tag, :word AS word, '</script><svg onload=hostile=6>' AS svg, 1 AS n";

const MANY: &str = "-- public = true\n-- rows_max = 3000000\n-- [parameters]\n-- n = { type = \"int\" }
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n) SELECT i, i * i % 97 AS rest FROM n";

/// Numbers between which an axis has no room, or too much.
const EDGES: &str = "-- public = true\n-- [types]\n-- at = \"timestamptz\"
SELECT '2024-01-01 00:00:00.000001Z' AS at, 1e17 AS a, 5e-324 AS b, -1e308 AS c, 0.1 AS d UNION ALL SELECT '2024-01-01 00:00:00.000002Z', 1e17 + 16, 0, 1e308, 0.1
UNION ALL SELECT '9999-12-31 23:59:59Z', 1e17, 0, 0.5, 0.1 UNION ALL SELECT '0001-01-01 00:00:00Z', 1e17, 1e-320, 1e-300, 0.1";

/// It fails behind the first mebibytes, which are sent as they come.
const BROKEN: &str = "-- public = true\n-- rows_max = 700
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 800) SELECT i, hex(zeroblob(4000)) AS x FROM n";

const PAGES: &str = "-- public = true\n-- page_by = { id = \"int\" }\n-- page_rows = 2\nSELECT id, origin FROM flight";

fn stage() -> Stage {
    let stage = Stage::new("sqlite:HERE/central.db");
    stage.sql(
        "CREATE TABLE delays (day TEXT, carrier TEXT, delay INTEGER, fare TEXT);
         INSERT INTO delays VALUES ('2024-01-01', 'AA', 5, '10.50'), ('2024-01-02', 'AA', NULL, '9.90'), ('2024-02-03', 'AA', 17, '9.99'),
             ('2024-03-04', 'AA', -3, NULL), ('2024-03-04', 'UA', 1, '1.00'), ('2024-04-05', 'AA', 40, '100.00');",
    );
    for (name, text) in [
        ("broken", BROKEN),
        ("delays", DELAYS),
        ("edges", EDGES),
        ("exact", EXACT),
        ("hostile", HOSTILE),
        ("many", MANY),
        ("pages", PAGES),
    ] {
        stage.query(&format!("{name}.sql"), text);
    }
    stage.query("own.sql", "-- title = \"Mine alone\"\nSELECT :s.user AS me, 1 AS n");
    stage.query("slow.sql", "-- public = true\n-- rows_max = 1\nSELECT id FROM flight");
    stage.ok(&["query", "check"]);
    stage
}

const IS_OVER: &str = "['done', 'failed', 'idle'].includes(document.documentElement.dataset.state)";
const CELLS: &str = "[...document.querySelectorAll('#table tbody tr')].map((row) => [...row.cells].map((cell) => cell.className === 'null' ? null : cell.textContent))";

/// The page with this behind its `#`, once nothing is under way any more.
fn open(browser: &mut Browser, address: &str, asked: &str) {
    browser.open("about:blank").expect("an empty page");
    browser.open(&format!("http://{address}/q{asked}")).expect("the page");
    browser.wait_for(&format!("location.pathname === '/q' && {IS_OVER}")).expect("an end");
}

fn text(browser: &mut Browser, selector: &str) -> String {
    let script = format!("document.querySelector({selector:?})?.textContent ?? 'nothing'");
    browser.eval(&script).expect(selector).as_str().unwrap_or_default().to_owned()
}

fn eval(browser: &mut Browser, script: &str) -> Value {
    browser.eval(script).unwrap_or_else(|error| panic!("{script}: {error:#}"))
}

#[test]
fn a_query_is_asked_by_its_form_and_comes_as_a_table_and_a_plot() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    open(&mut browser, &address, "");
    let listed = "[...document.querySelectorAll('#queries a')].map((link) => link.getAttribute('href'))";
    let expected =
        json!(["#broken", "#delays", "#edges", "#exact", "#flights", "#hostile", "#many", "#pages", "#slow"]);
    assert_eq!(eval(&mut browser, listed), expected, "nothing that is not public");
    open(&mut browser, &address, "#delays");
    let field = |name: &str| {
        let of = ["type", "min", "max", "required", "value"];
        let of = of.map(|key| format!("String(document.getElementById('a-{name}').{key})")).join(", ");
        format!("[{of}]")
    };
    let expected = json!(["number", "0", "9007199254740993", "false", "0"]);
    assert_eq!(eval(&mut browser, &field("least")), expected);
    assert_eq!(eval(&mut browser, &field("since")), json!(["date", "2024-01-01", "2024-12-31", "true", ""]));
    let options = "[...document.querySelectorAll('#a-carrier option')].map((option) => option.value)";
    assert_eq!(eval(&mut browser, options), json!(["AA", "UA"]));
    assert_eq!(text(&mut browser, "#a-least-hint"), "int, from 0 to 9007199254740993, default 0");
    // By the keyboard: what is missing is asked for, and Enter asks.
    eval(&mut browser, "document.getElementById('a-least').focus()");
    browser.press("Enter").expect("a key");
    assert_eq!(eval(&mut browser, "document.activeElement.id"), "a-since", "it must be given");
    eval(&mut browser, "document.getElementById('a-since').value = '2024-01-02'");
    eval(&mut browser, "document.getElementById('a-least').focus(); document.getElementById('a-least').value = '-5'");
    browser.press("Enter").expect("a key");
    assert_eq!(eval(&mut browser, "document.getElementById('a-least').validity.rangeUnderflow"), true);
    eval(&mut browser, "document.getElementById('a-least').value = '1'");
    browser.press("Enter").expect("a key");
    browser.wait_for("document.documentElement.dataset.state === 'done'").expect("an answer");
    assert_eq!(
        eval(&mut browser, CELLS),
        json!([["2024-02-03", "AA", "17", "9.99"], ["2024-04-05", "AA", "40", "100.00"]])
    );
    assert_eq!(eval(&mut browser, "location.hash"), "#delays?carrier=AA&least=1&since=2024-01-02");
    let url = format!("http://{address}/q/delays.json?least=1&since=2024-01-02");
    assert_eq!(eval(&mut browser, "document.getElementById('url').value"), url, "the one that the server leads to");
    assert_eq!(text(&mut browser, "#count"), "2 rows");

    // The same by its URL, with another format and another plot.
    let asked = "#delays.csv?since=2024-01-01&plot.x=day&plot.y=delay&plot.y=fare&plot.as=scatter";
    open(&mut browser, &address, asked);
    let url = format!("http://{address}/q/delays.csv?since=2024-01-01");
    assert_eq!(eval(&mut browser, "document.getElementById('url').value"), url);
    let (head, body) = get(&address, "/q/delays.csv?since=2024-01-01", "");
    assert!(head.starts_with("http/1.1 200") && body.lines().count() == 4, "{head} {body}");
    let points =
        "[...document.querySelectorAll('#canvas .series')].map((series) => series.querySelectorAll('.point').length)";
    assert_eq!(eval(&mut browser, points), json!([3, 3]), "NULL is no number, and nor is 'AA'");
    let tag = "[...document.querySelectorAll('#head dt')].map((name) => `${name.textContent}: ${name.nextSibling.textContent}`)";
    let head = eval(&mut browser, tag).to_string();
    assert!(
        head.contains("Status: 200") && head.contains("ETag: \\\"") && head.contains("public, max-age=60"),
        "{head}"
    );
    let none: [String; 0] = [];
    assert_eq!(browser.complaints(), none);
}

/// Digits are those of the database; NULL is no text; what looks like markup is text.
#[test]
fn values_are_shown_as_they_are() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    open(&mut browser, &address, "#exact?");
    let expected = json!([
        [
            "9223372036854775807",
            "12345678901234567890.10",
            "1e300",
            "{\"a\":12345678901234567890}",
            "AP8=",
            "",
            null,
            "NULL",
            "  two  "
        ],
        ["-1", "0.5", "1.0", null, "", "Zürich", null, "1,2", "007"],
    ]);
    assert_eq!(eval(&mut browser, CELLS), expected);
    open(&mut browser, &address, "#hostile?");
    let expected = json!([[
        "<script>hostile=3</script>",
        "\"><img src=x onerror=\"hostile=5\">",
        "\"><script>hostile=2</script>",
        "</script><svg onload=hostile=6>",
        "1"
    ]]);
    assert_eq!(eval(&mut browser, CELLS), expected);
    assert_eq!(text(&mut browser, "h1"), "<img src=x onerror=hostile=1> & more");
    assert_eq!(text(&mut browser, "th"), "<b onclick=hostile=4>name</b>any");
    open(&mut browser, &address, "#hostile?word=%3Cimg%20src%3Dx%20onerror%3Dhostile%3D7%3E&plot.x=%3Cscript%3E");
    open(&mut browser, &address, "#%3Cimg%20src=x%20onerror=hostile=8%3E?");
    assert!(text(&mut browser, "#page-fault").starts_with("There is no query "));
    assert_eq!(eval(&mut browser, "typeof hostile"), "undefined", "nothing of it has run");
    let none: [String; 0] = [];
    assert_eq!(browser.complaints(), none, "nor was anything kept from running that had come so far");
    // The policy holds whatever the page does.
    let smuggled = "document.body.append(Object.assign(document.createElement('img'), { src: 'x:' })); \
                    (() => { try { document.body.innerHTML = '<img onerror=hostile=9>'; return 'made'; } catch (error) { return error.name; } })()";
    assert_eq!(eval(&mut browser, smuggled), "TypeError");
    let (head, _) = get(&address, "/q", "");
    assert!(head.contains("default-src 'none'; script-src 'sha256-") && !head.contains("unsafe"), "{head}");
}

#[test]
fn long_answers_come_in_part_and_pages_by_links() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    let points = "document.querySelectorAll('#canvas .point').length";
    open(&mut browser, &address, "#many?n=1000");
    assert_eq!((text(&mut browser, "#count").as_str(), eval(&mut browser, points)), ("1,000 rows", json!(1000)));
    // Held by the server, and too large for that.
    for rows in [5_000, 2_000_000] {
        open(&mut browser, &address, &format!("#many?n={rows}"));
        let count = text(&mut browser, "#count");
        assert!(count.starts_with("The first 1,000 rows, ") && count.ends_with("The download has all."), "{count}");
        assert_eq!(eval(&mut browser, &format!("[{CELLS}.length, {CELLS}[999][0]]")), json!([1000, "1000"]));
        assert_eq!(eval(&mut browser, points), 1000);
    }
    // What was not taken runs no more: there is a place for others.
    open(&mut browser, &address, "#pages?");
    assert_eq!(eval(&mut browser, CELLS), json!([["1", "JFK"], ["2", "JFK"]]));
    assert_eq!(eval(&mut browser, "document.getElementById('first').hidden"), true);
    eval(&mut browser, "document.getElementById('next').click()");
    browser.wait_for(&format!("JSON.stringify({CELLS}) === '[[\"3\",\"EWR\"]]'")).expect("the next page");
    assert_eq!(eval(&mut browser, "location.hash"), "#pages?after.id=2");
    assert_eq!(eval(&mut browser, "document.getElementById('next').hidden"), true, "it is the last");
    let url = format!("http://{address}/q/pages.json?after.id=2");
    assert_eq!(eval(&mut browser, "document.getElementById('url').value"), url);
    eval(&mut browser, "history.back()");
    browser.wait_for(&format!("{CELLS}.length === 2")).expect("the page before");
}

#[test]
fn faults_are_told_in_the_gateways_words() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    for (asked, words) in [
        ("#delays?since=2024-13-01", "400: parameter since is "),
        ("#delays?since=2024-01-01&least=x", "400: parameter least is "),
        ("#many?", "400: parameter n is missing"),
        ("#broken?", "The answer was cut off on the way: it is not whole."),
        ("#slow?", "422: the answer has more than 1 rows"),
    ] {
        open(&mut browser, &address, asked);
        let said = text(&mut browser, "#fault");
        assert!(said.contains(words), "{asked}: {said}");
        assert_eq!(eval(&mut browser, "document.getElementById('answer').hidden"), true, "{asked}: no rows beside it");
    }
    stage.stop();
    eval(&mut browser, "location.hash = '#pages?'");
    browser
        .wait_for("document.getElementById('fault').textContent === \"The server can't be reached.\"")
        .expect("told");
}

#[test]
fn a_token_shows_what_is_not_public() {
    let mut stage = stage();
    let mut adding = stage.command(&["user", "add", "anna"]);
    assert!(adding.env("HEADWATER_PASSWORD", "correct horse").status().expect("it runs").success());
    let token = stage.ok(&["token", "anna"]);
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    open(&mut browser, &address, "#own?");
    assert!(text(&mut browser, "#page-fault").contains("There is no query own that you may ask. Sign in"));
    let sign_in = |browser: &mut Browser, token: &str| {
        eval(browser, "document.getElementById('login').open = true; document.getElementById('token').focus()");
        browser.write(token).expect("typed");
        browser.press("Enter").expect("a key");
    };
    sign_in(&mut browser, "of-nobody");
    browser.wait_for("document.getElementById('login-fault').textContent.startsWith('401: ')").expect("it is refused");
    assert_eq!(eval(&mut browser, "[sessionStorage.length, localStorage.length, document.cookie]"), json!([0, 0, ""]));
    eval(&mut browser, "document.getElementById('token').value = ''");
    sign_in(&mut browser, token.trim());
    browser.wait_for("document.documentElement.dataset.state === 'done'").expect("the answer");
    assert_eq!(eval(&mut browser, CELLS), json!([["anna", "1"]]));
    let curl = eval(&mut browser, "document.getElementById('curl').value");
    assert_eq!(curl, format!("curl -H \"Authorization: Bearer $TOKEN\" 'http://{address}/q/own.json'"));
    assert_eq!(eval(&mut browser, "document.querySelectorAll('#queries a').length"), 10);
    let kept = eval(&mut browser, "[Object.keys(sessionStorage), localStorage.length, document.cookie]");
    assert_eq!(kept, json!([["headwater.token"], 0, ""]), "in this tab, and nowhere else");
    eval(&mut browser, "document.getElementById('logout').click()");
    browser.wait_for("document.querySelectorAll('#queries a').length === 9").expect("signed out");
    assert_eq!(
        eval(&mut browser, "[sessionStorage.length, document.getElementById('query').hidden]"),
        json!([0, true])
    );
}

#[test]
fn a_plot_has_axes_that_can_be_read() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    browser.window(1000, 900, false).expect("a window");
    let ticks =
        |axis: &str| format!("[...document.querySelectorAll('#canvas .{axis}')].map((text) => text.textContent)");
    open(&mut browser, &address, "#delays?since=2024-01-01");
    assert_eq!(eval(&mut browser, &ticks("up")), json!(["0", "10", "20", "30", "40"]));
    let expected = json!(["2024-01", "2024-02", "2024-03", "2024-04"]);
    assert_eq!(eval(&mut browser, &ticks("across")), expected);
    open(&mut browser, &address, "#delays?since=2024-01-01&plot.x=carrier&plot.as=bars&plot.y=fare");
    assert_eq!(eval(&mut browser, &ticks("across")), json!(["AA", "AA", "AA"]));
    assert_eq!(eval(&mut browser, "document.querySelectorAll('#canvas rect.point').length"), 3);
    let label = eval(&mut browser, "document.querySelector('#canvas svg').getAttribute('aria-label')");
    assert_eq!(label, "fare by carrier: 3 points");
    open(&mut browser, &address, "#flights?origin=JFK");
    assert!(text(&mut browser, "#plot-note").starts_with("1 of 2 rows have no place in the plot: NULL"));
    // Whatever the numbers are, there are a few ticks and every mark is somewhere.
    for y in ["a", "b", "c", "d"] {
        for x in ["at", "a", "b", "c", ""] {
            open(&mut browser, &address, &format!("#edges?plot.x={x}&plot.y={y}&plot.as=line"));
            assert_eq!(eval(&mut browser, "document.documentElement.dataset.state"), "done", "{y} by {x}");
            let drawn = eval(&mut browser, "document.getElementById('canvas').innerHTML");
            assert!(
                !drawn.to_string().contains("NaN") && !drawn.to_string().contains("Infinity"),
                "{y} by {x}: {drawn}"
            );
            for axis in ["up", "across"] {
                let count = eval(&mut browser, &format!("{}.length", ticks(axis))).as_u64().unwrap_or_default();
                assert!((2..20).contains(&count), "{y} by {x}: {count} {axis}: {drawn}");
            }
        }
    }
}

/// At the width of a small phone nothing is wider than the window; both schemes are the page's own.
#[test]
fn it_fits_a_phone_and_both_schemes() {
    let mut stage = stage();
    let address = stage.serve();
    let mut browser = Browser::start().expect("a browser");
    let mut pages = Vec::new();
    for (width, height, is_dark) in [(1280, 1600, false), (1280, 1600, true), (360, 2200, false), (360, 2200, true)] {
        browser.window(width, height, is_dark).expect("a window");
        for asked in ["#delays?since=2024-01-01", "#exact?", "#many?n=300", "#many?", ""] {
            open(&mut browser, &address, asked);
            let wide = eval(&mut browser, "document.documentElement.scrollWidth");
            assert_eq!(wide, width, "{asked}");
            if let Some(folder) = std::env::var_os("HEADWATER_PICTURES") {
                let name = format!("{}-{width}-{is_dark}.png", asked.trim_matches(['#', '?']).replace('?', "-"));
                browser.picture(&std::path::Path::new(&folder).join(name)).expect("a picture");
            }
        }
        pages.push(eval(&mut browser, "getComputedStyle(document.body).backgroundColor"));
    }
    assert!(pages[0] == pages[2] && pages[1] == pages[3] && pages[0] != pages[1], "{pages:?}");
    // Everything that can be done has a name for those who don't see it.
    open(&mut browser, &address, "#delays?since=2024-01-01");
    let nameless = "[...document.querySelectorAll('input, select, textarea, button, a[href], summary, [role=img]')].filter((each) => \
                    !(each.labels?.length || each.ariaLabel || each.getAttribute('aria-label') || each.textContent.trim())).map((each) => each.outerHTML)";
    assert_eq!(eval(&mut browser, nameless), json!([]));
    browser.press("Tab").expect("a key");
    assert_eq!(eval(&mut browser, "document.activeElement.id"), "skip", "past the list, first of all");
    eval(&mut browser, "document.querySelector('#canvas svg').focus()");
    browser.press("ArrowRight").expect("a key");
    assert_eq!(
        eval(&mut browser, "[...document.querySelectorAll('#canvas .told')].map((text) => text.textContent)"),
        json!(["day: 2024-01-01", "delay: 5"])
    );
}

#[test]
fn the_page_itself_is_kept_by_caches() {
    let mut stage = stage();
    let address = stage.serve();
    let (head, body) = get(&address, "/q", "");
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/html; charset=utf-8"), "{head}");
    assert!(head.contains("cache-control: public, no-cache") && body.starts_with("<!doctype html>"), "{head}");
    let elsewhere =
        body.match_indices("http").filter(|(place, _)| !body[*place..].starts_with("http://www.w3.org/2000/svg"));
    assert_eq!(
        elsewhere.map(|(place, _)| &body[place..place + 20]).collect::<Vec<_>>(),
        Vec::<&str>::new(),
        "nothing from elsewhere"
    );
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let (head, body) = get(&address, "/q", &format!("If-None-Match: {tag}\r\n"));
    assert!(head.starts_with("http/1.1 304") && head.contains(&format!("etag: {tag}")) && body.is_empty(), "{head}");
}
