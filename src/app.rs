//! Putting a server together: settings, agents, store, runner, services. The only file that names
//! concrete adapters.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use crate::agent::{self as data, Agents, file};
use crate::config::{Settings, StoreUrl};
use crate::grpc;
use crate::limits::Limits;
use crate::model::Model;
use crate::runner::{Cast, Registry, Runner};
use crate::session::Refusal;
use crate::store::{Clock, Store, memory::Memory, sqlite::Sqlite};
use crate::tool::Tool;

mod agent;

pub use agent::Agent;

/// Why a server did not start, or stopped.
#[derive(Debug)]
pub enum Error {
    /// What it was told is wrong: every fault, each with its place.
    Settings(Vec<String>),
    /// The world failed.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(faults) => f.write_str(&faults.join("\n")),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal.to_string())
    }
}

/// Puts a server together.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use countersign::app::Builder;
///
/// let [(name, text), ..] = countersign::agent::file::samples() else { panic!("there is one") };
/// let server = Builder::new().agent_file(name, text).sqlite("sessions.db").build().await?;
/// server.serve("127.0.0.1:0".parse()?, std::future::pending()).await?;
/// # Ok(())
/// # }
/// ```
pub struct Builder {
    registry: Registry,
    agents: Agents,
    written: Vec<Agent>,
    files: Vec<(PathBuf, String)>,
    keeps: Keeps,
    limits: Limits,
    drain_timeout: Duration,
    faults: Vec<String>,
}

/// Where sessions are kept.
enum Keeps {
    Memory,
    Sqlite(PathBuf),
    Store(Arc<dyn Store>),
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A server without agents, in memory.
    pub fn new() -> Self {
        Self {
            registry: Registry::default(),
            agents: Agents::default(),
            written: Vec::new(),
            files: Vec::new(),
            keeps: Keeps::Memory,
            limits: Limits::default(),
            drain_timeout: crate::config::DEFAULT_DRAIN_TIMEOUT,
            faults: Vec::new(),
        }
    }

    /// Registers a function that agent files can name as a tool. Two of one name are a fault.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        let declaration = tool.declaration();
        let (name, faults) = (declaration.name.clone(), declaration.faults());
        self.faults.extend(faults.iter().map(|fault| format!("function {name}: {fault}")));
        if self.registry.tool(tool).is_some() {
            self.faults.push(format!("function {name}: there are two of this name"));
        }
        self
    }

    /// Registers a model that agents can name. Two of one name are a fault.
    pub fn model(mut self, name: &str, model: impl Model) -> Self {
        if self.registry.model(name, model).is_some() {
            self.faults.push(format!("model {name}: there are two of this name"));
        }
        self
    }

    /// Serves an agent that is written in Rust; its name is the app's. Two of one name are a fault,
    /// whether they are written in Rust or in a file.
    pub fn agent(mut self, agent: Agent) -> Self {
        self.written.push(agent);
        self
    }

    /// Serves agents that were read before.
    pub fn agents(mut self, agents: &Agents) -> Self {
        agents.iter().for_each(|(_, agent)| self.insert(data::Agent::clone(agent)));
        self
    }

    /// Serves the agent of an agent file; `name` is what faults call the file.
    pub fn agent_file(mut self, name: impl AsRef<Path>, text: &str) -> Self {
        self.files.push((name.as_ref().to_owned(), text.to_owned()));
        self
    }

    /// Keeps sessions in memory, until the server stops.
    pub fn memory(mut self) -> Self {
        self.keeps = Keeps::Memory;
        self
    }

    /// Keeps sessions in a store.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.keeps = Keeps::Store(store);
        self
    }

    /// Keeps sessions in an SQLite file, which is made if it is missing, once all else is right.
    /// One server at a time can have it.
    pub fn sqlite(mut self, path: impl AsRef<Path>) -> Self {
        self.keeps = Keeps::Sqlite(path.as_ref().to_owned());
        self
    }

    /// Bounds of the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a stopping server waits for bodies at work.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Checks everything and takes over what a former server left.
    pub async fn build(mut self) -> Result<Server, Error> {
        for agent in std::mem::take(&mut self.written) {
            match agent.read(&mut self.registry) {
                Ok(agent) => self.insert(agent),
                Err(faults) => self.faults.extend(faults),
            }
        }
        let names = self.registry.tool_names();
        let known = names.iter().filter_map(|name| self.registry.declaration(name));
        let known: Vec<_> = known.collect();
        if !self.files.is_empty() {
            match file::load(&self.files, &known) {
                Ok(agents) => self = self.agents(&agents),
                Err(faults) => self.faults.extend(faults.iter().map(ToString::to_string)),
            }
        }
        let cast = match Cast::new(&self.agents, &self.registry) {
            Ok(cast) => cast,
            Err(faults) => {
                self.faults.extend(faults);
                Cast::default()
            }
        };
        if !self.faults.is_empty() {
            return Err(Error::Settings(self.faults));
        }
        // Opening may make a file: that is done only when all else is right.
        let store: Arc<dyn Store> = match self.keeps {
            Keeps::Memory => Arc::new(Memory::new(Clock::system())),
            Keeps::Sqlite(path) => match Sqlite::open(&path, Clock::system()) {
                Ok(store) => Arc::new(store),
                Err(error) => return Err(Error::Settings(vec![error.to_string()])),
            },
            Keeps::Store(store) => store,
        };
        let runner = Runner::new(store, cast, self.limits);
        let taken = runner.recover().await?;
        if taken > 0 {
            tracing::info!(sessions = taken, "took over what was under way");
        }
        Ok(Server { runner, drain_timeout: self.drain_timeout })
    }

    fn insert(&mut self, agent: data::Agent) {
        if let Some(before) = self.agents.insert(agent) {
            self.faults.push(format!("agent {}: there are two of this name", before.name));
        }
    }
}

/// A server, ready to serve.
pub struct Server {
    runner: Runner,
    drain_timeout: Duration,
}

impl Server {
    /// A server of these settings.
    pub async fn of(settings: &Settings) -> Result<Self, Error> {
        let mut builder =
            Builder::new().limits(settings.limits.clone()).drain_timeout(settings.drain_timeout);
        match &settings.agents {
            None => {
                for (name, text) in file::samples() {
                    builder = builder.agent_file(name, text);
                }
            }
            Some(dir) => match file::load_dir(dir, &[]) {
                Ok(agents) => builder = builder.agents(&agents),
                Err(faults) => builder.faults.extend(faults.iter().map(ToString::to_string)),
            },
        }
        builder = match &settings.store {
            StoreUrl::Memory => builder.memory(),
            StoreUrl::Sqlite(path) => builder.sqlite(path),
        };
        builder.build().await
    }

    /// The runner behind the services.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Binds the address and serves until `stop` ends, or the store fails for good.
    pub async fn serve(
        self,
        address: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let listener = bind(address).await?;
        self.serve_on(listener, stop).await
    }

    /// Serves on a bound socket until `stop` ends, or the store fails for good. What is under way
    /// then has the drain timeout to come to a rest; what does not is recovered at the next start.
    pub async fn serve_on(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let Self { runner, drain_timeout } = self;
        let limits = runner.limits();
        let (routes, health) = grpc::routes(&runner).await;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let draining = runner.draining().clone();
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(limits.keepalive_interval))
            .http2_keepalive_timeout(Some(limits.keepalive_timeout))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, draining.cancelled_owned());
        let mut serving = tokio::spawn(serving);
        let jobs = {
            let runner = runner.clone();
            tokio::spawn(async move { runner.reconcile().await })
        };
        let failed = {
            let runner = runner.clone();
            async move { runner.failed().await }
        };
        let outcome = tokio::select! {
            () = stop => Ok(()),
            why = failed => Err(Error::Failed(format!("the store failed: {why}"))),
            ended = &mut serving => Err(Error::Failed(match ended {
                Ok(Ok(())) => "the server stopped by itself".to_owned(),
                Ok(Err(error)) => format!("the server stopped: {error}"),
                Err(error) => format!("the server stopped: {error}"),
            })),
        };
        tracing::info!("draining");
        grpc::set_serving(&health, false).await;
        let rest = async {
            runner.drain().await;
            let _ = jobs.await;
            if !serving.is_finished() {
                let _ = (&mut serving).await;
            }
        };
        if tokio::time::timeout(drain_timeout, rest).await.is_err() {
            tracing::warn!("what was under way did not come to a rest in time");
        }
        serving.abort();
        outcome
    }
}

/// Binds an address, with an error that names it.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::Settings(vec![format!("--listen: cannot listen on {address}: {error}")])
    })
}
