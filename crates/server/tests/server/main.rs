//! The server from outside: real databases, plain sockets, and clients that do everything wrong.

mod access;
mod admission;
mod basics;
mod clients;
mod faults;
mod faulty;
mod lifecycle;
mod packing;
mod pieces;
mod refusals;
mod resume;
mod secure;
mod smuggling;
mod standby;
mod support;
