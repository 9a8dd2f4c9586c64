//! One binary of tests, by topic.

mod cli;
mod ownership;
