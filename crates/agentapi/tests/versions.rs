//! Agents are as old as their sandbox: settings and answers of other versions are understood.
#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_agentapi::{Features, InitReply, InitRequest};

/// As the agent of commit 96755ff2 answered `POST /init`. A sandbox may be that old.
const OLDER: &str = r#"{"agentVersion":"0.1.0","envdVersion":"0.6.13","generation":1,
    "features":["attach-tail","logs","byte-paths","range","signal-any","token-rotation","attach-from","hold","search","archive"]}"#;

#[test]
fn an_agent_of_another_version_is_understood() {
    let older: InitReply = serde_json::from_str(OLDER).unwrap();
    assert_eq!((older.agent_version.as_str(), older.generation), ("0.1.0", 1));
    assert!(
        older.features.iter().all(|known| Features::ALL.contains(&known.as_str())),
        "no feature was taken away"
    );
    let newer = OLDER.replace("\"generation\":1", "\"generation\":2,\"limits\":{\"streams\":7}");
    let newer: InitReply = serde_json::from_str(&newer).unwrap();
    assert_eq!((newer.generation, newer.features), (2, older.features));
    let oldest: InitReply = serde_json::from_str("{}").unwrap();
    assert!(oldest.features.is_empty());
    // A newer host sends an older agent settings that it does not know.
    let request: InitRequest = serde_json::from_str(r#"{"defaultUser":"user","colour":"blue"}"#).unwrap();
    assert_eq!(request.default_user.as_deref(), Some("user"));
}
