//! Operations with other repositories: clone, push, pull, and the list of remotes.

use url::Url;

use super::credentials::{Credentials, GitCredentialArgs, split, web};
use super::{Git, GitOutput, REMOTE_LIMIT, plain, reference, words};
use crate::ToolboxError;

/// The source of a clone.
#[derive(Debug, Clone, Default)]
pub struct CloneFrom {
    /// Address. Credentials in it are used and not stored.
    pub url: String,
    /// A branch or tag instead of the remote's default.
    pub branch: Option<String>,
    /// A commit to check out afterwards.
    pub commit: Option<String>,
    /// The number of commits of history to fetch.
    pub depth: Option<u32>,
    /// For HTTP.
    pub credentials: Option<Credentials>,
    /// Accept any certificate.
    pub insecure_tls: bool,
}

/// Where to push.
#[derive(Debug, Clone, Default)]
pub struct Push {
    /// By default that of the branch, else `origin`.
    pub remote: Option<String>,
    /// By default the checked-out one.
    pub branch: Option<String>,
    /// Use it for later pushes and pulls of the branch too.
    pub set_upstream: bool,
    /// For HTTP.
    pub credentials: Option<Credentials>,
}

/// Where to pull from.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    /// By default that of the branch, else `origin`.
    pub remote: Option<String>,
    /// By default the upstream of the checked-out branch.
    pub branch: Option<String>,
    /// Rebase local commits instead of merging.
    pub rebase: bool,
    /// For HTTP.
    pub credentials: Option<Credentials>,
}

/// A remote of this repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Its name here.
    pub name: String,
    /// Its address, without credentials.
    pub url: String,
}

impl Git<'_> {
    /// Clones into the folder. A commit is checked out without a branch.
    pub async fn clone_from(&self, what: &CloneFrom) -> Result<GitOutput, ToolboxError> {
        let (address, url, in_address) = split(plain("url", &what.url)?);
        let shown = shown(url.as_ref(), what.credentials.as_ref().or(in_address.as_ref()))?;
        let mut args = shown.settings;
        if what.insecure_tls {
            args.extend(words(["-c", "http.sslVerify=false"]));
        }
        args.push("clone".into());
        if let Some(branch) = &what.branch {
            args.push(format!("--branch={}", reference(branch)?));
        }
        // The commit need not be near the tip: it is fetched by name below.
        if let Some(depth) = what.depth {
            args.push(format!("--depth={}", depth.max(1)));
        }
        let commit = what.commit.as_deref().map(reference).transpose()?;
        if commit.is_some() {
            args.push("--no-checkout".into());
        }
        args.extend(["--".into(), address.clone(), self.folder().await?]);
        let cloned = self.anywhere(args, REMOTE_LIMIT, shown.env).await?;
        match commit {
            Some(commit) if cloned.exit_code == 0 => self.check_out_commit(what, url, commit, cloned).await,
            _ => Ok(cloned),
        }
    }

    async fn check_out_commit(
        &self,
        what: &CloneFrom,
        url: Option<Url>,
        commit: &str,
        cloned: GitOutput,
    ) -> Result<GitOutput, ToolboxError> {
        let checkout = || words(["checkout", "--detach", commit, "--"]);
        let mut done = self.here(checkout()).await?;
        if done.exit_code != 0 && what.depth.is_some() {
            let in_address = split(&what.url).2;
            let shown = shown(url.as_ref(), what.credentials.as_ref().or(in_address.as_ref()))?;
            let mut args = shown.settings;
            if what.insecure_tls {
                args.extend(words(["-c", "http.sslVerify=false"]));
            }
            args.extend(words(["fetch", "--depth=1", "origin", commit]));
            let fetched = self.here_with(args, REMOTE_LIMIT, shown.env).await?;
            done = if fetched.exit_code == 0 { self.here(checkout()).await? } else { fetched };
        }
        Ok(GitOutput {
            stdout: cloned.stdout + &done.stdout,
            stderr: cloned.stderr + &done.stderr,
            exit_code: done.exit_code,
            truncated: cloned.truncated || done.truncated,
        })
    }

    /// Pushes commits.
    pub async fn push(&self, push: &Push) -> Result<GitOutput, ToolboxError> {
        let (remote, in_address) = self.remote_of(push.remote.as_deref()).await?;
        let shown = self.shown_to(&remote, push.credentials.as_ref().or(in_address.as_ref())).await?;
        let mut args = shown.settings;
        args.push("push".into());
        if push.set_upstream {
            args.push("--set-upstream".into());
        }
        // A branch that is new to the remote has no upstream yet; its own name is used.
        let branch = match &push.branch {
            Some(branch) => reference(branch)?.to_owned(),
            None => "HEAD".to_owned(),
        };
        args.extend([remote, branch]);
        self.here_with(args, REMOTE_LIMIT, shown.env).await
    }

    /// Fetches and merges, or rebases.
    pub async fn pull(&self, pull: &Pull) -> Result<GitOutput, ToolboxError> {
        let (remote, in_address) = self.remote_of(pull.remote.as_deref()).await?;
        let shown = self.shown_to(&remote, pull.credentials.as_ref().or(in_address.as_ref())).await?;
        let mut args = shown.settings;
        args.extend(words(["pull", "--no-edit"]));
        args.push(if pull.rebase { "--rebase" } else { "--no-rebase" }.into());
        match (&pull.remote, &pull.branch) {
            (_, Some(branch)) => args.extend([remote, reference(branch)?.to_owned()]),
            (Some(_), None) => args.push(remote),
            (None, None) => {}
        }
        self.here_with(args, REMOTE_LIMIT, shown.env).await
    }

    /// The remotes of this repository.
    pub async fn remotes(&self) -> Result<Vec<Remote>, ToolboxError> {
        let listed = self.here(words(["remote", "--verbose"])).await?.checked()?;
        let mut found: Vec<Remote> = Vec::new();
        for line in listed.stdout.lines() {
            let Some((name, rest)) = line.split_once('\t') else { continue };
            let Some(url) = rest.strip_suffix(" (fetch)") else { continue };
            found.push(Remote { name: name.to_owned(), url: split(url).0 });
        }
        Ok(found)
    }

    /// Adds a remote; with `overwrite` it replaces one of that name.
    pub async fn add_remote(
        &self,
        remote: &Remote,
        fetch: bool,
        overwrite: bool,
    ) -> Result<GitOutput, ToolboxError> {
        let (name, url) = (reference(&remote.name)?, split(plain("url", &remote.url)?).0);
        let known = self.remotes().await?.iter().any(|known| known.name == name);
        let args = match (known, overwrite) {
            (true, true) => words(["remote", "set-url", "--", name, &url]),
            _ => words(["remote", "add", "--", name, &url]),
        };
        let added = self.here(args).await?;
        if fetch && added.exit_code == 0 {
            return self.here_with(words(["fetch", name]), REMOTE_LIMIT, Default::default()).await;
        }
        Ok(added)
    }

    /// The remote, and the credentials in its address.
    async fn remote_of(&self, named: Option<&str>) -> Result<(String, Option<Credentials>), ToolboxError> {
        if let Some(named) = named {
            let (remote, _, credentials) = split(plain("remote", named)?);
            return Ok((remote, credentials));
        }
        let branch = self.here(words(["symbolic-ref", "--quiet", "--short", "HEAD"])).await?;
        let key = format!("branch.{}.remote", branch.stdout.trim_end());
        let configured = self.here(words(["config", "--get", &key])).await?;
        let found = configured.stdout.trim_end();
        Ok((if reference(found).is_ok() { found.to_owned() } else { "origin".to_owned() }, None))
    }

    async fn shown_to(
        &self,
        remote: &str,
        credentials: Option<&Credentials>,
    ) -> Result<GitCredentialArgs, ToolboxError> {
        if credentials.is_none() {
            return Ok(GitCredentialArgs::nothing());
        }
        if let Some(url) = web(remote) {
            return shown(Some(&url), credentials);
        }
        let listed = self.here(words(["remote", "get-url", "--push", "--", remote])).await?;
        shown(web(listed.stdout.trim_end()).as_ref(), credentials)
    }
}

/// Credentials are only for HTTP; a path or an ssh address does not use them.
fn shown(url: Option<&Url>, credentials: Option<&Credentials>) -> Result<GitCredentialArgs, ToolboxError> {
    match (url, credentials) {
        (Some(url), Some(credentials)) => GitCredentialArgs::to(url, credentials),
        _ => Ok(GitCredentialArgs::nothing()),
    }
}
