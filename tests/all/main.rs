//! One binary of tests, by topic.

mod cases;
mod cli;
mod confirmed;
mod core;
mod crash;
mod errors;
mod examples;
mod golden;
mod inbox;
mod kill;
mod leaving;
mod main_job;
mod ownership;
mod races;
mod requests;
mod sim;
mod streams;
mod support;
mod tidy;
mod wire;
