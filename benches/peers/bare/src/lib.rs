//! The cycle without any logic: what the transport and the disk allow.
//!
//! For each of a cycle's two requests the server appends four rows of 400 bytes one after another
//! (SQLite, WAL, `synchronous=FULL`, group commit), and streams two messages of that size for each
//! row, and an end. There is no session, no model and no tool.

tonic::include_proto!("bare");
