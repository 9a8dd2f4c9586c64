//! The agent file.
