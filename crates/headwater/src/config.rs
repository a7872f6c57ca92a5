//! `headwater.toml`: where the database is, which models are served, and the server's options.
//!
//! ```toml
//! models = ["models/flights-1.toml"]    # paths are relative to this file; several versions live side by side; none where named queries alone are served
//!
//! [database]
//! url = "sqlite:central.db"             # postgres://user@host/database, or mariadb://...; HEADWATER_DATABASE and --database go before it
//!
//! [gateway]                             # named queries over HTTP; without it there are none
//! queries = "queries"                   # a folder of .sql files
//!
//! [pool]                                # what uploads, downloads and answers have in memory together
//! memory_bytes = 134217728
//!
//! [admin]                               # an administration listener, for `headwater tune`; without it there is none
//! listen = "127.0.0.1:7341"
//!
//! [server]                              # each option has a default; HEADWATER_SERVER_WORKERS=16 goes before the file
//! listen = "127.0.0.1:7340"
//! ```
//!
//! What goes before what: an argument, then the environment, then the file, then the default.

mod admin;
mod cursor;
mod gateway;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use headwater_bufferpool::Pools;
use headwater_consolidated::{Connection, Plan, system};
use headwater_gateway::query::{Query, QueryError};
use headwater_gateway::{CursorSettings, FrontierSettings, Settings};
use headwater_model::parse::{closest, in_plain_words, parse};
use headwater_model::{Model, Table};
use headwater_protocol::packer::Packing;
use headwater_server::Config as ServerConfig;
use serde::Deserialize;

pub use self::admin::AdminConfig;
use self::admin::AdminSection;
use self::gateway::GatewaySection;
pub(crate) use self::gateway::check_sending;
use crate::cli::Global;
use crate::database::Address;
use crate::exit::{OrUsage as _, usage};
use crate::pool::{Known, PoolSection};

/// Environment variables that set the server's options begin with this.
const SERVER_VARIABLES: &str = "HEADWATER_SERVER_";
/// Those that set the pool's.
const POOL_VARIABLES: &str = "HEADWATER_POOL_";
/// Those that set the administration listener's.
const ADMIN_VARIABLES: &str = "HEADWATER_ADMIN_";
/// And those that set the gateway's.
const GATEWAY_VARIABLES: &str = "HEADWATER_GATEWAY_";
/// Sections within these: `HEADWATER_GATEWAY_FRONTIER_URL`, `--set gateway.frontier.url=...`; `HEADWATER_SERVER_PACKING_FILL`, `--set packing.fill=...`.
const INNER: [&str; 3] = ["frontier", "cursor", "packing"];

/// The configuration, with its places resolved.
pub struct Config {
    /// The consolidated database.
    pub database: Address,
    /// The model files.
    pub models: Vec<PathBuf>,
    /// The text of the file; for the server's options.
    gateway: Option<GatewaySection>,
    has_admin: bool,
    text: String,
    folder: PathBuf,
    file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    models: Vec<PathBuf>,
    database: Option<DatabaseSection>,
    gateway: Option<GatewaySection>,
    admin: Option<AdminSection>,
    /// This and the next are read for their faults' places alone; [`Config::server`] reads it again with what goes before it.
    #[serde(default)]
    #[expect(dead_code)]
    server: ServerConfig,
    #[serde(default)]
    #[expect(dead_code)]
    pool: PoolSection,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DatabaseSection {
    url: String,
}

/// What the gateway is to serve.
pub struct GatewayConfig {
    /// The named queries.
    pub queries: Vec<Query>,
    /// What it may take.
    pub settings: Settings,
    /// How full the pieces of answers get that are sent as they come.
    pub packing: Packing,
    /// The Frontier protocol, if it is served.
    pub frontier: Option<FrontierConfig>,
    /// Remote cursors, if there are any.
    pub cursors: Option<CursorSettings>,
}

/// The Frontier protocol, and where its SQL is run.
pub struct FrontierConfig {
    /// As the gateway takes it.
    pub settings: FrontierSettings,
    /// The database as a role of its own sees it; `None`: the consolidated database, as the server's role sees it.
    pub database: Option<Address>,
    /// It may be run though its role can read the accounts.
    pub reads_accounts: bool,
}

/// An error that tells these faults, if there are any.
pub fn without(faults: &[QueryError]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = faults.iter().map(|fault| format!("  {fault}")).collect();
    Err(usage(format!("the named queries can't be served:\n{}", lines.join("\n"))))
}

/// The named queries of a folder, each with its file, and what is wrong with others.
pub type Queries = (Vec<(PathBuf, Query)>, Vec<QueryError>);

impl Config {
    /// Reads the file that the arguments name.
    pub fn read(global: &Global) -> Result<Config> {
        let file = &global.config;
        let text = std::fs::read_to_string(file).or_usage(|| {
            format!("{} could not be read; `headwater init` writes it, --config names another", file.display())
        })?;
        Config::of(global, text)
    }

    /// The configuration that the file would be with this text.
    pub fn of(global: &Global, text: String) -> Result<Config> {
        let file = &global.config;
        let read: File = toml::from_str(&text)
            .map_err(|error| placed(&text, &error))
            .or_usage(|| format!("{} can't be used", file.display()))?;
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        let database = match (&global.database, read.database) {
            (Some(url), _) => Address::parse(url, Path::new(""))?,
            (None, Some(database)) => Address::parse(&database.url, &folder)?,
            (None, None) => {
                let what =
                    "has no [database] with url = \"sqlite:FILE\" or \"postgres://...\"; set it, or use --database";
                return Err(usage(format!("{} {what}", file.display())));
            }
        };
        let models = read.models.iter().map(|model| folder.join(model)).collect();
        let gateway = match read.gateway {
            Some(_) => Some(gateway_section(&text, file, &[])?),
            None => None,
        };
        let has_admin = read.admin.is_some();
        Ok(Config { database, models, gateway, has_admin, text, folder, file: file.clone() })
    }

    /// The file, as it was named.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The file's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The administration listener, with these arguments (`option=value`); `None`: there is none.
    pub fn admin(&self, arguments: &[(String, String)]) -> Result<Option<AdminConfig>> {
        if !self.has_admin {
            return match arguments.first() {
                Some((name, _)) => Err(usage(format!("admin.{name} is set, and there is no [admin]"))),
                None => Ok(None),
            };
        }
        let section = overlaid(&self.text, "admin", ADMIN_VARIABLES, arguments)?;
        let section = section.try_into::<AdminSection>().map_err(|error| explained(&error)).or_usage(|| {
            let file = self.file.display();
            format!("the administration listener's options can't be used ([admin] in {file}, {ADMIN_VARIABLES}*, --set admin.OPTION)")
        })?;
        section.config(&self.file).map(Some)
    }

    /// A connection to the consolidated database, for what Headwater keeps in it.
    pub fn connect_installed(&self) -> Result<Box<dyn Connection>> {
        let mut connection = self.database.connect()?;
        if !system::has_accounts(&mut *connection)? {
            return Err(usage("Headwater's own tables are not in this database; `headwater track` makes them"));
        }
        Ok(connection)
    }

    /// The models, ready: names and versions of each name. No two are the same, and none has a table with another's name and another
    /// key.
    pub fn plans(&self) -> Result<Vec<Plan>> {
        if self.models.is_empty() {
            let file = self.file.display();
            return Err(usage(format!(
                "{file} names no model, expected one or several: models = [\"models/NAME-1.toml\"] (or none and a [gateway]: then nothing is synced)"
            )));
        }
        let models: Vec<Model> = self.models.iter().map(|file| read_model(file)).collect::<Result<_>>()?;
        for (place, model) in models.iter().enumerate() {
            for other in &models[..place] {
                beside(other, model)?;
            }
        }
        Ok(models.into_iter().map(Plan::new).collect())
    }

    /// The models that are to be served: none where there are named queries alone.
    pub fn served_plans(&self) -> Result<Vec<Plan>> {
        if self.models.is_empty() && self.has_gateway() { Ok(Vec::new()) } else { self.plans() }
    }

    /// Whether there is a gateway.
    pub fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }

    /// The gateway, with these arguments (`option=value`); `None`: there is no gateway. A query with a fault is one too many.
    pub fn gateway(&self, arguments: &[(String, String)]) -> Result<Option<GatewayConfig>> {
        let Some(section) = &self.gateway else {
            return match arguments.first() {
                Some((name, _)) => Err(usage(format!("gateway.{name} is set, and there is no [gateway]"))),
                None => Ok(None),
            };
        };
        let section =
            &if arguments.is_empty() { section.clone() } else { gateway_section(&self.text, &self.file, arguments)? };
        let (queries, faults) = self.queries()?;
        without(&faults)?;
        let (settings, frontier) = (section.settings()?, section.frontier(&self.folder)?);
        let (cursors, packing) = (section.cursors(frontier.is_some())?, section.packing()?);
        let queries = queries.into_iter().map(|(_, query)| query).collect();
        Ok(Some(GatewayConfig { queries, settings, packing, frontier, cursors }))
    }

    /// The named queries, by their files' names.
    pub fn queries(&self) -> Result<Queries> {
        let Some(section) = &self.gateway else {
            let file = self.file.display();
            return Err(usage(format!("{file} has no [gateway]; add it, with queries = \"FOLDER\" of .sql files")));
        };
        let folder = self.folder.join(&section.queries);
        let entries = std::fs::read_dir(&folder).or_usage(|| {
            format!("the folder {} of named queries could not be read ([gateway] queries)", folder.display())
        })?;
        let mut files: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().context("reading the queries")?;
        files.retain(|file| file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("sql")));
        files.sort();
        let (mut queries, mut faults) = (Vec::new(), Vec::new());
        for file in files {
            let text = match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) => {
                    let text = format!("it can't be read: {error}");
                    faults.push(QueryError { file: file.display().to_string(), line: 1, text });
                    continue;
                }
            };
            match Query::parse_in(self.database.syntax(), &file.display().to_string(), &text) {
                Ok(query) => queries.push((file, query)),
                Err(errors) => faults.extend(errors),
            }
        }
        Ok((queries, faults))
    }

    /// What the server and the gateway have in memory, with these arguments (`option=value`).
    /// Without what is known, the names in `alternate` are believed.
    pub fn pools(
        &self,
        arguments: &[(String, String)],
        server: &ServerConfig,
        known: Option<&Known<'_>>,
    ) -> Result<Pools> {
        self.pool_section(arguments)?.pools(&self.folder, server.spool_folder.as_deref(), known)
    }

    /// Where the pool's overflow file goes; `None`: the system's own place.
    pub fn overflow_folder(&self, server: &ServerConfig) -> Result<Option<PathBuf>> {
        Ok(self.pool_section(&[])?.overflow_folder(&self.folder, server.spool_folder.as_deref()))
    }

    fn pool_section(&self, arguments: &[(String, String)]) -> Result<PoolSection> {
        let section = overlaid(&self.text, "pool", POOL_VARIABLES, arguments)?;
        section.try_into::<PoolSection>().map_err(|error| explained(&error)).or_usage(|| {
            let file = self.file.display();
            format!("the pool's options can't be used ([pool] in {file}, {POOL_VARIABLES}*, --set pool.OPTION)")
        })
    }

    /// The server's options: the file's, then the environment's, then these arguments (`option=value`).
    pub fn server(&self, arguments: &[(String, String)]) -> Result<ServerConfig> {
        let section = overlaid(&self.text, "server", SERVER_VARIABLES, arguments)?;
        let config = section.try_into::<ServerConfig>().map_err(|error| explained(&error));
        let places = || {
            let file = self.file.display();
            format!("the server's options can't be used ([server] in {file}, {SERVER_VARIABLES}*, arguments)")
        };
        let mut config = config.or_usage(places)?;
        let ServerConfig { tls_certificate, tls_key, spool_folder, jwt_key_file, jwks_file, .. } = &mut config;
        for path in [tls_certificate, tls_key, spool_folder, jwt_key_file, jwks_file].into_iter().flatten() {
            *path = self.folder.join(&path);
        }
        config.validate().or_usage(places)?;
        Ok(config)
    }
}

/// A section of the file, with what goes before it: the environment, then these arguments. `inner.option` is one of a section within it.
fn overlaid(text: &str, section: &str, variables: &str, arguments: &[(String, String)]) -> Result<toml::Value> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?;
        // A token is no option: files are read by many.
        let option = name.strip_prefix(variables).filter(|_| name != admin::TOKEN_VARIABLE)?.to_ascii_lowercase();
        let name = INNER.iter().fold(option, |name, inner| match name.strip_prefix(&format!("{inner}_")) {
            Some(option) => format!("{inner}.{option}"),
            None => name,
        });
        Some((name, value.to_str()?.to_owned()))
    });
    let mut document: toml::Table = toml::from_str(text).context("the configuration was read before")?;
    let section = document.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    let table = section.as_table_mut().context("the configuration was read before")?;
    for (name, text) in variables.chain(arguments.iter().cloned()) {
        match name.split_once('.') {
            Some((inner, option)) => {
                let inner = table.entry(inner).or_insert_with(|| toml::Value::Table(toml::Table::new()));
                let inner =
                    inner.as_table_mut().with_context(|| format!("{name} is set, and there are no such options"))?;
                inner.insert(option.to_owned(), value(&text));
            }
            None => drop(table.insert(name, value(&text))),
        }
    }
    Ok(section.clone())
}

/// The gateway's options, of a file that has a `[gateway]`.
fn gateway_section(text: &str, file: &Path, arguments: &[(String, String)]) -> Result<GatewaySection> {
    let section = overlaid(text, "gateway", GATEWAY_VARIABLES, arguments)?;
    section.try_into::<GatewaySection>().map_err(|error| explained(&error)).or_usage(|| {
        let file = file.display();
        format!("the gateway's options can't be used ([gateway] in {file}, {GATEWAY_VARIABLES}*, --set gateway.OPTION)")
    })
}

/// Whether two models can be served beside each other. A table's rows are known by their key, wherever they go.
fn beside(one: &Model, other: &Model) -> Result<()> {
    let title = |model: &Model| format!("{:?} version {}", model.name, model.version);
    if (&one.name, one.version) == (&other.name, other.version) {
        return Err(usage(format!("two of the models are {}: give one another name or version", title(one))));
    }
    for table in &one.tables {
        let same = |there: &&Table| there.name == table.name && there.schema == table.schema;
        let Some(there) = other.tables.iter().find(same) else { continue };
        let key = |table: &Table| table.key_columns().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        if key(table) != key(there) {
            return Err(usage(format!(
                "the key of table {:?} is ({}) in {} and ({}) in {}: models side by side have one key for a table",
                table.name,
                key(table),
                title(one),
                key(there),
                title(other)
            )));
        }
    }
    Ok(())
}

/// What is wrong with an option, in words that are no programmer's.
fn explained(error: &toml::de::Error) -> anyhow::Error {
    let text = error.to_string();
    let mut words = text.trim_end().split('`').skip(1).step_by(2);
    if text.starts_with("unknown field")
        && let Some(unknown) = words.next()
    {
        let known: Vec<&str> = words.collect();
        let hint = closest(unknown, known.iter().copied()).map(|near| format!("did you mean {near}?"));
        let hint = hint.unwrap_or_else(|| format!("expected one of {}", known.join(", ")));
        return anyhow::anyhow!("there is no option {unknown}: {hint}");
    }
    anyhow::Error::msg(in_plain_words(&text))
}

/// What is wrong with the file, and in which line.
fn placed(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let line = error.span().map(|span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1);
    let place = line.map_or_else(String::new, |line| format!("line {line}: "));
    anyhow::anyhow!("{place}{}", in_plain_words(error.message()))
}

/// A value as TOML reads it; what is none is text.
fn value(text: &str) -> toml::Value {
    let read = toml::from_str::<toml::Table>(&format!("v = {text}")).ok().and_then(|mut table| table.remove("v"));
    read.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Reads a model file with its scripts, whose files are found from its folder; all that is wrong with it is told.
pub fn read_model(file: &Path) -> Result<Model> {
    let text = std::fs::read_to_string(file).or_usage(|| format!("the model {} could not be read", file.display()))?;
    let mut model = parse(&file.display().to_string(), &text).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("  {error}")).collect();
        let count = if errors.len() == 1 { "one fault".to_owned() } else { format!("{} faults", errors.len()) };
        usage(format!("the model {} has {count}:\n{}", file.display(), lines.join("\n")))
    })?;
    let folder = file.parent().unwrap_or(Path::new(""));
    model.load_scripts(|script| {
        let path = folder.join(script);
        std::fs::read_to_string(&path)
            .or_usage(|| format!("the script {} of the model {} could not be read", path.display(), file.display()))
    })?;
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("headwater.toml");
        std::fs::write(&file, text).expect("written");
        Config::read(&Global { config: file, database: None, json: false, log: None, log_json: false })
    }

    /// What is said of `--set option=value`.
    fn refused(option: &str, value: &str) -> String {
        let config = config("[database]\nurl = \"sqlite:x.db\"\n").expect("a configuration");
        let refused = config.server(&[(option.to_owned(), value.to_owned())]).expect_err("refused");
        format!("{refused:#}")
    }

    #[test]
    fn a_wrong_option_is_explained() {
        for (option, value, words) in [
            ("wrokers", "2", "there is no option wrokers: did you mean workers?"),
            ("nothing_like_it", "2", "expected one of listen, tls_certificate,"),
            ("workers", "-1", "integer `-1`, expected a whole number, 0 or more in `workers`"),
            ("workers", "many", "string \"many\", expected a whole number, 0 or more in `workers`"),
            ("workers", "1001", "workers is 1001, expected 0 to 1000"),
        ] {
            let said = refused(option, value);
            assert!(said.contains(words), "no {words:?} in {said}");
        }
    }

    fn error(text: &str) -> String {
        format!("{:#}", config(text).err().expect("refused"))
    }

    const SOUND: &str = "models = [\"m.toml\"]\n[database]\nurl = \"sqlite:central.db\"\n";

    #[test]
    fn faults_are_told_with_their_place() {
        let unknown = error(&format!("{SOUND}[server]\nworkres = 3\n"));
        assert!(unknown.contains("line 5") && unknown.contains("workres") && unknown.contains("workers"), "{unknown}");
        assert!(error(&format!("{SOUND}x = 1")).contains("unknown field `x`"));
        assert!(error("models = []").contains("[database]"));
        let said = error("models = 3");
        assert!(said.contains("line 1: invalid type: integer `3`, expected a list"), "{said}");
        let said = error(&format!("{SOUND}[gateway]\nwaiting_max = true"));
        assert!(said.contains("line 5: invalid type: boolean `true`, expected a whole number, 0 or more"), "{said}");
    }

    #[test]
    fn arguments_go_before_the_file() {
        let config = config(&format!("{SOUND}[server]\nworkers = 3\nuploaders = 2\n")).expect("sound");
        let options = |arguments: &[(&str, &str)]| {
            let owned: Vec<_> = arguments.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            config.server(&owned)
        };
        assert_eq!(options(&[]).expect("sound").workers, 3);
        let changed = options(&[("workers", "7"), ("listen", "127.0.0.1:0"), ("tls_key", "k.pem")]);
        assert!(format!("{:#}", changed.expect_err("half of TLS")).contains("tls_certificate"));
        let changed = options(&[("workers", "7"), ("listen", "127.0.0.1:0")]).expect("sound");
        assert_eq!((changed.workers, changed.uploaders, changed.listen.port()), (7, 2, 0));
        assert!(options(&[("workers", "many")]).is_err() && options(&[("wrokers", "7")]).is_err());
        assert!(options(&[("workers", "1001")]).is_err());
        let provider = options(&[("jwks_file", "keys.json"), ("jwt_audience", "https://shop.example")]).expect("sound");
        assert!(provider.jwks_file.is_some_and(|file| file == config.folder.join("keys.json")));
    }

    #[test]
    fn the_default_options_that_init_writes_are_the_servers() {
        let config = config(&format!("{SOUND}[server]\n")).expect("sound");
        assert_eq!(config.server(&[]).expect("sound"), ServerConfig::default());
    }
}
