//! What all requests of a server share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use headwater_access::{Access, Credentials, User};
use headwater_bufferpool::Pools;
use headwater_consolidated::{CommitWaits, Plan, Pool};
use headwater_knobs::Live;
use headwater_protocol::message::{ErrorCode, Hello};
use headwater_protocol::packer::Knobs;
use tokio::sync::Notify;

use crate::Config;
use crate::admission::Admission;
use crate::chunks::Chunks;
use crate::counts::Counts;
use crate::downloads::Downloads;
use crate::failure::Failure;
use crate::files::Files;
use crate::front::Front;
use crate::ready::ReadyFiles;
use crate::spool::Spools;
use crate::tickets::Tickets;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Live<Config>,
    pub(crate) pool: Pool,
    pub(crate) commit_waits: CommitWaits,
    pub(crate) plans: Vec<Arc<Plan>>,
    pub(crate) access: Access,
    pub(crate) admission: Admission,
    pub(crate) spools: Spools,
    pub(crate) pools: Arc<Pools>,
    pub(crate) files: Arc<Files>,
    pub(crate) front: Arc<Front>,
    /// Syncs whose answers are not at their end yet.
    pub(crate) syncs: Tasks,
    /// Threads that find out how large a download gets; they may outlast its sync.
    pub(crate) estimates: Tasks,
    pub(crate) remotes: Remotes,
    pub(crate) downloads: Downloads,
    pub(crate) ready_files: ReadyFiles,
    pub(crate) tickets: Tickets,
    pub(crate) counts: Counts,
    pub(crate) chunks: Arc<Chunks>,
    /// How full the frames of downloads get.
    pub(crate) packing: Knobs,
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.front.is_stopping()
    }

    /// An error while commits at the database do not end: what needs one would only wait with the others.
    pub(crate) fn commits_end(&self) -> Result<(), Failure> {
        if self.commit_waits.now().is_some() { Err(self.commits_wait()) } else { Ok(()) }
    }

    /// What is said then.
    pub(crate) fn commits_wait(&self) -> Failure {
        Failure::commits_wait(&self.commit_waits.now().unwrap_or_default())
    }

    /// A failure, where commits that do not end are most likely why it is one.
    pub(crate) fn explained(&self, failure: Failure) -> Failure {
        let may_be = matches!(failure.code, ErrorCode::DatabaseUnavailable | ErrorCode::RemoteBusy);
        match self.commit_waits.now().filter(|_| may_be) {
            Some(waiting) => Failure::commits_wait(&waiting),
            None => failure,
        }
    }

    /// Who sends a request, by its head alone; a remote says there whose it is, and nobody else is let in for it.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<User, Failure> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let value = value.ok_or(headwater_access::Error::Unauthenticated)?;
        let user = self.access.authenticate(Credentials::from_header(value)?).await?;
        check_user(headers, user.name())?;
        Ok(user)
    }

    /// The model that a remote asks for.
    pub(crate) fn plan_for(&self, hello: &Hello) -> Result<Arc<Plan>, Failure> {
        let (name, version) = (&hello.model, hello.model_version);
        let plan = self.plans.iter().find(|plan| plan.model.name == *name && plan.model.version == version);
        let plan = plan.ok_or_else(|| {
            let newest = self.plans.iter().filter(|plan| plan.model.name == *name).map(|plan| plan.model.version).max();
            let mend = newest.filter(|newest| *newest > version).map_or_else(String::new, |newest| {
                format!("; it has version {newest}, to which `headwater remote upgrade` changes the remote")
            });
            Failure::new(ErrorCode::ModelUnknown, format!("this server has no model {name:?} version {version}{mend}"))
        })?;
        if plan.fingerprint != hello.fingerprint {
            let message = format!(
                "the remote's schema was made from another model {name:?} version {version}: its fingerprint is {:#018x}, \
                 expected {:#018x}; put the model back as it was, or serve the change as a new version",
                hello.fingerprint, plan.fingerprint
            );
            return Err(Failure::new(ErrorCode::ModelChanged, message));
        }
        Ok(Arc::clone(plan))
    }
}

/// A remote that took another's token would have all its rows exchanged for that user's.
fn check_user(headers: &HeaderMap, actual: &str) -> Result<(), Failure> {
    let Some(value) = headers.get("headwater-user") else { return Ok(()) };
    let user = hex::decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
        let message = format!("header Headwater-User is {value:?}, expected the remote's user in hex digits");
        Failure::new(ErrorCode::Malformed, message)
    })?;
    if user == actual {
        return Ok(());
    }
    let message =
        format!("the token belongs to user {actual:?}, this remote to user {user:?}: use a token of {user:?}");
    Err(Failure::new(ErrorCode::Forbidden, message))
}

/// The remotes that sync here now: two syncs of one remote would only wait for each other at the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remotes(Arc<Mutex<HashSet<[u8; 16]>>>);

/// A remote's claim to be the only one; dropped, it ends.
#[derive(Debug)]
pub(crate) struct Claim {
    remotes: Remotes,
    remote_id: [u8; 16],
}

impl Remotes {
    pub(crate) fn claim(&self, remote_id: [u8; 16]) -> Option<Claim> {
        let mut remotes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        remotes.insert(remote_id).then(|| Claim { remotes: self.clone(), remote_id })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.remotes.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.remote_id);
    }
}

/// Tasks whose end can be awaited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks(Arc<(AtomicUsize, Notify)>);

/// One task; dropped, it has ended.
#[derive(Debug)]
pub(crate) struct Task(Tasks);

impl Tasks {
    pub(crate) fn enter(&self) -> Task {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        Task(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// Waits until there is none.
    pub(crate) async fn ended(&self) {
        loop {
            let told = self.0.1.notified();
            if self.count() == 0 {
                return;
            }
            told.await;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.0.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.0.1.notify_waiters();
        }
    }
}
