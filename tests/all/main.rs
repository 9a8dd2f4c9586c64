//! One binary of tests, by topic.

mod cases;
mod cli;
mod examples;
mod main_job;
mod ownership;
mod support;
