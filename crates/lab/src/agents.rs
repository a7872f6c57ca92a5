//! Agents: clients of a run on other machines, or in other processes.
//!
//! ```text
//! conductor (headwater lab run --agents 2)                  agent (headwater lab agent --join)
//!   prepare, verify, results                                  clients, their recorders
//!        seat  <------------- one connection each ------------->  part
//!              task, begin, next set, go at, restore, end  -->
//!        <--  connected, arrived, set done, what each half second brought, over
//! ```
//!
//! All that generates load is at the agents; who conducts has the target prepared, and the results. An agent speaks of its own clock
//! alone: the conductor asks for it again and again, takes the answer that came back fastest, and converts. So nobody's clock has to be
//! set right. Before a set all agents are told one moment to begin at, which lies as far ahead as the slowest connection needs.
//!
//! *Caveats.* The key keeps strangers out (it is never sent, only a digest with it); nothing is encrypted. Neither passwords nor
//! addresses with passwords are sent: an agent of a database is told its own address, where that takes a password.

mod clock;
mod gather;
mod join;
pub(crate) mod wire;

pub(crate) use gather::{Agent, SILENCE, lead};
pub use gather::{Agents, Gathering, Joined};
pub(crate) use join::Seat;
pub use join::{Join, Told, join};
