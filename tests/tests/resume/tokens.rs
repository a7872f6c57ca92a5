//! Tokens that end within a sync: they expire, the user is disabled, the key of tokens is another. A request is judged by its head and goes on to
//! its end; the next request of the same sync is refused. What has arrived by then is not sent again once there is another token.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use headwater_consolidated::system::set_account_disabled;
use headwater_remote::http::{Credentials, Server, fetch_model};
use headwater_remote::{Error, Remote, SyncOptions, SyncReport};
use headwater_testkit::proxy::Direction;
use headwater_testkit::{Plan, wait_until};
use headwater_tests::{KINDS, Kind};

use crate::{LONG, Stage};

/// How a token ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Expires,
    UserDisabled,
    KeyChanged,
}

const ENDS: [End; 3] = [End::Expires, End::UserDisabled, End::KeyChanged];

impl End {
    fn code(self) -> &'static str {
        if self == End::UserDisabled { "forbidden" } else { "unauthenticated" }
    }
}

/// Servers ask the database for each account at each request.
fn stage(kind: Kind, rows_down: u64) -> Result<Stage> {
    Stage::with(kind, rows_down, |config| (config.account_cache_ms, config.piece_bytes) = (0, 100_000))
}

impl Stage {
    fn disable(&self, is_disabled: bool) -> Result<()> {
        set_account_disabled(&mut *self.world.central.backend()?.connect()?, "ann", is_disabled).map(drop)?;
        Ok(())
    }

    /// Exchanges the first and the last byte of the key of tokens, or puts them back.
    fn turn_key(&self) -> Result<()> {
        self.world.central.execute(match self.world.central {
            headwater_tests::Central::Sqlite(_) => {
                "UPDATE headwater_identity SET token_key = CAST(substr(token_key, 32) || substr(token_key, 2, 30) || substr(token_key, 1, 1) AS BLOB)"
            }
            headwater_tests::Central::Postgres(_) => {
                "UPDATE headwater.identity SET token_key = substr(token_key, 32) || substr(token_key, 2, 30) || substr(token_key, 1, 1)"
            }
        })
    }

    fn end_token(&self, end: End, token: &str) -> Result<()> {
        match end {
            End::Expires => {}
            End::UserDisabled => self.disable(true)?,
            End::KeyChanged => self.turn_key()?,
        }
        let server =
            Server { url: self.world.server_url()?, credentials: Credentials::Token(token.to_owned()), ca_file: None };
        ensure!(wait_until(LONG, || fetch_model(&server, "ann", None).is_err()), "{end:?}: the token is still good");
        Ok(())
    }

    /// There is a good token again.
    fn mend(&self, end: End) -> Result<()> {
        match end {
            End::Expires => Ok(()),
            End::UserDisabled => self.disable(false),
            End::KeyChanged => self.turn_key(),
        }
    }

    /// Syncs up to a place of its first connection; then its token ends, and the connection goes on or is cut.
    fn sync_until(
        &mut self,
        remote: &mut Remote,
        (direction, bytes): (Direction, u64),
        end: End,
        is_cut: bool,
    ) -> Result<Result<SyncReport, Error>> {
        let lifetime = if end == End::Expires { Duration::from_secs(3) } else { Duration::from_hours(1) };
        let before = self.proxy.connections().len();
        self.proxy.next([Plan::clean().hold(direction, bytes)]);
        let token = self.world.token_for("ann", lifetime)?;
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| {
                let mut options = SyncOptions::new(Credentials::Token(token.clone()));
                options.config.attempts_max = 5;
                options.config.backoff_min = Duration::from_millis(5);
                remote.sync(&mut options)
            });
            let passed = || match self.proxy.connections().get(before) {
                Some(traffic) if direction == Direction::Up => traffic.up >= bytes,
                Some(traffic) => traffic.down >= bytes,
                None => false,
            };
            let is_held = wait_until(LONG, || passed() || syncing.is_finished()) && !syncing.is_finished();
            let ended = self.end_token(end, &token);
            if is_cut {
                self.proxy.cut_all();
            }
            self.proxy.go_clean();
            let synced = syncing.join().map_err(|_| anyhow!("the sync panicked"))?;
            ensure!(is_held, "{end:?}: the sync was over before: {synced:?}");
            ended.map(|()| synced)
        })
    }
}

#[test]
fn a_token_ends_between_the_pieces_of_an_upload() -> Result<()> {
    for (kind, end) in [(KINDS[0], ENDS[0]), (KINDS[0], ENDS[1]), (KINDS[0], ENDS[2]), (KINDS[1], ENDS[1])] {
        let mut stage = stage(kind, 0)?;
        let whole = stage.whole_upload(1_200)?;
        let (name, mut remote) = stage.pending(1_200)?;
        let error = stage.sync_until(&mut remote, (Direction::Up, whole / 2), end, false)?.err();
        let error = error.ok_or_else(|| anyhow!("{kind:?} {end:?}: the other pieces were taken"))?;
        ensure!(error.code() == end.code(), "{kind:?} {end:?}: {error:?}");
        let count = stage.world.central.rows(&format!("SELECT count(*) FROM note WHERE id LIKE '{name} %'"))?;
        ensure!(count == [[Some("0".to_owned())]], "{kind:?} {end:?}: half of it arrived: {count:?}");
        stage.mend(end)?;
        stage.world.edit(&name, &format!("UPDATE note SET body = 'later' WHERE id = '{name} 000007'"))?;
        let (up, report) = stage.carried(Direction::Up, || Ok(stage.sync(&mut remote, 1)?))?;
        ensure!(report.changes_up == 1_201 && report.conflicts == 0, "{kind:?} {end:?}: {report:?}");
        ensure!(up < whole * 3 / 4, "{kind:?} {end:?}: {up} bytes went up again of {whole}");
        stage.is_whole(&name, 1_200)?;
    }
    Ok(())
}

/// The user was let in by the head of the request that has the upload.
#[test]
fn a_token_ends_within_the_request() -> Result<()> {
    for (kind, end) in [(KINDS[0], ENDS[0]), (KINDS[0], ENDS[2]), (KINDS[1], ENDS[1])] {
        let mut stage = stage(kind, 0)?;
        let (name, mut remote) = stage.pending(40)?;
        let report = stage.sync_until(&mut remote, (Direction::Up, 10_000), end, false)??;
        ensure!(report.changes_up == 40, "{kind:?} {end:?}: {report:?}");
        stage.is_whole(&name, 40)?;
        let error = stage.sync(&mut remote, 1).err().map(|error| error.code());
        ensure!(end == End::Expires || error == Some(end.code()), "{kind:?} {end:?}: the next is refused: {error:?}");
    }
    Ok(())
}

#[test]
fn a_token_ends_between_the_parts_of_a_download() -> Result<()> {
    for (kind, end) in [(KINDS[0], ENDS[0]), (KINDS[0], ENDS[1]), (KINDS[0], ENDS[2]), (KINDS[1], ENDS[1])] {
        let mut stage = stage(kind, 2_000)?;
        let (_, mut first) = stage.remote()?;
        let (whole, _) = stage.carried(Direction::Down, || Ok(stage.sync(&mut first, 1)?))?;
        let (name, mut remote) = stage.remote()?;
        stage.world.edit(&name, "INSERT INTO note VALUES ('mine', 'x')")?;
        let error = stage.sync_until(&mut remote, (Direction::Down, whole / 2), end, true)?.err();
        let error = error.ok_or_else(|| anyhow!("{kind:?} {end:?}: the rest was given"))?;
        ensure!(error.code() == end.code(), "{kind:?} {end:?}: {error:?}");
        let count = stage.world.rows(&name, "SELECT count(*) FROM note")?;
        ensure!(count == [[Some("1".to_owned())]], "{kind:?} {end:?}: half of it is there: {count:?}");
        stage.mend(end)?;
        let (down, _) = stage.carried(Direction::Down, || Ok(stage.sync(&mut remote, 1)?))?;
        ensure!(down < whole * 3 / 4, "{kind:?} {end:?}: {down} bytes came down again of {whole}");
        let arrived = stage.world.central.rows("SELECT body FROM note WHERE id = 'mine'")?;
        ensure!(arrived == [[Some("x".to_owned())]], "{kind:?} {end:?}: {arrived:?}");
        stage.is_equal(&name)?;
    }
    Ok(())
}
