//! What there is to ask, for programs: an `OpenAPI` 3.1 document (spec.openapis.org/oas/v3.1.1) of the named queries.

use headwater_protocol::{Type, Value};
use serde_json::{Map, Value as Json, json};

use crate::format::Format;
use crate::query::{AFTER, Parameter, Query, Who, text_of};

/// The document of these queries.
pub(crate) fn document<'q>(queries: impl Iterator<Item = &'q Query>) -> Json {
    let mut paths = Map::new();
    for query in queries {
        for (ending, format) in Format::ALL {
            paths.insert(
                format!("/q/{}.{ending}", query.name),
                json!({ "get": operation(query, Some((ending, format))) }),
            );
        }
        paths.insert(format!("/q/{}", query.name), json!({ "get": operation(query, None) }));
    }
    json!({
        "openapi": "3.1.1",
        "info": { "title": "Named queries", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "password": { "type": "http", "scheme": "basic" },
            },
            "schemas": {
                "Fault": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": { "error": { "type": "string" }, "message": { "type": "string" } },
                },
            },
        },
    })
}

/// Without an ending, `Accept` decides in which form it comes.
fn operation(query: &Query, ending: Option<(&str, Format)>) -> Json {
    let security = match query.who {
        Who::Public => json!([]),
        Who::Known | Who::Users(_) => json!([{ "token": [] }, { "password": [] }]),
    };
    let title = if query.title.is_empty() { &query.name } else { &query.title };
    let (id, formats) = match ending {
        Some((ending, format)) => (format!("{}.{ending}", query.name), vec![format]),
        None => (query.name.clone(), Format::BY_ACCEPT.to_vec()),
    };
    json!({
        "operationId": id,
        "summary": title,
        "security": security,
        "parameters": query.parameters.iter().map(parameter).chain(after(query)).collect::<Vec<_>>(),
        "responses": responses(query, &formats, ending.is_some()),
    })
}

/// All that is answered to this.
fn responses(query: &Query, formats: &[Format], has_ending: bool) -> Json {
    let fault = |what: &str| {
        let schema = json!({ "$ref": "#/components/schemas/Fault" });
        json!({ "description": what, "content": { "application/json": { "schema": schema } } })
    };
    let mut responses = json!({
        "200": answer(query, formats),
        "304": { "description": "as the client has it" },
        "308": { "description": "to the one URL of these arguments" },
        "400": fault("an argument is none"),
        "404": fault("there is no such query any more"),
        "422": fault("the answer is larger than the query allows, has a value that the format has no room for, or the database can't compute it"),
        "500": fault("the query fits the database no more, its pages would lose rows, or the server failed: its log says why"),
        "503": fault("too many ask, or the database is not there: Retry-After says when to come back"),
        "504": fault("the query takes longer than it may"),
    });
    if query.who != Who::Public {
        responses["401"] = fault("nobody is known by these credentials");
        responses["403"] = fault("this user may not ask");
    }
    if !has_ending {
        responses["406"] = fault("there is none of the forms that Accept names");
    }
    responses
}

/// Where a page begins.
fn after(query: &Query) -> impl Iterator<Item = Json> {
    let by = query.page.iter().flat_map(|page| &page.by);
    by.map(|(name, kind)| {
        let mut schema = schema(*kind);
        schema["x-type"] = kind.name().into();
        let what = format!("{name} of the last row of the page before; all of {AFTER}* or none: the first page");
        json!({ "name": format!("{AFTER}{name}"), "in": "query", "required": false, "description": what, "schema": schema })
    })
}

fn answer(query: &Query, formats: &[Format]) -> Json {
    let of = |format: &Format| {
        let schema = json!({ "schema": rows(*format, query.page.is_some()) });
        (format.content_type().to_owned(), schema)
    };
    let content: Map<String, Json> = formats.iter().map(of).collect();
    let Some(page) = &query.page else { return json!({ "description": "the rows", "content": content }) };
    let link = json!({
        "description": "<URL>; rel=\"next\": the next page; not there with the last one",
        "schema": { "type": "string" },
    });
    json!({
        "description": format!("a page of the rows, {} at most", page.rows),
        "headers": { "Link": link },
        "content": content,
    })
}

fn rows(format: Format, is_page: bool) -> Json {
    let of = |row: Json| {
        let column = json!({ "type": "object", "properties": { "name": { "type": "string" }, "type": { "type": "string" }, "json": { "type": "string" } } });
        let mut schema = json!({
            "type": "object",
            "required": ["columns", "rows", "count"],
            "properties": {
                "columns": { "type": "array", "items": column },
                "rows": { "type": "array", "items": row },
                "count": { "type": "integer" },
            },
        });
        if is_page {
            schema["properties"]["next"] =
                json!({ "type": "string", "description": "the URL of the next page; not there with the last one" });
        }
        schema
    };
    match format {
        Format::Json => of(json!({ "type": "object" })),
        Format::JsonArrays => of(json!({ "type": "array" })),
        Format::Ndjson | Format::Csv => json!({ "type": "string" }),
        Format::Arrow => json!({}),
    }
}

fn parameter(parameter: &Parameter) -> Json {
    let mut schema = schema(parameter.kind);
    let mut add = |key: &str, value: Json| schema.as_object_mut().map(|schema| schema.insert(key.to_owned(), value));
    if let Some(default) = &parameter.default {
        add("default", plain(default));
    }
    if !parameter.values.is_empty() {
        add("enum", parameter.values.iter().map(plain).collect());
    }
    // The specification's bounds are of numbers, and it has fewer types: these are our own, as it allows.
    let is_number = matches!(parameter.kind, Type::Int | Type::Real);
    let keys = if is_number { ["minimum", "maximum"] } else { ["x-minimum", "x-maximum"] };
    for (key, bound) in keys.into_iter().zip(&parameter.range) {
        if let Some(bound) = bound {
            add(key, plain(bound));
        }
    }
    add("x-type", parameter.kind.name().into());
    if matches!(parameter.kind, Type::Text | Type::Json) {
        add("maxLength", parameter.length_max.into());
    }
    json!({ "name": parameter.name, "in": "query", "required": parameter.default.is_none(), "schema": schema })
}

fn schema(kind: Type) -> Json {
    match kind {
        Type::Bool => json!({ "type": "boolean" }),
        Type::Int => json!({ "type": "integer", "format": "int64" }),
        Type::Real => json!({ "type": "number", "format": "double" }),
        Type::Decimal => json!({ "type": "string", "format": "decimal" }),
        Type::Date => json!({ "type": "string", "format": "date" }),
        Type::Uuid => json!({ "type": "string", "format": "uuid" }),
        Type::Text | Type::Bytes | Type::Time | Type::Timestamp | Type::Timestamptz | Type::Json => {
            json!({ "type": "string" })
        }
    }
}

/// A value as the document has it.
fn plain(value: &Value) -> Json {
    match value {
        Value::Bool(truth) => (*truth).into(),
        Value::Int(number) => (*number).into(),
        Value::Real(real) if real.is_finite() => (*real).into(),
        other => text_of(other).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_as_programs_see_it() {
        let text = "-- title = \"Flights\"\n-- public = true\n-- [parameters]\n-- origin = { type = \"text\", length_max = 3 }\n\
                    -- month = { type = \"int\", min = 1, max = 12, default = 7 }\n\
                    -- kind = { type = \"text\", values = [\"all\", \"late\"], default = \"all\" }\n\
                    SELECT 1 AS a WHERE :origin = :kind AND :month = 1";
        let flights = Query::parse("flights.sql", text).expect("a query");
        let own = Query::parse("own.sql", "SELECT :s.user AS a").expect("a query");
        // Whose name is that of another in one form.
        let like = Query::parse("own_arrays.sql", "SELECT 1 AS a").expect("a query");
        let document = document([&flights, &own, &like].into_iter());
        let get = &document["paths"]["/q/flights.csv"]["get"];
        assert_eq!(
            (&get["summary"], &get["security"], &get["operationId"]),
            (&json!("Flights"), &json!([]), &json!("flights.csv"))
        );
        let expected = json!([
            { "name": "origin", "in": "query", "required": true, "schema": { "type": "string", "maxLength": 3, "x-type": "text" } },
            {
                "name": "month", "in": "query", "required": false,
                "schema": { "type": "integer", "format": "int64", "default": 7, "minimum": 1, "maximum": 12, "x-type": "int" },
            },
            {
                "name": "kind", "in": "query", "required": false,
                "schema": { "type": "string", "default": "all", "enum": ["all", "late"], "maxLength": 1000, "x-type": "text" },
            },
        ]);
        assert_eq!(get["parameters"], expected);
        assert_eq!(document["paths"].as_object().map(Map::len), Some(18), "each in each form, and by Accept");
        assert_eq!(document["paths"]["/q/own.json"]["get"]["security"], json!([{ "token": [] }, { "password": [] }]));
        let ids: std::collections::BTreeSet<String> = document["paths"]
            .as_object()
            .expect("paths")
            .values()
            .map(|path| path["get"]["operationId"].to_string())
            .collect();
        assert_eq!(ids.len(), 18, "each has a name of its own");
    }

    #[test]
    fn programs_see_which_answers_there_are() {
        let open = Query::parse("open.sql", "-- public = true\nSELECT 1 AS a").expect("a query");
        let own = Query::parse("own.sql", "SELECT :s.user AS a").expect("a query");
        let document = document([&open, &own].into_iter());
        let answers = |path: &str| {
            let responses = document["paths"][path]["get"]["responses"].as_object().expect("answers");
            responses.keys().map(|status| status.parse().expect("a status")).collect::<Vec<u16>>()
        };
        let always = [200, 304, 308, 400, 404, 422, 500, 503, 504];
        assert_eq!(answers("/q/open.csv"), always);
        let with = |more: &[u16]| {
            let mut all = [&always[..], more].concat();
            all.sort_unstable();
            all
        };
        assert_eq!(answers("/q/open"), with(&[406]));
        assert_eq!(answers("/q/own.arrow"), with(&[401, 403]));
        assert_eq!(answers("/q/own"), with(&[401, 403, 406]));
        let content = document["paths"]["/q/open"]["get"]["responses"]["200"]["content"].as_object().expect("forms");
        let kinds: Vec<_> = content.keys().map(|kind| kind.split(';').next().expect("a type")).collect();
        let expected = ["application/json", "application/vnd.apache.arrow.stream", "application/x-ndjson", "text/csv"];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn programs_see_how_to_get_the_next_page() {
        let text = "-- page_by = { day = \"date\", id = \"int\" }\n-- page_rows = 7\nSELECT day, id FROM t";
        let paged = Query::parse("paged.sql", text).expect("a query");
        let whole = Query::parse("whole.sql", "SELECT day, id FROM t").expect("a query");
        let document = document([&paged, &whole].into_iter());
        let get = |path: &str| &document["paths"][path]["get"];
        for ending in ["json", "arrays.json", "csv", "ndjson", "arrow"] {
            let paged = get(&format!("/q/paged.{ending}"));
            let names: Vec<_> = paged["parameters"].as_array().expect("parameters").iter().collect();
            assert_eq!(names.len(), 2);
            for (parameter, (name, kind)) in names.iter().zip([("after.day", "date"), ("after.id", "int")]) {
                assert_eq!((&parameter["name"], &parameter["in"]), (&json!(name), &json!("query")));
                assert_eq!((&parameter["required"], &parameter["schema"]["x-type"]), (&json!(false), &json!(kind)));
            }
            let answer = &paged["responses"]["200"];
            assert_eq!(answer["headers"]["Link"]["schema"], json!({ "type": "string" }), "{ending}");
            let whole = get(&format!("/q/whole.{ending}"));
            assert_eq!((&whole["parameters"], &whole["responses"]["200"]["headers"]), (&json!([]), &Json::Null));
        }
        let next = |path: &str| {
            get(path)["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["next"]["type"].clone()
        };
        assert_eq!([next("/q/paged.json"), next("/q/paged.arrays.json")], [json!("string"), json!("string")]);
        assert_eq!(next("/q/whole.json"), Json::Null);
    }
}
