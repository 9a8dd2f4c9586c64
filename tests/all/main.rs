//! One binary of tests, by topic.

mod ownership;
