//! The demo, as anybody runs it: with a server of its own, against the real runtime.

use super::{code, err, out};

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_tells_the_main_job() {
    let demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_countersign"))
        .arg("demo")
        .env_remove("COUNTERSIGN_SERVER")
        .output();
    let output = demo.await.unwrap();
    assert_eq!((err(&output), code(&output)), ("", 0));
    for told in [
        "1. A small amount is paid at once",
        "→ reimburse({\"amount\":50,\"purpose\":\"meals\"})",
        "→ ask_for_approval({\"amount\":200,\"purpose\":\"conference travel\"})",
        "paused, waiting for an answer to:",
        "APPLIED: ask_for_approval is DONE",
        "→ reimburse({\"amount\":200,\"purpose\":\"conference travel\"})",
        "CALL_ALREADY_ANSWERED",
        "was rejected. The approver says: Please ask before you invite somebody.",
    ] {
        assert!(out(&output).contains(told), "{told}\nis not in\n{}", out(&output));
    }
}
