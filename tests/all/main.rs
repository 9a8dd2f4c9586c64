//! One binary of tests, by topic.

mod cases;
mod cli;
mod core;
mod crash;
mod examples;
mod kill;
mod leaving;
mod main_job;
mod ownership;
mod requests;
mod support;
mod wire;
