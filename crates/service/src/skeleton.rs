//! Signatures of the use cases.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::*;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::*;

type Result<T> = std::result::Result<T, ServiceError>;

/// All use cases. Cloning is cheap.
#[derive(Clone)]
pub struct Service {
    _inner: Arc<()>,
}

fn later<T>() -> Result<T> {
    Err(ServiceError::new(Code::Unsupported, "not in this build"))
}

/// The writing side of an attached terminal.
#[derive(Clone)]
pub struct TerminalInput {
    _inner: Arc<()>,
}

impl TerminalInput {
    /// Types.
    pub async fn write(&self, _data: Bytes) -> Result<()> {
        later()
    }
    /// Changes the size.
    pub async fn resize(&self, _size: TerminalSize) -> Result<()> {
        later()
    }
}

#[allow(unused_variables, missing_docs)]
impl Service {
    pub async fn shutdown(&self, grace: Duration) {}
    pub async fn authenticate(&self, presented: &str) -> Result<Principal> {
        later()
    }
    pub async fn create_key(&self, who: &Principal, new: NewKey) -> Result<CreatedKey> {
        later()
    }
    pub async fn list_keys(&self, who: &Principal) -> Result<Vec<KeyRecord>> {
        later()
    }
    pub async fn delete_key(&self, who: &Principal, id: &KeyId) -> Result<()> {
        later()
    }
    pub async fn create_tenant(&self, who: &Principal, name: &str, quota: Quota) -> Result<TenantRecord> {
        later()
    }
    pub async fn list_tenants(&self, who: &Principal) -> Result<Vec<TenantRecord>> {
        later()
    }
    pub async fn set_quota(&self, who: &Principal, tenant: &str, quota: Quota) -> Result<TenantRecord> {
        later()
    }
    pub async fn tenant_usage(&self, who: &Principal, tenant: &str) -> Result<(Usage, Quota)> {
        later()
    }
    pub async fn create(&self, who: &Principal, spec: CreateSandbox, wait: bool) -> Result<(Lease, Created)> {
        later()
    }
    pub async fn get(&self, who: &Principal, ident: &str) -> Result<Lease> {
        later()
    }
    pub async fn list(&self, who: &Principal, filter: Filter) -> Result<Page<Lease>> {
        later()
    }
    pub async fn update(&self, who: &Principal, ident: &str, change: UpdateSandbox) -> Result<Lease> {
        later()
    }
    pub async fn start(&self, who: &Principal, ident: &str, wait: bool) -> Result<Lease> {
        later()
    }
    pub async fn stop(&self, who: &Principal, ident: &str, wait: bool) -> Result<Lease> {
        later()
    }
    pub async fn restart(&self, who: &Principal, ident: &str, wait: bool) -> Result<Lease> {
        later()
    }
    pub async fn delete(&self, who: &Principal, ident: &str, wait: bool) -> Result<Lease> {
        later()
    }
    pub async fn exec(&self, who: &Principal, ident: &str, exec: Exec) -> Result<ExecOutcome> {
        later()
    }
    pub async fn exec_stream(
        &self,
        who: &Principal,
        ident: &str,
        exec: Exec,
    ) -> Result<(u32, BoxStream<'static, ExecEvent>)> {
        later()
    }
    pub async fn processes(&self, who: &Principal, ident: &str) -> Result<Vec<ProcessRecord>> {
        later()
    }
    pub async fn signal(&self, who: &Principal, ident: &str, pid: u32, signal: i32) -> Result<()> {
        later()
    }
    pub async fn write_stdin(&self, who: &Principal, ident: &str, pid: u32, data: Bytes) -> Result<()> {
        later()
    }
    pub async fn close_stdin(&self, who: &Principal, ident: &str, pid: u32) -> Result<()> {
        later()
    }
    pub async fn attach(
        &self,
        who: &Principal,
        ident: &str,
        pid: u32,
        tail: bool,
    ) -> Result<BoxStream<'static, ExecEvent>> {
        later()
    }
    pub async fn open_terminal(&self, who: &Principal, ident: &str, open: OpenTerminal) -> Result<Terminal> {
        later()
    }
    pub async fn terminal_attach(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &str,
    ) -> Result<(BoxStream<'static, ExecEvent>, TerminalInput)> {
        later()
    }
    pub async fn list_terminals(&self, who: &Principal, ident: &str) -> Result<Vec<Terminal>> {
        later()
    }
    pub async fn close_terminal(&self, who: &Principal, ident: &str, terminal: &str) -> Result<()> {
        later()
    }
    pub async fn read_file(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        range: Option<ByteRange>,
    ) -> Result<FileBody> {
        later()
    }
    pub async fn write_file(
        &self,
        who: &Principal,
        ident: &str,
        file: WriteFile,
        body: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<Entry> {
        later()
    }
    pub async fn stat(&self, who: &Principal, ident: &str, path: &str) -> Result<Entry> {
        later()
    }
    /// The entries and whether the list was cut.
    pub async fn list_dir(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool)> {
        later()
    }
    pub async fn make_dir(&self, who: &Principal, ident: &str, path: &str) -> Result<Entry> {
        later()
    }
    pub async fn move_path(&self, who: &Principal, ident: &str, from: &str, to: &str) -> Result<Entry> {
        later()
    }
    pub async fn remove_path(&self, who: &Principal, ident: &str, path: &str) -> Result<()> {
        later()
    }
    pub async fn watch(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        recursive: bool,
    ) -> Result<BoxStream<'static, std::result::Result<FileChange, ServiceError>>> {
        later()
    }
    pub async fn metrics_now(&self, who: &Principal, ident: &str) -> Result<ResourceSample> {
        later()
    }
    pub async fn metrics_history(
        &self,
        who: &Principal,
        ident: &str,
        since_ms: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ResourceSample>> {
        later()
    }
    pub async fn events(
        &self,
        who: &Principal,
        ident: Option<&str>,
        after_seq: Option<u64>,
        limit: u32,
    ) -> Result<Vec<SandboxEvent>> {
        later()
    }
    pub async fn follow_events(
        &self,
        who: &Principal,
        ident: Option<&str>,
        after_seq: Option<u64>,
    ) -> Result<BoxStream<'static, SandboxEvent>> {
        later()
    }
    pub async fn logs(
        &self,
        who: &Principal,
        ident: &str,
        follow: bool,
    ) -> Result<BoxStream<'static, LogLine>> {
        later()
    }
    pub async fn list_templates(&self, who: &Principal) -> Result<Vec<TemplateRecord>> {
        later()
    }
    pub async fn get_template(&self, who: &Principal, name: &str) -> Result<TemplateRecord> {
        later()
    }
    pub async fn make_template(
        &self,
        who: &Principal,
        name: &str,
        progress: MakeProgress,
    ) -> Result<TemplateRecord> {
        later()
    }
    pub async fn remove_template(&self, who: &Principal, name: &str) -> Result<()> {
        later()
    }
    pub async fn health(&self) -> Health {
        Health { ok: true, problems: vec![] }
    }
    pub fn stats(&self) -> ServiceStats {
        ServiceStats {
            by_phase: Default::default(),
            creates_under_way: 0,
            created_total: 0,
            from_pool_total: 0,
            failed_total: 0,
            node_memory_free_mib: 0,
            node_memory_total_mib: 0,
            node_disk_free_mib: 0,
            memory_limits_mib: 0,
            live_max: 0,
        }
    }
}
