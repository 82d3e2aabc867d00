//! Prepares a sandbox once, forks it, tries something else in each copy and keeps the best one.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use atoll_client::exec::ExecBody;
use atoll_client::sandbox_requests::CreateBody;
use atoll_client::sandboxes::ForkBody;
use atoll_client::{Client, ClientError};

/// Commands that solve the same task; the shortest file wins.
const ATTEMPTS: [&str; 3] = ["gzip -1 -c data > out", "gzip -9 -c data > out", "cp data out"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("ATOLL_URL").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::connect(&address, Some(&std::env::var("ATOLL_API_KEY")?))?;
    let body = CreateBody { timeout_s: Some(300), ..CreateBody::default() };
    let source = client.create_sandbox(&body, true, None).await?;
    run(&client, &source.id, "seq 1 20000 > data").await?;
    let count = u32::try_from(ATTEMPTS.len())?;
    let forked = client.fork(&source.id, &ForkBody { count, ..ForkBody::default() }).await?;

    let mut best: Option<(usize, &str)> = None;
    for (copy, attempt) in forked.sandboxes.iter().zip(ATTEMPTS) {
        let size = run(&client, &copy.id, &format!("{attempt} && wc -c < out")).await?.trim().parse()?;
        println!("{size:>8} bytes: {attempt}");
        if best.is_none_or(|(least, _)| size < least) {
            best = Some((size, &copy.id));
        }
    }
    let kept = best.map(|(_, id)| id).unwrap_or_default();
    println!("sandbox {kept} is kept; its lifetime ends in five minutes");
    let others = forked.sandboxes.iter().map(|copy| copy.id.as_str()).filter(|id| *id != kept);
    for id in others.chain([source.id.as_str()]) {
        client.delete_sandbox(id).await?;
    }
    Ok(())
}

async fn run(client: &Client, sandbox: &str, command: &str) -> Result<String, ClientError> {
    let body = ExecBody { command: Some(command.to_owned()), ..ExecBody::default() };
    Ok(client.exec(sandbox, &body).await?.stdout.clone())
}
