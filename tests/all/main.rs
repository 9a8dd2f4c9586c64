//! One binary of tests, by topic.

mod cli;
mod main_job;
mod ownership;
mod support;
