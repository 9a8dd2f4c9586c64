//! The wire: what comes in is checked and converted once, what goes out is converted back.
//!
//! Messages of the contract are visible here and nowhere behind.

pub(crate) mod convert;
pub(crate) mod status;
