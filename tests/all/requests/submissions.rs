//! What is refused of SubmitFunctionResponse.

use serde_json::json;

use super::table::{Refused, invalid, not};

/// All that is refused of it.
pub fn refused() -> Vec<Refused> {
    const SUBMIT: &str = "SubmitFunctionResponse";
    let named = |id: &str, name: &str| json!({"function_response": {"id": id, "name": name}});
    let right = named("$call", "ask_for_approval")["function_response"].clone();
    let mut cases = vec![
        invalid(SUBMIT, json!({"function_response": null}), &["function_response"]),
        invalid(
            SUBMIT,
            json!({"function_response": {}}),
            &["function_response.id", "function_response.name"],
        ),
        invalid(SUBMIT, named("a\0", "pay"), &["function_response.id"]),
        invalid(SUBMIT, named(&"x".repeat(129), "pay"), &["function_response.id"]),
        invalid(SUBMIT, named("adk-1", ""), &["function_response.name"]),
        invalid(SUBMIT, named("$call", "adk_request_credential"), &["function_response.name"]),
        not(SUBMIT, named("adk-1", "pay"), "CALL_NOT_FOUND"),
        not(SUBMIT, named("$call", "pay"), "CALL_NAME_MISMATCH"),
        not(SUBMIT, named("$call", "ask_for_approval\0"), "CALL_NAME_MISMATCH"),
        not(SUBMIT, json!({"app_name": "other"}), "CALL_NOT_FOUND"),
        not(SUBMIT, json!({"user_id": "bob"}), "CALL_NOT_FOUND"),
        not(SUBMIT, json!({"session_id": "s2"}), "CALL_NOT_FOUND"),
        not(SUBMIT, json!({"invocation_id": "$other_invocation"}), "INVOCATION_MISMATCH"),
        not(
            SUBMIT,
            json!({"expected_args_digest": format!("sha256:{}", "0".repeat(64))}),
            "ARGS_DIGEST_MISMATCH",
        ),
        invalid(SUBMIT, json!({"comment": "x".repeat(4097)}), &["comment"]),
        invalid(SUBMIT, json!({"comment": "\u{e9}".repeat(2049)}), &["comment"]),
        // Both ways at once, the first with a fault of its own.
        invalid(SUBMIT, json!({"response_json": "{"}), &["response_json"]),
        invalid(SUBMIT, json!({"response_json": "{}"}), &["response_json"]),
    ];
    let digits = "1".repeat(401);
    let upper = format!("sha256:{}", "A".repeat(64));
    for digest in ["sha256:", "x", "md5:00", &"0".repeat(64), &upper] {
        let digest = json!({"expected_args_digest": digest});
        cases.push(invalid(SUBMIT, digest, &["expected_args_digest"]));
    }
    let deep = |levels: usize| format!("{}{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for text in [
        " ",
        "null",
        "1",
        "\"x\"",
        "[]",
        "[{}]",
        "{",
        "{}x",
        "{} {}",
        "{},",
        "\u{feff}{}",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"\\u0061\":1}",
        "{\"a\":{\"b\":1,\"b\":2}}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":1.}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":1e999999999}",
        "{\"a\":1e-999999999}",
        "{\"a\":1e99999999999999999999999999}",
        &format!("{{\"a\":{digits}}}"),
        &format!("{{\"a\":-{digits}}}"),
        &format!("{{\"a\":0.{digits}}}"),
        "{\"$serde_json::private::Number\":\"1\"}",
        "{\"a\":{\"$serde_json::private::Number\":\"1\"}}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\u{1}\"}",
        "{\"a\":1,}",
        "{\"a\":1}\0",
        &deep(33).replace("\"a\":}", "\"a\":1}"),
        &"[".repeat(100_000),
        &"{\"a\":".repeat(100_000),
    ] {
        let patch = json!({"function_response": right, "response_json": text});
        cases.push(invalid(SUBMIT, patch, &["response_json"]));
    }
    cases
}
