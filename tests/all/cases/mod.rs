//! The behaviours that a user of ADK knows, one test a case, through a real connection. Numbers are
//! those of the list of cases; where the contract differs from ADK, the contract's words are
//! tested.

mod answers;
mod approvals;
mod basics;
mod exact;
mod flow;
mod history;
mod import;
mod invocations;
mod parallel;
mod sessions;
mod stage;
mod unknown;
mod validation;
mod watch;
