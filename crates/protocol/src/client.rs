//! The remote's side of a sync: reading an answer ([`AnswerReader`]), and what comes next at every step ([`Session`]).

mod answer;
mod failure;
mod instruction;
mod pieces;
mod ready;
mod session;

pub use answer::{AnswerError, AnswerEvent, AnswerReader, Expected};
pub use failure::{Cause, Failure, Summary, status_error};
pub use instruction::{Config, Instruction, Reply, Staged, Start};
pub use ready::{ReadyAnswer, ReadyReader};
pub use session::Session;
