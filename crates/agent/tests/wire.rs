//! The wire protocol as other clients use it: tokens, JSON and binary codecs, error formats, `/files`, keep-alives.

#![allow(clippy::unwrap_used)]

use crate::common;
use std::time::Duration;

use crate::common::{TOKEN, TestAgent};
use atoll_agentapi::InitRequest;
use buffa::Message;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const START: &str = "/process.Process/Start";

#[tokio::test]
async fn everything_but_health_needs_the_token() {
    let agent = TestAgent::start();
    let (status, ..) = agent.raw(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status, 204);
    for line in [
        "POST /init",
        "GET /files?path=/etc/passwd",
        "POST /files?path=/tmp/x",
        "GET /envs",
        "GET /metrics",
        "POST /process.Process/List",
        "POST /filesystem.Filesystem/Stat",
        "POST /atoll.agent.v1.Agent/List",
        "GET /nothing",
    ] {
        for token in [
            "",
            "X-Access-Token: wrong\r\n",
            &format!("X-Access-Token: {TOKEN}x\r\n"),
            "Authorization: Basic cm9vdDo=\r\n",
        ] {
            let request = format!(
                "{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{token}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            );
            let (status, _, body) = agent.raw(request.as_bytes()).await;
            assert_eq!(status, 401, "{line} with {token:?}");
            assert!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["message"].is_string());
        }
    }
}

#[tokio::test]
async fn init_answers_as_envd_does_and_more_when_our_host_asks() {
    let agent = TestAgent::start();
    let (status, _, body) =
        agent.http("POST", "/init", "", br#"{"envVars":{"A":"1"},"hyperloopIP":"x"}"#).await;
    assert_eq!((status, body.len()), (204, 0));
    let (status, _, body) = agent.http("GET", "/envs", "", b"").await;
    assert_eq!((status, body.as_slice()), (200, &br#"{"A":"1"}"#[..]));
    let reply = agent.client.init(&InitRequest::default()).await.unwrap();
    assert_eq!((reply.generation, reply.envd_version.as_str()), (1, "0.6.13"));
    assert!(reply.features.iter().any(|feature| feature == "logs"));
    assert_eq!(agent.sh("echo $A").await.stdout, b"1\n");
    assert_eq!(agent.http("POST", "/init", "", br#"{"envVars":3}"#).await.0, 400);
}

#[tokio::test]
async fn a_rotated_token_takes_the_place_of_the_old_one() {
    let agent = TestAgent::start();
    let request =
        InitRequest { access_token: Some("another-token-9876543210".into()), ..InitRequest::default() };
    agent.client.init(&request).await.unwrap();
    assert_eq!(agent.http("GET", "/envs", "", b"").await.0, 401);
    assert!(agent.client.metrics().await.unwrap().mem_total > 0);
}

#[tokio::test]
async fn streams_go_on_over_a_rotation_and_the_old_token_opens_nothing_more() {
    let agent = TestAgent::start();
    let old = atoll_agentapi::AgentClient::new(
        {
            let address = agent.address;
            move || tokio::net::TcpStream::connect(address)
        },
        &atoll_agentapi::AgentToken::new(TOKEN),
    );
    let what = atoll_agentapi::StartProcess { stdin: true, ..common::sh("echo up; read x; echo $x; exit 4") };
    let (started, mut stream) = old.start(what).await.unwrap();
    let up = stream.next().await.unwrap().unwrap();
    assert_eq!(up, atoll_agentapi::ProcessEvent::Stdout("up\n".into()));
    // An open connection that presented the old token has no access either: each request is checked.
    assert!(old.metrics().await.is_ok());
    let request =
        InitRequest { access_token: Some("another-token-9876543210".into()), ..InitRequest::default() };
    agent.client.init(&request).await.unwrap();
    assert!(old.metrics().await.is_err());
    assert!(old.send_stdin(started.pid, "no\n").await.is_err());
    assert!(old.attach(started.pid, true).await.is_err());
    agent.client.send_stdin(started.pid, "yes\n").await.unwrap();
    let next = stream.next().await.unwrap().unwrap();
    assert_eq!(next, atoll_agentapi::ProcessEvent::Stdout("yes\n".into()));
    let end = stream.next().await.unwrap().unwrap();
    assert!(matches!(end, atoll_agentapi::ProcessEvent::Exit(status) if status.code == Some(4)));
}

#[tokio::test]
async fn start_in_json_gives_start_data_end_and_the_end_frame() {
    let agent = TestAgent::start();
    let frames = agent
        .json_stream(START, "", r#"{"process":{"cmd":"/bin/bash","args":["-c","echo hi; echo no >&2; exit 3"],"cwd":"/"},"stdin":false,"unknown":1}"#)
        .await;
    assert!(frames[0]["event"]["start"]["pid"].as_u64().unwrap() > 0);
    assert!(frames.iter().any(|frame| frame["event"]["data"]["stdout"] == "aGkK"));
    assert!(frames.iter().any(|frame| frame["event"]["data"]["stderr"] == "bm8K"));
    let end = &frames[frames.len() - 2]["event"]["end"];
    assert_eq!(
        *end,
        json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"})
    );
    assert_eq!(frames.last().unwrap()["end"], json!({}));
}

#[tokio::test]
async fn a_killed_process_ends_as_go_words_it() {
    let agent = TestAgent::start();
    let frames =
        agent.json_stream(START, "", r#"{"process":{"cmd":"/bin/sh","args":["-c","kill -9 $$"]}}"#).await;
    let end = &frames[frames.len() - 2]["event"]["end"];
    assert_eq!(*end, json!({"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}));
}

#[tokio::test]
async fn errors_of_streams_come_in_the_end_frame_and_of_unary_calls_by_status() {
    let agent = TestAgent::start();
    let frames = agent.json_stream(START, "", r#"{"process":{"cmd":"/bin/true","cwd":"/no/such"}}"#).await;
    assert_eq!(frames.len(), 1);
    assert_eq!(
        frames[0]["end"]["error"],
        json!({"code": "invalid_argument", "message": "cwd '/no/such' does not exist"})
    );
    let (status, body) = agent
        .json("/process.Process/SendSignal", r#"{"process":{"pid":999999},"signal":"SIGNAL_SIGKILL"}"#)
        .await;
    assert_eq!((status, body["code"].as_str().unwrap()), (404, "not_found"));
    let (status, body) = agent.json("/filesystem.Filesystem/Stat", r#"{"path":"/no/such"}"#).await;
    assert_eq!((status, body["code"].as_str().unwrap()), (404, "not_found"));
    let (status, body) = agent.json("/process.Process/Nope", "{}").await;
    assert_eq!((status, body["code"].as_str().unwrap()), (404, "unimplemented"));
    let frames = agent
        .json_stream(START, "Authorization: Basic bm9zdWNoOg==\r\n", r#"{"process":{"cmd":"true"}}"#)
        .await;
    assert_eq!(frames[0]["end"]["error"]["code"], "unauthenticated");
}

#[tokio::test]
async fn the_timeout_of_start_kills_and_that_of_connect_only_ends_the_stream() {
    let agent = TestAgent::start();
    let begun = std::time::Instant::now();
    let frames = agent
        .json_stream(START, "Connect-Timeout-Ms: 300\r\n", r#"{"process":{"cmd":"sleep","args":["60"]}}"#)
        .await;
    assert_eq!(frames.last().unwrap()["end"]["error"]["code"], "deadline_exceeded");
    assert!(begun.elapsed() < common::PATIENCE);
    assert!(agent.client.list().await.unwrap().is_empty());
    let (started, _stream) = agent.client.start(common::command(&["sleep", "60"])).await.unwrap();
    let body = format!(r#"{{"process":{{"pid":{}}}}}"#, started.pid);
    let frames = agent.json_stream("/process.Process/Connect", "Connect-Timeout-Ms: 200\r\n", &body).await;
    assert_eq!(frames[0]["event"]["start"]["pid"], started.pid);
    assert_eq!(frames.last().unwrap()["end"]["error"]["code"], "deadline_exceeded");
    assert_eq!(agent.client.list().await.unwrap().len(), 1);
    agent.client.signal(started.pid, 9).await.unwrap();
}

#[tokio::test]
async fn a_process_whose_deadline_is_due_is_not_listed_even_before_it_is_gone() {
    let agent = TestAgent::start();
    let what = atoll_agentapi::StartProcess {
        timeout: Some(Duration::from_millis(2000)),
        ..common::command(&["sleep", "60"])
    };
    let (_, mut stream) = agent.client.start(what).await.unwrap();
    assert_eq!(agent.client.list().await.unwrap().len(), 1);
    // By the caller's clock, which started earlier than the agent's.
    tokio::time::sleep(Duration::from_millis(1990)).await;
    assert!(agent.client.list().await.unwrap().is_empty());
    let exit = stream.next().await.unwrap().unwrap();
    assert!(matches!(exit, atoll_agentapi::ProcessEvent::Exit(status) if status.timed_out), "{exit:?}");
}

#[tokio::test]
async fn tags_of_the_hosts_own_processes_are_refused() {
    let agent = TestAgent::start();
    for tag in ["atoll-context/python/default-python", "atoll-lsp/x", "atoll-session/a/61", "terminal-0a"] {
        let body = format!(r#"{{"process":{{"cmd":"/bin/true"}},"tag":"{tag}"}}"#);
        let frames = agent.json_stream(START, "", &body).await;
        let said = serde_json::to_string(&frames).unwrap();
        assert!(said.contains("invalid_argument") && said.contains("is reserved"), "{said}");
    }
    assert!(agent.client.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_late_connect_replays_start_and_end() {
    let agent = TestAgent::start();
    let frames = agent
        .json_stream(START, "", r#"{"process":{"cmd":"/bin/sh","args":["-c","exit 4"]},"tag":"t"}"#)
        .await;
    let pid = frames[0]["event"]["start"]["pid"].as_u64().unwrap();
    for selector in [format!(r#"{{"pid":{pid}}}"#), r#"{"tag":"t"}"#.to_owned()] {
        let body = format!(r#"{{"process":{selector}}}"#);
        let frames = agent.json_stream("/process.Process/Connect", "", &body).await;
        assert_eq!(frames[0]["event"]["start"]["pid"], pid);
        assert_eq!(frames[1]["event"]["end"]["exitCode"], 4);
    }
}

#[tokio::test]
async fn a_silent_stream_says_that_it_lives() {
    let agent = TestAgent::start();
    let frames = agent
        .json_stream(START, "Keepalive-Ping-Interval: 1\r\n", r#"{"process":{"cmd":"sleep","args":["1.5"]}}"#)
        .await;
    assert!(frames.iter().any(|frame| frame["event"]["keepalive"].is_object()));
}

#[tokio::test]
async fn the_binary_codec_works_with_envds_field_numbers() {
    use atoll_agentapi::proto::process::{ListRequest, ListResponse};
    let agent = TestAgent::start();
    let (started, _stream) = agent.client.start(common::command(&["sleep", "60"])).await.unwrap();
    let (status, head, body) = agent
        .http(
            "POST",
            "/process.Process/List",
            "Content-Type: application/proto\r\n",
            &ListRequest::default().encode_to_vec(),
        )
        .await;
    assert!(status == 200 && head.contains("content-type: application/proto"));
    let list = ListResponse::decode_from_slice(&body).unwrap();
    assert_eq!(list.processes[0].pid, started.pid);
    // Raw bytes: Stat{path=1:"/tmp"} and EntryInfo in field 1, name in its field 1.
    let (_, _, body) = agent
        .http("POST", "/filesystem.Filesystem/Stat", "Content-Type: application/proto\r\n", b"\x0a\x04/tmp")
        .await;
    assert_eq!((body[0], &body[2..7]), (0x0a, &b"\x0a\x03tmp"[..]));
    agent.client.signal(started.pid, 9).await.unwrap();
}

#[tokio::test]
async fn input_can_be_streamed_by_the_client() {
    let agent = TestAgent::start();
    let what = atoll_agentapi::StartProcess { stdin: true, ..common::sh("head -n 2") };
    let (started, mut stream) = agent.client.start(what).await.unwrap();
    let messages = [
        format!(r#"{{"start":{{"process":{{"pid":{}}}}}}}"#, started.pid),
        r#"{"keepalive":{}}"#.into(),
        r#"{"data":{"input":{"stdin":"YQo="}}}"#.into(),
        r#"{"data":{"input":{"stdin":"Ygo="}}}"#.into(),
    ];
    let mut body = Vec::new();
    for message in &messages {
        body.push(0);
        body.extend((message.len() as u32).to_be_bytes());
        body.extend(message.as_bytes());
    }
    let (status, _, body) = agent
        .http("POST", "/process.Process/StreamInput", "Content-Type: application/connect+json\r\n", &body)
        .await;
    assert_eq!(status, 200);
    assert_eq!(common::frames(&body).last().unwrap()["end"], json!({}));
    let mut seen = Vec::new();
    while let Some(Ok(event)) = stream.next().await {
        if let atoll_agentapi::ProcessEvent::Stdout(data) = event {
            seen.extend(data);
        }
    }
    assert_eq!(seen, b"a\nb\n");
}

#[tokio::test]
async fn a_crowd_of_strangers_does_not_keep_the_host_out() {
    let agent = TestAgent::start();
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(tokio::net::TcpStream::connect(agent.address).await.unwrap());
    }
    assert_eq!(agent.sh("echo ok").await.stdout, b"ok\n");
    let mut half = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    half.write_all(b"POST /init HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n{").await.unwrap();
    let mut answer = vec![0; 12];
    half.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn whoever_showed_the_token_is_no_stranger_while_the_answer_takes_long() {
    let agent = TestAgent::start();
    let mut upload = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let head = format!(
        "POST /init HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Access-Token: {TOKEN}\r\nContent-Length: 2\r\n\r\n{{"
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    // Longer than an unauthenticated connection may take to present the token.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(tokio::net::TcpStream::connect(agent.address).await.unwrap());
    }
    assert_eq!(agent.sh("echo ok").await.stdout, b"ok\n");
    upload.write_all(b"}").await.unwrap();
    let mut answer = vec![0; 12];
    upload.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 204");
}

#[tokio::test]
async fn garbage_on_the_socket_harms_nobody() {
    let agent = TestAgent::start();
    for garbage in [
        &b"\0\0\0\0"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /process.Process/Start HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ] {
        let mut stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
    }
    for body in
        [&b""[..], b"\0\xff\xff\xff\xff", b"\0\0\0\0\x02{}", b"\x01\0\0\0\x02{}", b"\0\0\0\0\x09{\"a\":[[[["]
    {
        let (status, _, _) =
            agent.http("POST", START, "Content-Type: application/connect+json\r\n", body).await;
        assert!(status < 500, "{status}");
    }
    assert_eq!(agent.sh("echo ok").await.stdout, b"ok\n");
}
