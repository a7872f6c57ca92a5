//! What a remote is told of a model: everything but the SQL that finds memberships, as JSON, and its fingerprint.
//!
//! A remote gets this JSON from a server, so [`Model::from_json`] checks every index, name and limit before anything is built from
//! it. The fingerprint is what both sides compare at each sync: equal fingerprints, equal public form.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::validate::{self, Violation};
use crate::{Model, OnError, Reference};

/// The most bytes in a model's JSON.
pub const JSON_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A model's JSON that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FromJsonError {
    /// It is too long.
    #[error("the model's JSON has {actual} bytes, expected at most {JSON_BYTES_MAX}")]
    TooLarge {
        /// Its length.
        actual: usize,
    },
    /// It is no JSON, or not a model's.
    #[error("the model's JSON can't be read; update this program if the server is newer")]
    Json(#[from] serde_json::Error),
    /// It says what no model may say.
    #[error("the model {model:?} is not valid: {violation}")]
    Invalid {
        /// The model's name.
        model: String,
        /// The first rule that it breaks.
        violation: Violation,
    },
}

impl Model {
    /// A copy without the SQL that finds memberships, without scripts and without what only the server decides: what remotes may see.
    #[must_use]
    pub fn public(&self) -> Model {
        let mut public = self.clone();
        public.on_error = OnError::default();
        public.values.clear();
        for partition in &mut public.partitions {
            partition.members.clear();
        }
        for table in &mut public.tables {
            table.scripts.clear();
            table.shared = false;
        }
        public
    }

    /// The public form as a remote keeps it: without the references that it does not enforce. Its fingerprint is not the model's.
    #[must_use]
    pub fn enforced(&self) -> Model {
        let mut kept = self.public();
        for (number, table) in kept.tables.iter_mut().enumerate() {
            let through = table.through().cloned();
            let is_kept = |place: usize, reference: &Reference| {
                through.as_ref() == Some(reference) || !self.unenforced.contains(&(number, place))
            };
            let references = std::mem::take(&mut table.references).into_iter().enumerate();
            let mut places = HashMap::new();
            for (place, reference) in references.filter(|(place, reference)| is_kept(*place, reference)) {
                places.insert(place, table.references.len());
                table.references.push(reference);
            }
            let by = table.partition.as_mut().and_then(|partition| partition.through.as_mut());
            if let Some((through, place)) = by.and_then(|through| places.get(through).map(|place| (through, *place))) {
                *through = place;
            }
        }
        kept.unenforced.clear();
        kept
    }

    /// The public form as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.public()).expect("a model has no maps with keys that are not text")
    }

    /// Reads the public form, and checks it: whatever it was made by, indexes, names and limits hold afterwards.
    pub fn from_json(json: &str) -> Result<Model, FromJsonError> {
        if json.len() > JSON_BYTES_MAX {
            return Err(FromJsonError::TooLarge { actual: json.len() });
        }
        let model: Model = serde_json::from_str(json)?;
        match validate::violations(&model).into_iter().next() {
            None => Ok(model.public()),
            Some(violation) => Err(FromJsonError::Invalid { model: model.name, violation }),
        }
    }

    /// The first 8 bytes of the SHA-256 of [`Model::to_json`], big-endian: the same for the same public form.
    pub fn fingerprint(&self) -> u64 {
        let digest = Sha256::digest(self.to_json().as_bytes());
        digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
