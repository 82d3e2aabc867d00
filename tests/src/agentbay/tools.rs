//! The tools of a session: commands and files of the sandbox behind it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Fields, IMAGES, Refusal, ServiceShared, SessionRecord};
use crate::client::ran;

/// What a tool says: a text, or the text of a failure.
type Said = Result<String, String>;

/// The tools of an image, as a JSON text.
pub(super) fn list(image: &str) -> Result<Value, Refusal> {
    if !IMAGES.contains(&image) {
        return Err((400, "InvalidImageId.NotFound", format!("image {image} not found")));
    }
    let names = ["shell", "read_file", "write_file", "list_directory", "get_file_info", "get_metrics"];
    let tools =
        names.map(|name| json!({ "name": name, "description": name, "inputSchema": {}, "server": "main" }));
    Ok(json!(json!(tools).to_string()))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl ServiceShared {
    pub(super) async fn call_tool(&self, id: &str, fields: &Fields) -> Result<Value, Refusal> {
        let record = self.session(id)?;
        if record.status != "RUNNING" {
            return Err((400, "InvalidSessionStatus", format!("the session is {}", record.status)));
        }
        let args: Value = serde_json::from_str(&fields["Args"]).unwrap();
        let said = match fields["Name"].as_str() {
            "shell" => self.shell(&record, &args).await,
            "read_file" => self.read_file(&record, &args).await,
            "write_file" => self.write_file(&record, &args).await,
            "get_metrics" => Ok(self.metrics(&record).await),
            name => self.file_command(&record, name, &args).await,
        };
        let (text, is_error) = match said {
            Ok(text) => (text, false),
            Err(text) => (text, true),
        };
        Ok(json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
    }

    /// A command as root; its code, output and errors.
    async fn run(&self, record: &SessionRecord, line: &str, args: &Value) -> (i64, String, String) {
        let seconds = args["timeout_ms"].as_f64().unwrap_or(50_000.0) / 1_000.0;
        let mut body =
            json!({ "argv": ["/bin/sh", "-c", line], "user": "root", "timeout_s": seconds, "cwd": "/" });
        if let Some(cwd) = args["cwd"].as_str() {
            body["cwd"] = json!(cwd);
        }
        if args["envs"].is_object() {
            body["env"] = args["envs"].clone();
        }
        let answer = self.account.try_exec(&record.sandbox, body).await;
        if answer.status != 200 {
            return (1, String::new(), String::from_utf8_lossy(&answer.bytes).into_owned());
        }
        let ran = ran(&answer);
        (ran.code, ran.stdout, ran.stderr)
    }

    async fn shell(&self, record: &SessionRecord, args: &Value) -> Said {
        let (code, stdout, stderr) = self.run(record, args["command"].as_str().unwrap(), args).await;
        if record.image == "linux_latest" {
            return Ok(stdout);
        }
        let wrapped = json!({ "stdout": stdout, "stderr": stderr, "exit_code": code, "traceId": "trace" });
        if code == 0 { Ok(wrapped.to_string()) } else { Err(wrapped.to_string()) }
    }

    async fn content(&self, record: &SessionRecord, path: &str) -> Result<Vec<u8>, String> {
        let line = format!("cat {} | base64", quoted(path));
        let (exists, ..) = self.run(record, &format!("test -f {}", quoted(path)), &Value::Null).await;
        if exists != 0 {
            return Err(format!("ENOENT: no such file or directory, open '{path}'"));
        }
        let (_, text, _) = self.run(record, &line, &Value::Null).await;
        let plain: String = text.split_whitespace().collect();
        Ok(STANDARD.decode(plain).unwrap())
    }

    async fn read_file(&self, record: &SessionRecord, args: &Value) -> Said {
        let bytes = self.content(record, args["path"].as_str().unwrap()).await?;
        let number = |name: &str| usize::try_from(args[name].as_u64().unwrap_or(0)).unwrap();
        let from = number("offset").min(bytes.len());
        let len = match number("length") {
            0 => bytes.len(),
            len => len,
        };
        let window = &bytes[from..bytes.len().min(from + len)];
        Ok(match args["format"] == "binary" {
            true => STANDARD.encode(window),
            false => String::from_utf8_lossy(window).into_owned(),
        })
    }

    async fn write_file(&self, record: &SessionRecord, args: &Value) -> Said {
        let sign = if args["mode"] == "append" { ">>" } else { ">" };
        let line = format!("cat {sign}{}", quoted(args["path"].as_str().unwrap()));
        let content = STANDARD.encode(args["content"].as_str().unwrap());
        let body = json!({ "argv": ["/bin/sh", "-c", line], "user": "root", "stdin_base64": content });
        let done = ran(&self.account.try_exec(&record.sandbox, body).await);
        if done.code == 0 { Ok("written".to_owned()) } else { Err(done.stderr) }
    }

    async fn file_command(&self, record: &SessionRecord, name: &str, args: &Value) -> Said {
        let path = |name: &str| quoted(args[name].as_str().unwrap_or_default());
        let line = match name {
            "list_directory" => format!(
                "cd {} && for f in *; do [ -e \"$f\" ] || continue; [ -d \"$f\" ] && echo \"[DIR] $f\" || echo \"[FILE] $f\"; done",
                path("path")
            ),
            "get_file_info" => format!(
                "p={}; [ -e \"$p\" ] || {{ echo no such file >&2; exit 1; }}; d=false; [ -d \"$p\" ] && d=true; \
                 echo \"name: $(basename \"$p\")\"; echo \"size: $(stat -c %s \"$p\")\"; echo \"isDirectory: $d\"",
                path("path")
            ),
            "create_directory" => format!("mkdir -p {}", path("path")),
            "delete_file" => format!("rm -rf {}", path("path")),
            "move_file" => format!("mv {} {}", path("source"), path("destination")),
            other => return Err(format!("there is no tool {other}")),
        };
        let (code, stdout, stderr) = self.run(record, &line, &Value::Null).await;
        if code == 0 { Ok(stdout) } else { Err(stderr) }
    }

    async fn metrics(&self, record: &SessionRecord) -> String {
        let line = "grep -c ^processor /proc/cpuinfo; cat /proc/meminfo";
        let (_, text, _) = self.run(record, line, &Value::Null).await;
        let cores: u64 = text.lines().next().unwrap().trim().parse().unwrap();
        let kib = |name: &str| -> u64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let (total, free) = (kib("MemTotal:"), kib("MemFree:"));
        json!({
            "cpu_count": cores, "cpu_used_pct": 1.5, "mem_total": total * 1024, "mem_used": (total - free) * 1024,
            "disk_total": 1u64 << 30, "disk_used": 4096, "rx_rate_kbyte_per_s": 0.0, "tx_rate_kbyte_per_s": 0.0,
            "rx_used_kbyte": 0, "tx_used_kbyte": 0, "timestamp": "2026-11-18T00:00:00Z",
        })
        .to_string()
    }
}
