//! `[gateway]` of `headwater.toml`: what the gateway may take, and who speaks the Frontier protocol with it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater_gateway::frontier::Signer;
use headwater_gateway::query::QueryLimits;
use headwater_gateway::{Compression, CursorSettings, EXECUTIONS_MAX, FrontierSettings, Settings, WAITING_S_MAX};
use headwater_protocol::packer::Packing;
use serde::Deserialize;

use super::FrontierConfig;
use super::cursor::{CursorSection, PackingSection};
use crate::database::Address;
use crate::exit::usage;

/// The most bytes of a row for SQL of clients, where nothing else is said.
const FRONTIER_ROW_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GatewaySection {
    pub(super) queries: PathBuf,
    executions_max: usize,
    waiting_max: usize,
    waiting_s_max: f64,
    cache: bool,
    held_bytes_max: usize,
    sending_bytes_max: usize,
    compression: Compression,
    reader_bytes_per_s_min: u64,
    frontier: Option<FrontierSection>,
    cursor: Option<CursorSection>,
    packing: PackingSection,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FrontierSection {
    name: String,
    #[serde(default)]
    allowed: Vec<String>,
    #[serde(default)]
    users: Vec<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    files: Option<PathBuf>,
    rows_max: Option<u64>,
    bytes_max: Option<u64>,
    row_bytes_max: Option<u64>,
    time_out_s: Option<u64>,
    #[serde(default)]
    kept_s: u32,
    url: Option<String>,
    #[serde(default)]
    reads_accounts: bool,
}

impl FrontierSection {
    /// All of it.
    fn config(&self, folder: &Path) -> Result<FrontierConfig> {
        let database = self.url.as_ref().map(|url| Address::parse(url, folder)).transpose();
        let database = database.context("[gateway.frontier] url can't be used")?;
        Ok(FrontierConfig { settings: self.settings(folder)?, database, reads_accounts: self.reads_accounts })
    }

    /// As the gateway takes it.
    fn settings(&self, folder: &Path) -> Result<FrontierSettings> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if self.name.is_empty()
            || !self.name.chars().all(is_name)
            || matches!(self.name.as_str(), "q" | "v1" | "health" | "ready" | "cursor")
        {
            let what = "expected letters, digits, _ and -, and none of q, v1, health, ready and cursor";
            return Err(usage(format!("[gateway.frontier] name is {:?}, {what}", self.name)));
        }
        let allowed = self.allowed.iter().map(|network| {
            read_network(network).ok_or_else(|| {
                usage(format!(
                    "[gateway.frontier] allowed has {network:?}, expected an address, or one and the number of its leading bits: 10.0.0.0/8"
                ))
            })
        });
        if self.allowed.is_empty() && self.users.is_empty() {
            return Err(usage("[gateway.frontier] lets nobody in: name addresses (allowed) or users".to_owned()));
        }
        for (option, value) in [
            ("rows_max", self.rows_max),
            ("bytes_max", self.bytes_max),
            ("row_bytes_max", self.row_bytes_max),
            ("time_out_s", self.time_out_s),
        ] {
            if value == Some(0) {
                return Err(usage(format!("[gateway.frontier] {option} is 0, expected 1 or more")));
            }
        }
        let usual = QueryLimits::default();
        let bytes_max = self.bytes_max.unwrap_or(usual.bytes_max);
        Ok(FrontierSettings {
            name: self.name.clone(),
            allowed: allowed.collect::<Result<_>>()?,
            users: self.users.clone(),
            signer: self.signer(folder)?.map(Arc::new),
            files: self.files(folder)?,
            limits: QueryLimits {
                rows_max: self.rows_max.unwrap_or(usual.rows_max),
                bytes_max,
                row_bytes_max: self.row_bytes_max.unwrap_or(FRONTIER_ROW_BYTES_MAX).min(bytes_max),
                time_out: self.time_out_s.map_or(usual.time_out, Duration::from_secs),
            },
            kept_s: self.kept_s,
        })
    }

    /// The folder of `frontier_file`, which is there.
    fn files(&self, folder: &Path) -> Result<Option<PathBuf>> {
        let Some(files) = self.files.as_ref().map(|files| folder.join(files)) else { return Ok(None) };
        match std::fs::read_dir(&files) {
            Ok(_) => Ok(Some(files)),
            Err(error) => Err(usage(format!(
                "[gateway.frontier] files is {}, which can't be read as a folder: {error}",
                files.display()
            ))),
        }
    }

    fn signer(&self, folder: &Path) -> Result<Option<Signer>> {
        let (certificate, key) = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => (folder.join(certificate), folder.join(key)),
            (None, None) => return Ok(None),
            _ => return Err(usage("[gateway.frontier] takes certificate and key, or neither".to_owned())),
        };
        let read = |file: &Path| {
            std::fs::read_to_string(file)
                .map_err(|error| usage(format!("[gateway.frontier] {} can't be read: {error}", file.display())))
        };
        let signer = Signer::new(&read(&certificate)?, &read(&key)?);
        signer.map(Some).map_err(|error| usage(format!("[gateway.frontier] {}: {error}", key.display())))
    }
}

/// `10.0.0.0/8`, or an address alone.
fn read_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Some(width), |length| length.parse().ok())?;
    (length <= width).then_some((address, length))
}

impl Default for GatewaySection {
    fn default() -> GatewaySection {
        let usual = Settings::default();
        GatewaySection {
            queries: PathBuf::from("queries"),
            executions_max: usual.executions_max,
            waiting_max: usual.waiting_max,
            waiting_s_max: usual.patience.as_secs_f64(),
            cache: usual.cache,
            held_bytes_max: usual.held_bytes_max,
            sending_bytes_max: usual.sending_bytes_max,
            compression: usual.compression,
            reader_bytes_per_s_min: usual.reader_bytes_per_s_min,
            frontier: None,
            cursor: None,
            packing: PackingSection::default(),
        }
    }
}

impl GatewaySection {
    /// What the gateway may take.
    pub(super) fn settings(&self) -> Result<Settings> {
        let GatewaySection { executions_max, waiting_s_max, .. } = *self;
        if !(1..=EXECUTIONS_MAX).contains(&(executions_max as u64)) {
            return Err(usage(format!("[gateway] executions_max is {executions_max}, expected 1 to {EXECUTIONS_MAX}")));
        }
        if !(waiting_s_max > 0.0 && waiting_s_max <= WAITING_S_MAX) {
            let expected = format!("expected more than 0, and at most {WAITING_S_MAX}");
            return Err(usage(format!("[gateway] waiting_s_max is {waiting_s_max}, {expected}")));
        }
        let settings = Settings {
            executions_max,
            waiting_max: self.waiting_max,
            cache: self.cache,
            held_bytes_max: self.held_bytes_max,
            sending_bytes_max: self.sending_bytes_max,
            patience: Duration::from_secs_f64(waiting_s_max),
            compression: self.compression,
            reader_bytes_per_s_min: self.reader_bytes_per_s_min,
        };
        check_sending(&settings)?;
        Ok(settings)
    }

    /// The Frontier protocol, if it is served; files are found from this folder.
    pub(super) fn frontier(&self, folder: &Path) -> Result<Option<FrontierConfig>> {
        self.frontier.as_ref().map(|frontier| frontier.config(folder)).transpose()
    }

    /// How full the pieces of answers get.
    pub(super) fn packing(&self) -> Result<Packing> {
        self.packing.packing()
    }

    /// Remote cursors, if there are any. `serves_sql`: the Frontier protocol is served.
    pub(super) fn cursors(&self, serves_sql: bool) -> Result<Option<CursorSettings>> {
        self.cursor.as_ref().map(|cursor| cursor.settings(serves_sql)).transpose()
    }
}

/// Bounds in bytes that hinder one another are none that anybody means.
pub(crate) fn check_sending(settings: &Settings) -> Result<()> {
    let Settings { held_bytes_max, sending_bytes_max, .. } = *settings;
    if held_bytes_max > sending_bytes_max {
        let why = "an answer on its way would keep all others away then, expected no more";
        return Err(usage(format!(
            "[gateway] held_bytes_max is {held_bytes_max}, and sending_bytes_max {sending_bytes_max}: {why}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use headwater_protocol::packer::Records;

    use crate::cli::Global;
    use crate::config::Config;

    use super::*;

    const SOUND: &str = "models = []\n[database]\nurl = \"sqlite:a.db\"\n";

    /// What the gateway may take, by this section and these arguments; its queries are those of a folder.
    fn settings(folder: &Path, section: &str, arguments: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let file = folder.join("headwater.toml");
        std::fs::write(&file, format!("{SOUND}{section}")).expect("written");
        let global = Global { config: file, database: None, json: false, log: None, log_json: false };
        let owned: Vec<_> = arguments.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let gateway = Config::read(&global).and_then(|config| config.gateway(&owned));
        gateway.map(|gateway| gateway.map(|gateway| gateway.settings)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn how_long_a_query_waits_for_a_place_is_an_option_like_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let queries = format!("[gateway]\nqueries = {:?}\n", folder.path());
        let read = |section: &str, arguments: &[(&str, &str)]| {
            let settings = settings(folder.path(), section, arguments);
            settings.map(|settings| settings.expect("a gateway").patience)
        };
        assert_eq!(read(&queries, &[]), Ok(Duration::from_secs(10)));
        let set = format!("{queries}waiting_s_max = 2\n");
        assert_eq!(read(&set, &[]), Ok(Duration::from_secs(2)));
        assert_eq!(read(&set, &[("waiting_s_max", "0.5")]), Ok(Duration::from_millis(500)));
        for (value, words) in [
            ("0", "waiting_s_max is 0, expected more than 0, and at most 3600"),
            ("-1", "waiting_s_max is -1, expected"),
            ("nan", "waiting_s_max is NaN, expected"),
            ("3601", "waiting_s_max is 3601, expected"),
            ("soon", "string \"soon\", expected a number in `waiting_s_max`"),
        ] {
            let said = read(&queries, &[("waiting_s_max", value)]).expect_err(value);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn how_hard_the_gateway_compresses_is_an_option_like_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |section: &str, arguments: &[(&str, &str)]| {
            let settings = settings(folder.path(), section, arguments);
            settings.map(|settings| settings.map(|settings| settings.compression))
        };
        let nine = [("compression", "9")];
        assert_eq!(read("", &[]), Ok(None));
        assert!(read("", &nine).is_err_and(|said| said.contains("there is no [gateway]")));
        let queries = format!("[gateway]\nqueries = {:?}\n", folder.path());
        assert_eq!(read(&queries, &[]), Ok(Some(Compression::Auto)));
        let fixed = format!("{queries}compression = 5\n");
        assert_eq!(read(&fixed, &[]), Ok(Some(Compression::Fixed(5))));
        assert_eq!(read(&fixed, &nine), Ok(Some(Compression::Fixed(9))));
        assert_eq!(read(&fixed, &[("compression", "auto")]), Ok(Some(Compression::Auto)));
        for (name, value, words) in
            [("compression", "11", "expected \"auto\" or 0 to 9"), ("compresion", "1", "did you mean compression?")]
        {
            let said = read(&queries, &[(name, value)]).expect_err("refused");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn bounds_that_hinder_one_another_are_told_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let queries = format!("[gateway]\nqueries = {:?}\n", folder.path());
        let read = |arguments: &[(&str, &str)]| settings(folder.path(), &queries, arguments).map(|_| ());
        for (arguments, words) in [
            (&[("sending_bytes_max", "4194303")][..], "held_bytes_max is 4194304, and sending_bytes_max 4194303"),
            (&[("held_bytes_max", "-1")], "integer `-1`, expected a whole number, 0 or more in `held_bytes_max`"),
        ] {
            let said = read(arguments).expect_err("refused");
            assert!(said.contains(words), "{said}");
        }
        for arguments in [&[("held_bytes_max", "67108864")][..], &[("cache", "false")], &[("held_bytes_max", "0")]] {
            assert_eq!(read(arguments), Ok(()), "{arguments:?}");
        }
    }

    #[test]
    fn what_the_frontier_protocol_needs_is_there_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |option: &str| {
            let queries = format!("[gateway]\nqueries = {:?}\n", folder.path());
            let frontier = "[gateway.frontier]\nname = \"F\"\nallowed = [\"127.0.0.1\"]\n";
            settings(folder.path(), &format!("{queries}{frontier}{option}\n"), &[]).map(|_| ())
        };
        for (option, words) in [
            ("files = \"nowhere\"", "nowhere, which can't be read as a folder: No such file"),
            ("files = \"headwater.toml\"", "headwater.toml, which can't be read as a folder: Not a directory"),
            ("rows_max = 0", "rows_max is 0, expected 1 or more"),
            ("time_out_s = 0", "time_out_s is 0, expected 1 or more"),
        ] {
            let said = read(option).expect_err(option);
            assert!(said.contains("[gateway.frontier] ") && said.contains(words), "{said}");
        }
        std::fs::create_dir(folder.path().join("files")).expect("a folder");
        assert_eq!(read("files = \"files\""), Ok(()));
    }

    #[test]
    fn how_full_pieces_get_is_an_option_like_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |section: &str, arguments: &[(&str, &str)]| {
            let file = folder.path().join("headwater.toml");
            let queries = format!("[gateway]\nqueries = {:?}\n", folder.path());
            std::fs::write(&file, format!("{SOUND}{queries}{section}")).expect("written");
            let global = Global { config: file, database: None, json: false, log: None, log_json: false };
            let owned: Vec<_> = arguments.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            let gateway = Config::read(&global).and_then(|config| config.gateway(&owned));
            gateway.map(|gateway| gateway.expect("a gateway").packing).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(read("", &[]), Ok(Packing::FULL));
        let section = "[gateway.packing]\nrecords = 7\nmessage_size = 8192\nfill = 0\ndelay_first = false\n";
        let packing = Packing { records: Records::Exactly(7), message_size: 8_192, fill: 0, ..Packing::AUTOMATIC };
        assert_eq!(read(section, &[]), Ok(packing));
        let automatic = Packing { records: Records::Automatic, ..packing };
        assert_eq!(read(section, &[("packing.records", "automatic")]), Ok(automatic));
        for (name, value, words) in [
            ("packing.records", "0", "records is 0, expected 1 to 32766"),
            ("packing.message_size", "349", "[gateway.packing] message_size is 349, expected 350 to 65536"),
            ("packing.fill", "101", "[gateway.packing] fill is 101, expected 0 to 100"),
            ("packing.idle_wait_ms", "5", "there is no option idle_wait_ms"),
        ] {
            let said = read("", &[(name, value)]).expect_err(value);
            assert!(said.contains(words), "{said}");
        }
    }
}
