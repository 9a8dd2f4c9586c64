//! Standing approvals: what runs without a question.

use super::super::common::{Filter, Limit, show_time};
use super::super::listing::Listing;
use super::super::text::clean_line;
use super::super::{Console, Failure, YesNo, exit};
use crate::client::Client;
use crate::proto::v1;

/// Arguments of `approvals standing`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,

    /// Only of this session
    #[arg(long, env = "COUNTERSIGN_SESSION", hide_env_values = true)]
    session: Option<String>,

    /// Also those that were taken back
    #[arg(long)]
    revoked: bool,

    #[command(flatten)]
    limit: Limit,

    /// Print them as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Arguments of `approvals revoke`.
#[derive(Debug, clap::Args)]
pub struct Revoke {
    /// Id of the standing approval, as `standing` shows it
    id: String,

    /// A mark on this request: a repeat with the same one does nothing again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print it as proto3 JSON
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Lists them.
pub async fn list(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut request = v1::ListStandingApprovalsRequest {
        app_name: args.filter.app.unwrap_or_default(),
        user_id: args.filter.user.unwrap_or_default(),
        session_id: args.session.unwrap_or_default(),
        show_revoked: args.revoked,
        page_size: 0,
        page_token: String::new(),
    };
    let header = ["ID", "APP", "USER", "SESSION", "MADE", "BY", "UNTIL", "RUNS"];
    let listing =
        Listing { none: "no standing approvals", header, limit: args.limit, json: args.json };
    let page = async |page_size, page_token| {
        (request.page_size, request.page_token) = (page_size, page_token);
        let page = client.approvals().list_standing_approvals(request.clone()).await?.into_inner();
        Ok((page.standing_approvals, page.next_page_token))
    };
    listing.print(console, page, row).await
}

fn row(standing: v1::StandingApproval) -> [String; 8] {
    let until = match standing.expire_time.as_ref() {
        _ if standing.revoked => "revoked".to_owned(),
        until => show_time(until),
    };
    let runs = match &*standing.exact_args_json {
        "" => format!("{}(...)", standing.tool_name),
        args => format!("{}({args})", standing.tool_name),
    };
    [
        standing.id,
        standing.app_name,
        standing.user_id,
        standing.session_id,
        show_time(standing.create_time.as_ref()),
        standing.created_by,
        until,
        runs,
    ]
}

/// Takes one back.
pub async fn revoke(
    console: &mut Console<'_>,
    client: &Client,
    args: Revoke,
) -> Result<u8, Failure> {
    let request = v1::RevokeStandingApprovalRequest {
        id: args.id,
        request_id: args.request_id.unwrap_or_default(),
    };
    let standing = client.approvals().revoke_standing_approval(request).await?.into_inner();
    if args.json {
        console.json(&standing)?;
        return Ok(exit::DONE);
    }
    let (id, tool) = (clean_line(&standing.id), clean_line(&standing.tool_name));
    writeln!(console.out, "{id} is revoked: calls of {tool} are asked again")?;
    Ok(exit::DONE)
}
