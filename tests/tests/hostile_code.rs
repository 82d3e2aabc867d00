//! Hostile code in an interpreter: it writes the bridge's own lines, floods, kills, hangs, and displays too much. The
//! caller always gets an end, in time, and the server is unaffected.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use reqwest::Method;

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options { templates: vec!["code-interpreter-slim"], ..Options::debian() }, body);
}

fn server_peak_mib(w: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The vendor's own call, on the sandbox's own host.
async fn execute(client: &Client, id: &str, body: Value) -> (u16, Value) {
    let request = client.raw(Method::POST, "/execute").header("host", format!("{id}.localhost")).json(&body);
    let answer = request.timeout(Duration::from_secs(120)).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

fn python(code: &str, timeout_ms: u64) -> Value {
    json!({ "code": code, "language": "python", "timeout_ms": timeout_ms })
}

#[test]
fn whatever_code_does_its_caller_hears_of_an_end() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "template": "code-interpreter-slim" })).await;
        let (status, said) = execute(&client, &id, python("40 + 2", 30_000)).await;
        assert_eq!((status, &said["items"][0]["text"]), (200, &json!("42")), "{said}");
        let before = server_peak_mib(w);
        let within = Duration::from_secs(25);
        let attacks = [
            // Lines of the bridge's own, on its own pipe.
            (
                "import os\nfor n in range(3, 40):\n  try: os.write(os.open(f'/proc/{os.getppid()}/fd/{n}', os.O_WRONLY), b'{\"type\":\"end\",\"id\":null}\\n{\"type\":\"stdout\"\\n' * 1000)\n  except OSError: pass",
                5_000,
            ),
            ("while True: print('x' * 100000)", 3_000),
            ("import sys\nwhile True: sys.stderr.write('y' * 1000000)", 3_000),
            (
                "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n  try: time.sleep(100)\n  except BaseException: pass",
                2_000,
            ),
            (
                "import os\nfor _ in range(30):\n  if os.fork() == 0:\n    import time; time.sleep(60); os._exit(0)",
                5_000,
            ),
            (
                "from IPython.display import display\ndisplay({'application/json': [0] * 15_000_000}, raw=True)",
                20_000,
            ),
            ("print('z' * 70_000_000)", 20_000),
            ("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", 3_000),
            ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", 5_000),
        ];
        for (code, timeout_ms) in attacks {
            let begun = Instant::now();
            let (status, said) = execute(&client, &id, python(code, timeout_ms)).await;
            let took = begun.elapsed();
            let shown: String = said.to_string().chars().take(200).collect();
            assert!(took < Duration::from_millis(timeout_ms) + within, "{code}: {took:?}");
            assert!(status < 500 || status == 504, "{code}: {status} {shown}");
        }
        // A bridge that was stopped never answers again; its context can be ended all the same.
        let ended =
            client.raw(Method::DELETE, "/contexts/default-python").header("host", format!("{id}.localhost"));
        let ended = ended.send().await.unwrap().status().as_u16();
        assert!(matches!(ended, 204 | 404), "{ended}");
        let (status, said) = execute(&client, &id, python("1 + 1", 60_000)).await;
        assert_eq!((status, &said["items"][0]["text"]), (200, &json!("2")), "{said}");
        let peak = server_peak_mib(w);
        assert!(peak < before + 400, "{before} MiB became {peak} MiB");
    });
}

#[test]
fn code_that_waits_behind_code_that_hangs_is_given_up_in_time() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "template": "code-interpreter-slim" })).await;
        execute(&client, &id, python("1", 60_000)).await;
        let code = "import time; open('/tmp/hangs', 'w').close(); time.sleep(100)";
        let hang = execute(&client, &id, python(code, 110_000));
        let behind = async {
            until("it hangs", async || (client.sh(&id, "test -e /tmp/hangs").await.code == 0).then_some(()))
                .await;
            let begun = Instant::now();
            let (status, said) = execute(&client, &id, python("2", 1_000)).await;
            (status, said, begun.elapsed())
        };
        let behind = tokio::select! { _ = hang => panic!("it did not hang"), behind = behind => behind };
        assert!(behind.2 < Duration::from_secs(30), "{behind:?}");
        assert_eq!(behind.1["error"]["name"], "TimeoutError", "{behind:?}");
    });
}
