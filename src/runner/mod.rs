pub mod step;
