//! A default context that is started before its sandbox is claimed: the pool starts the kernel in ready instances, so
//! the first code of a sandbox does not wait for it.
//!
//! Such a process was started without a sandbox, as the user of that toolbox. It becomes the default context of its
//! language if it matches a new one: the same user, the same folder, and an environment that can still be passed to the
//! program. Otherwise it is ended.

use std::collections::BTreeMap;

use atoll_agentapi::{InitRequest, ProcessInfo};

use super::launch::LaunchUrgency;
use super::{Interpreter, InterpreterContext, Language, NewContext, TAG, default_id};
use crate::ToolboxError;

/// Follows the common prefix of contexts in the tag; no context id begins like this.
const WARM: &str = "warm/";

/// Prefixes of variables that only have an effect at the start of a program.
const AT_START: [&str; 4] = ["PYTHON", "LD_", "IPYTHON", "JUPYTER"];

impl Interpreter<'_> {
    /// Starts the default context of a language in a ready instance; returns when it is usable.
    pub async fn prepare(&self, language: Language) -> Result<(), ToolboxError> {
        let tag = format!("{TAG}{WARM}{}", language.as_str());
        let new = NewContext { language, cwd: None };
        self.launch_tagged(&tag, &new, LaunchUrgency::Ahead, None).await.map(drop)
    }

    /// The prestarted processes that are contexts of this sandbox.
    pub(super) async fn warm_contexts(
        &self,
        processes: &[ProcessInfo],
    ) -> Result<Vec<InterpreterContext>, ToolboxError> {
        let warm: Vec<(Language, &ProcessInfo)> =
            processes.iter().filter_map(|process| Some((language_of(process)?, process))).collect();
        if warm.is_empty() {
            return Ok(Vec::new());
        }
        let settings = self.toolbox.sandbox.settings().await.map_err(ToolboxError::process)?;
        let base = settings.env_vars.clone().unwrap_or_default();
        let fitting = warm.into_iter().filter(|(_, process)| fits(process, self.toolbox.user(), &settings));
        Ok(fitting.map(|(language, process)| context(language, process, base.clone())).collect())
    }

    /// Ends the prestarted processes that do not match, so that they use no resources.
    pub(super) async fn end_unfit(&self) -> Result<(), ToolboxError> {
        let processes = self.toolbox.sandbox.list().await.map_err(ToolboxError::process)?;
        let fitting = self.warm_contexts(&processes).await?;
        let unfit = processes.iter().filter(|process| {
            language_of(process).is_some() && !fitting.iter().any(|context| context.pid == process.pid)
        });
        for process in unfit {
            self.end_process(process.pid).await?;
        }
        Ok(())
    }
}

fn language_of(process: &ProcessInfo) -> Option<Language> {
    Language::parse(process.tag.strip_prefix(TAG)?.strip_prefix(WARM)?).ok()
}

fn context(language: Language, process: &ProcessInfo, base: BTreeMap<String, String>) -> InterpreterContext {
    InterpreterContext {
        id: default_id(language),
        language,
        cwd: process.cwd.clone(),
        created_at_ms: process.started_at_ms,
        pid: process.pid,
        base: Some(base),
    }
}

fn fits(process: &ProcessInfo, user: Option<&str>, settings: &InitRequest) -> bool {
    let user = user.or(settings.default_user.as_deref());
    let env = settings.env_vars.iter().flatten();
    user == Some(process.user.as_str())
        && settings.default_workdir.as_deref() == Some(process.cwd.as_str())
        && !env.into_iter().any(|(name, _)| AT_START.iter().any(|start| name.starts_with(start)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn process(tag: &str) -> ProcessInfo {
        ProcessInfo {
            pid: 7,
            cmd: String::new(),
            args: Vec::new(),
            cwd: "/home/user".into(),
            tag: tag.into(),
            user: "user".into(),
            started_at_ms: 1,
            pty: false,
            logged: false,
        }
    }

    fn settings() -> InitRequest {
        InitRequest {
            env_vars: Some([("A".to_owned(), "b".to_owned())].into()),
            default_user: Some("user".into()),
            default_workdir: Some("/home/user".into()),
            ..InitRequest::default()
        }
    }

    #[test]
    fn a_warm_process_is_known_by_its_tag_and_is_no_context_by_itself() {
        assert_eq!(language_of(&process("atoll-context/warm/python")), Some(Language::Python));
        assert_eq!(language_of(&process("atoll-context/python/abc")), None);
        assert!(super::super::context_of(process("atoll-context/warm/python")).is_none());
    }

    #[test]
    fn only_one_that_stands_as_a_new_one_would_becomes_a_context() {
        let warm = process("atoll-context/warm/python");
        assert!(fits(&warm, None, &settings()) && fits(&warm, Some("user"), &settings()));
        assert!(!fits(&warm, Some("daytona"), &settings()), "another user");
        let elsewhere = InitRequest { default_workdir: Some("/srv".into()), ..settings() };
        assert!(!fits(&warm, None, &elsewhere), "another folder");
        let path = [("PYTHONPATH".to_owned(), "/lib".to_owned())].into();
        assert!(!fits(&warm, None, &InitRequest { env_vars: Some(path), ..settings() }), "read at its start");
    }
}
