//! What is refused, and what is taken, of requests about approvals.

use serde_json::{Value, json};

use super::table::{Refused, invalid, not};
use super::{Case, case};
use crate::wire::Content;

const DECIDE: &str = "DecideApproval";

/// A digest of other arguments than any call's.
fn other_digest() -> String {
    format!("sha256:{}", "0".repeat(64))
}

/// All that is refused.
pub fn refused() -> Vec<Refused> {
    let mut cases = lists();
    cases.extend(fields());
    cases.extend(decisions());
    cases.extend(others());
    cases
}

/// Filters.
fn lists() -> Vec<Refused> {
    let mut cases = Vec::new();
    for method in ["ListApprovals", "WatchApprovals"] {
        let unspecified = json!({"states": ["PENDING", "STATE_UNSPECIFIED"]});
        cases.push(invalid(method, unspecified, &["states[1]"]));
        let unspecified = json!({"kinds": ["INPUT", "CONFIRMATION", "KIND_UNSPECIFIED"]});
        cases.push(invalid(method, unspecified, &["kinds[2]"]));
        for (field, told, first) in [("states", "states[0]", 7), ("kinds", "kinds[0]", 5)] {
            for unknown in [first, 99, u64::MAX] {
                let unknown = case(method, json!({})).with(field, Content::Varint(unknown));
                cases.push((unknown, "FIELD_INVALID", vec![told]));
            }
        }
        cases.push(invalid(method, json!({"tool_name": "x".repeat(129)}), &["tool_name"]));
    }
    for field in ["create_after", "create_before"] {
        let before = json!({ field: "1969-12-31T23:59:59Z" });
        cases.push(invalid("ListApprovals", before, &[field]));
    }
    cases
}

/// Fields that are wrong in themselves.
fn fields() -> Vec<Refused> {
    let mut cases = vec![
        invalid("AssignApproval", json!({"assignee": null, "lease": "60s"}), &["lease"]),
        invalid("ExtendApproval", json!({"expire_time": null}), &["expire_time"]),
        // The deadline that it has is later.
        not("ExtendApproval", json!({"etag": "9"}), "ETAG_MISMATCH"),
    ];
    for lease in ["0s", "-1s", "86400.000000001s", "315576000000s"] {
        cases.push(invalid("AssignApproval", json!({ "lease": lease }), &["lease"]));
    }
    for time in ["1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2020-01-01T00:00:00Z"] {
        cases.push(invalid("ExtendApproval", json!({ "expire_time": time }), &["expire_time"]));
        let remember = json!({"verdict": "APPROVE", "args_digest": other_digest(),
            "remember": {"scope": "TOOL", "until": time}});
        cases.push(invalid(DECIDE, remember, &["remember.until"]));
    }
    for method in [DECIDE, "AssignApproval", "ExtendApproval"] {
        for etag in ["x", "-1", "+1", " 1", "1.0", "99999999999999999999"] {
            cases.push(invalid(method, json!({ "etag": etag }), &["etag"]));
        }
        cases.push(not(method, json!({"etag": "99"}), "ETAG_MISMATCH"));
    }
    for (method, field) in [(DECIDE, "reason"), (DECIDE, "comment"), ("ExtendApproval", "comment")]
    {
        cases.push(invalid(method, json!({ field: "x".repeat(4097) }), &[field]));
        cases.push(invalid(method, json!({ field: "\u{e9}".repeat(2049) }), &[field]));
    }
    for verdict in [json!(null), json!("VERDICT_UNSPECIFIED")] {
        cases.push(invalid(DECIDE, json!({ "verdict": verdict }), &["verdict"]));
    }
    for unknown in [6, 99, u64::MAX] {
        let unknown = case(DECIDE, json!({})).with("verdict", Content::Varint(unknown));
        cases.push((unknown, "FIELD_INVALID", vec!["verdict"]));
    }
    for digest in ["sha256:", "x", "md5:00", &format!("sha256:{}", "A".repeat(64))] {
        cases.push(invalid(DECIDE, json!({ "args_digest": digest }), &["args_digest"]));
    }
    cases
}

/// What goes with one verdict only, and what comes in two ways.
fn decisions() -> Vec<Refused> {
    let with = |verdict: &str, more: Value| {
        let mut all = json!({ "verdict": verdict });
        let more = more.as_object().cloned().unwrap_or_default();
        all.as_object_mut().expect("an object").extend(more);
        all
    };
    let approve = |more: Value| {
        let mut all = with("APPROVE", more);
        all["args_digest"] = other_digest().into();
        all
    };
    let mut cases = vec![
        invalid(DECIDE, with("DENY", json!({"result": {}})), &["result"]),
        invalid(DECIDE, with("DENY", json!({"result_json": "{}"})), &["result_json"]),
        invalid(DECIDE, with("DENY", json!({"edited_args": {}})), &["edited_args"]),
        invalid(DECIDE, with("DENY", json!({"edited_args_json": "{}"})), &["edited_args_json"]),
        invalid(DECIDE, with("DENY", json!({"remember": {"scope": "TOOL"}})), &["remember"]),
        invalid(DECIDE, with("DENY", json!({"force": true})), &["force"]),
        invalid(DECIDE, with("DENY", json!({"payload": 1})), &["payload"]),
        invalid(
            DECIDE,
            with("SUPPLY_RESULT", json!({"result": {}, "result_json": "{}"})),
            &["result_json"],
        ),
        invalid(DECIDE, with("SUPPLY_RESULT", json!({})), &["result"]),
        invalid(
            DECIDE,
            approve(json!({"edited_args": {}, "edited_args_json": "{}"})),
            &["edited_args_json"],
        ),
        invalid(DECIDE, approve(json!({"payload": 1, "payload_json": "1"})), &["payload_json"]),
        invalid(DECIDE, approve(json!({"remember": {}})), &["remember.scope"]),
        invalid(DECIDE, with("REQUEST_CHANGES", json!({"reason": " "})), &["reason"]),
        not(DECIDE, with("REQUEST_CHANGES", json!({"reason": "less"})), "VERDICT_NOT_ALLOWED"),
        not(
            DECIDE,
            with("RUN_AGAIN", json!({"args_digest": other_digest()})),
            "VERDICT_NOT_ALLOWED",
        ),
        not(DECIDE, with("APPROVE", json!({})), "ARGS_DIGEST_REQUIRED"),
        not(DECIDE, approve(json!({})), "ARGS_DIGEST_MISMATCH"),
        not(DECIDE, json!({"args_digest": other_digest()}), "ARGS_DIGEST_MISMATCH"),
    ];
    for text in [" ", "{", "{}x", "{\"a\":1,\"a\":1}", "[1e401]"] {
        cases.push(invalid(
            DECIDE,
            with("SUPPLY_RESULT", json!({ "result_json": text })),
            &["result_json"],
        ));
        cases.push(invalid(
            DECIDE,
            approve(json!({ "edited_args_json": text })),
            &["edited_args_json"],
        ));
        cases.push(invalid(DECIDE, approve(json!({ "payload_json": text })), &["payload_json"]));
    }
    for text in ["null", "1", "[]"] {
        cases.push(invalid(
            DECIDE,
            with("SUPPLY_RESULT", json!({ "result_json": text })),
            &["result_json"],
        ));
    }
    let deep = format!("{}{}", "{\"a\":".repeat(30), "{}".to_owned() + &"}".repeat(30));
    let edited = json!({ "edited_args_json": deep });
    cases.push(invalid(DECIDE, approve(edited), &["edited_args"]));
    cases.push(invalid(DECIDE, approve(json!({ "payload_json": deep })), &["payload"]));
    cases
}

/// What is right in itself, and is not there.
fn others() -> Vec<Refused> {
    let mut cases = vec![not("RevokeStandingApproval", json!({}), "STANDING_APPROVAL_NOT_FOUND")];
    for method in ["GetApproval", DECIDE, "AssignApproval", "ExtendApproval"] {
        cases.push(not(method, json!({"call_id": "adk-1"}), "APPROVAL_NOT_FOUND"));
    }
    cases
}

/// All that is taken.
pub fn accepted() -> Vec<Case> {
    vec![
        case("ListApprovals", json!({})),
        case(
            "ListApprovals",
            json!({"app_name": "nobody", "user_id": "x", "tool_name": "\u{1f}", "assignee": "y",
                "kinds": ["INPUT", "INPUT"], "states": ["PENDING", "DENIED", "PENDING"],
                "create_after": "9999-12-31T23:59:59.999999999Z",
                "create_before": "1970-01-01T00:00:00Z", "newest_first": true,
                "page_size": i32::MAX, "page_token": ""}),
        ),
        case("GetApproval", json!({})),
        case("WatchApprovals", json!({"kinds": ["UNKNOWN_OUTCOME"], "states": ["CANCELLED"]})),
        case("SummarizeApprovals", json!({"app_name": "nobody"})),
        case(
            "ListStandingApprovals",
            json!({"app_name": "nobody", "user_id": "x", "session_id": " y ", "show_revoked": true,
                "page_size": 1, "page_token": ""}),
        ),
        case("AssignApproval", json!({"lease": "86400s", "etag": "", "request_id": "~"})),
        case("AssignApproval", json!({"lease": "0.000000001s"})),
        case("AssignApproval", json!({"assignee": null})),
        case("ExtendApproval", json!({"comment": "x".repeat(4096), "request_id": " "})),
    ]
}
