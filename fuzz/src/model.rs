//! What a model's author writes: the model file, membership queries, scripts; and the JSON that a server hands out.

use headwater_model::parse::parse;
use headwater_model::script::Step;
use headwater_model::write::{Comments, to_toml};
use headwater_model::{Model, sql as query};

/// A model file: what is read is written so that it is read alike, and travels.
pub fn file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse("m.toml", text) {
        Ok(model) => {
            let written = to_toml(&model, &Comments::default());
            assert_eq!(parse("m.toml", &written).as_ref(), Ok(&model), "written as {written}");
            let public = Model::from_json(&model.to_json()).expect("a valid model's JSON");
            assert_eq!(public.fingerprint(), model.fingerprint(), "the public form is whole");
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "a refusal says why");
            for error in errors {
                assert!(!error.to_string().is_empty(), "an error has a text");
            }
        }
    }
}

/// A model as JSON, as a remote gets it.
pub fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(model) = Model::from_json(text) else { return };
    let again = Model::from_json(&model.to_json()).expect("our own JSON");
    assert_eq!(again, model);
}

/// A query: parameters are found where they are, and putting each back where it was changes nothing.
pub fn sql(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut end = 0;
    for parameter in query::parameters(text) {
        assert!(parameter.place.start >= end, "parameters come in order");
        assert_eq!(&text[parameter.place.clone()], parameter.name);
        end = parameter.place.end;
    }
    assert_eq!(query::with_parameters(text, str::to_owned), text);
}

const SHOP: &str = r#"
name = "shop"
version = 1
[tables.item]
key = ["id"]
columns = { id = "int not null", name = "text" }
[tables.item.scripts]
upload_insert = "s"
upload_update = "s"
upload_delete = "s"
upload_fetch = "s"
download_cursor = "s"
download_delete_cursor = "s"
resolve_conflict = "s"
"#;

/// A script, at every step.
pub fn script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut model = parse("m.toml", SHOP).expect("a valid model");
    model.load_scripts(|_| Ok::<_, ()>(text.to_owned())).expect("it is read");
    let table = &model.tables[0];
    let faults = table.script_faults();
    for step in Step::ALL {
        let Some(script) = table.script(step) else { continue };
        for parameter in query::parameters(&script.sql) {
            let known = table.script_parameter(step, parameter.name).is_ok();
            let told = faults.iter().any(|(of, _)| *of == step);
            assert!(known || told, "{} at {} is neither known nor told", parameter.name, step.name());
        }
    }
}
