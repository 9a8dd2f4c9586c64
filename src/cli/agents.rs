//! `countersign agents`: what can be run.

use super::table::Table;
use super::{Console, Failure, YesNo, common, exit};
use crate::client::Client;
use crate::proto::v1;

/// Arguments of `agents`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print agents as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let agents = common::agents(client).await?;
    let mut table = Table::new(["NAME", "MODEL", "TOOLS", "DESCRIPTION"]);
    for agent in agents {
        if args.json {
            console.json(&agent)?;
            continue;
        }
        let tools: Vec<_> = agent.tools.iter().map(tool).collect();
        table.row([agent.name, agent.model, tools.join(", "), agent.description]);
    }
    if !args.json {
        table.print(console.out, console.paint)?;
    }
    Ok(exit::DONE)
}

/// A tool's name, and whether its calls wait for somebody.
fn tool(tool: &v1::ToolDeclaration) -> String {
    if tool.long_running { format!("{} (waits)", tool.name) } else { tool.name.clone() }
}
