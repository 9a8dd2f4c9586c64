//! The cycle without any logic: what the transport and the disk allow.
//!
//! For each of a cycle's two requests the server appends three rows of 400 bytes one after another
//! (SQLite, WAL, `synchronous=FULL`, group commit), and streams a start, a message of that size for
//! each row, and an end: as many commits and messages as Countersign's cycle has. There is no
//! session, no model and no tool.

tonic::include_proto!("bare");
