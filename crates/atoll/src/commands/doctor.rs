//! `atoll doctor`: checks what this machine supports, with one fix per problem. Needs no server and changes nothing.

pub(crate) use atoll_client::server::{CheckState, ServerCheck as Check};

use super::CommandContext;
use crate::{failure::Failure, human::harmless, out::Shade, serve};

pub(super) async fn doctor(context: &CommandContext) -> Result<u8, Failure> {
    let data = context.global.data_dir();
    let checks = tokio::task::spawn_blocking(move || serve::checks(&data))
        .await
        .map_err(|e| Failure::new("internal", format!("the checks did not finish: {e}")))?;
    let out = context.out;
    let missing = checks.iter().filter(|check| check.state == CheckState::Missing).count();
    if out.json {
        out.json(&serde_json::json!({"ok": missing == 0, "checks": checks}))?;
    } else {
        for check in &checks {
            show(context, check)?;
        }
        let verdict = match missing {
            0 => "this machine runs sandboxes".to_owned(),
            1 => "1 thing is missing".to_owned(),
            n => format!("{n} things are missing"),
        };
        out.line(&verdict)?;
    }
    Ok(u8::from(missing > 0))
}

fn show(context: &CommandContext, check: &Check) -> Result<(), Failure> {
    let out = context.out;
    let mark = match check.state {
        CheckState::Good => out.shade(Shade::Good, "ok     "),
        CheckState::Lacking => out.shade(Shade::Strong, "lacking"),
        CheckState::Missing => out.shade(Shade::Bad, "missing"),
    };
    out.styled_line(&format!("{mark}  {:<18} {}", harmless(&check.name), harmless(&check.found)))?;
    match (&check.fix, check.state) {
        (Some(fix), CheckState::Lacking | CheckState::Missing) => {
            out.line(&format!("         {:<18} fix: {fix}", ""))
        }
        _ => Ok(()),
    }
}
