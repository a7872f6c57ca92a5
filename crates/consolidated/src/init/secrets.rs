//! What of a database looks as if it were not for remotes: secrets, and what frameworks keep for themselves. By names alone, so a person
//! decides: `init` writes it into the model as comments.

use headwater_protocol::Type;

use crate::catalogue::CatalogueColumn;

/// Words of which one makes a column a secret.
const SECRET: [&str; 15] = [
    "password",
    "passwd",
    "passwords",
    "pwd",
    "passphrase",
    "passcode",
    "secret",
    "secrets",
    "salt",
    "token",
    "tokens",
    "hash",
    "digest",
    "otp",
    "totp",
];
/// Words that make a secret with the word behind them.
const SECRET_PAIRS: [(&str, &str); 13] = [
    ("pass", "crypt"),
    ("pass", "hash"),
    ("pass", "word"),
    ("pass", "phrase"),
    ("api", "key"),
    ("private", "key"),
    ("secret", "key"),
    ("access", "key"),
    ("auth", "key"),
    ("signing", "key"),
    ("encryption", "key"),
    ("session", "key"),
    ("recovery", "code"),
];
/// Tables of frameworks and of tools for migrations, in small letters; with `*` at the end, all that begin so.
const BOOKKEEPING: [&str; 21] = [
    "schema_migrations",
    "ar_internal_metadata",
    "flyway_*",
    "schema_version",
    "alembic_version",
    "django_migrations",
    "django_session",
    "django_admin_log",
    "databasechangelog",
    "databasechangeloglock",
    "knex_migrations",
    "knex_migrations_lock",
    "_prisma_migrations",
    "__drizzle_migrations",
    "__efmigrationshistory",
    "_sqlx_migrations",
    "__diesel_schema_migrations",
    "doctrine_migration_versions",
    "goose_db_version",
    "sequelizemeta",
    "phinxlog",
];

/// Why a column is better not sent to remotes, if its name says so: it looks like a password, a hash, a token or a key.
pub(super) fn of_column(column: &CatalogueColumn) -> Option<&'static str> {
    let holds_secrets = column.kind.is_some_and(|kind| matches!(kind.base, Type::Text | Type::Bytes | Type::Uuid));
    (holds_secrets && is_secret(&words(&column.name))).then_some("looks like a secret")
}

/// Why a table is better not sent to remotes, if its name says so.
pub(super) fn of_table(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let is_named = |entry: &str| match entry.strip_suffix('*') {
        Some(start) => lower.starts_with(start),
        None => lower == entry,
    };
    let words = words(name);
    if BOOKKEEPING.iter().any(|entry| is_named(entry)) {
        Some("is the bookkeeping of a framework or of a tool for migrations")
    } else if words.iter().any(|word| word.starts_with("oauth")) || is_secret(&words) {
        Some("looks as if it held secrets")
    } else {
        None
    }
}

fn is_secret(words: &[String]) -> bool {
    words.iter().any(|word| SECRET.contains(&word.as_str()))
        || words.windows(2).any(|pair| {
            SECRET_PAIRS.iter().any(|(first, second)| pair[0] == *first && pair[1].trim_end_matches('s') == *second)
        })
        || words.iter().any(|word| SECRET_PAIRS.iter().any(|(first, second)| *word == format!("{first}{second}")))
}

/// The words of a name, in small letters: `resetToken`, `reset_token` and `RESET-TOKEN` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || was_small && c.is_uppercase() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_small = c.is_lowercase() || c.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use headwater_model::ColumnType;

    use super::*;

    fn column(name: &str, kind: Type) -> CatalogueColumn {
        CatalogueColumn {
            name: name.to_owned(),
            declared: String::new(),
            kind: Some(ColumnType::from(kind)),
            nullable: true,
            generated: false,
            has_default: false,
            equality: None,
            spellings: None,
        }
    }

    #[test]
    fn secrets_are_told_by_their_names() {
        for name in [
            "pass_crypt",
            "password",
            "PasswordHash",
            "encrypted_password",
            "resetToken",
            "api_key",
            "APIKEY",
            "api_keys",
            "salt",
            "client_secret",
            "creation-token",
            "private_key",
            "passHash",
            "token",
        ] {
            assert!(of_column(&column(name, Type::Text)).is_some(), "{name}");
        }
        for name in
            ["name", "sort_key", "parent_key", "passenger", "tokenizer", "hashtag", "secretary", "compass_word", "key"]
        {
            assert_eq!(of_column(&column(name, Type::Text)), None, "{name}");
        }
        for kind in [Type::Int, Type::Bool, Type::Timestamp] {
            assert_eq!(of_column(&column("password_changed", kind)), None, "{kind:?}");
        }
    }

    #[test]
    fn tables_that_are_not_for_remotes_are_told_by_their_names() {
        for name in [
            "schema_migrations",
            "flyway_schema_history",
            "__EFMigrationsHistory",
            "oauth_nonces",
            "oauth2_clients",
            "access_tokens",
            "SequelizeMeta",
        ] {
            assert!(of_table(name).is_some(), "{name}");
        }
        for name in ["customer", "migrations_of_birds", "session", "key", "flyways"] {
            assert_eq!(of_table(name), None, "{name}");
        }
    }
}
