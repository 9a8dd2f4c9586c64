//! Countersign runs AI agents whose important actions wait for a human.
//!
//! A client streams what an agent says and does. When the agent calls a tool that has to wait for
//! somebody, such as a manager's approval, the run pauses durably and costs nothing; any caller
//! delivers the answer with one RPC, and the run goes on exactly where it stopped, exactly once.
//! The words are those of Google's Agent Development Kit.
//!
//! Most people need no Rust: they write agent files ([`agent::file`]) and run the program
//! `countersign`. With the library an agent's tools are async functions, and the server is part of
//! a program of your own:
//!
//! ```no_run
//! use countersign::app::{Agent, Builder};
//! use countersign::tool::{Context, Function};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct CreateTicket {
//!     /// How urgent it is: low, medium or high.
//!     urgency: String,
//! }
//!
//! /// Asks whoever creates tickets. What becomes of it is answered later, from outside.
//! async fn create(ticket: CreateTicket, context: Context) -> Result<(), String> {
//!     println!("{}: a ticket, {}", context.idempotency_key(), ticket.urgency);
//!     Ok(())
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::new("ticket_agent")
//!     .tool(Function::new("create_ticket", "Creates a ticket.", create).long_running())
//!     .script("[{when: {user: urgent}, call: {create_ticket: {urgency: high}}}]");
//! let server = Builder::new().agent(agent).sqlite("tickets.db").build().await?;
//! server.serve("127.0.0.1:50051".parse()?, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `Agent::model` in the place of `script` lets a [`model::Model`] of yours speak. The directory
//! `examples` has whole programs, with clients.
//!
//! # The modules, in reading order
//!
//! | module | what it holds |
//! |---|---|
//! | [`session`] | the domain, pure: records, the fold of them, and what may happen next |
//! | [`agent`] | what agents are, as data; agent files |
//! | [`model`], [`tool`] | the ports to models and to bodies of tools, and what is behind them |
//! | [`store`] | the port to what is durable: in memory, in SQLite |
//! | [`runner`] | reads, asks the domain, appends, performs what is then to be done |
//! | [`proto`] | the contract's messages, made from `proto/` |
//! | `grpc` | the services: messages in, one call of the runner, messages out |
//! | [`limits`], [`config`] | every bound with its name; the settings of a server |
//! | [`app`] | puts a server together; for those who embed one, the place to begin |
//! | [`client`] | the client that goes on where a connection broke off |
//! | [`replay`] | event scripts of ADK, played again and compared |
//! | [`cli`] | the commands, over the client only; `replay` and `bench` need no server |
//! | [`mod@bench`] | `countersign bench`: a server of its own under load, and the figures |
//!
//! Imports point one way: `cli → client`, and `app → grpc → runner → {store, model, tool} → agent →
//! session`.

#![warn(missing_docs)]

pub mod session;

pub mod agent;
pub mod model;
pub mod store;
pub mod tool;

pub mod runner;

mod grpc;
pub mod proto;

pub mod app;
pub mod config;
pub mod limits;

pub mod bench;
pub mod cli;
pub mod client;
pub mod replay;
