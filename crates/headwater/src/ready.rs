//! Joins server and remote: the server's ready files are made by the remote's own code.

use std::sync::Arc;

use headwater_remote::ready;
use headwater_server::BuildReady;

/// Makes ready files.
pub fn builder() -> BuildReady {
    Arc::new(|path, model, bytes_max, frames| Ok(ready::build(path, model, bytes_max, frames)?))
}
