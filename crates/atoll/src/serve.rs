//! Wires store, engine, service and front into one server. Only this code knows concrete types.
//!
//! ```text
//! session, logs, descriptors ─ DATA ─ port ─ store ─ engine ─ service ─ server file ─ HTTP … signal ─ drain ─ end
//! ```
//!
//! Each step is undone by dropping its result; sandboxes continue whatever happens here. The launcher is this program
//! again, started by the engine as `atoll launcher` ([`launcher`]).

mod acme;
mod checks;
mod company_network;
mod daytona;
mod e2b;
mod fail_at;
mod fronts;
mod leap0;
mod logging;
mod process_setup;
mod providers;
mod report;
mod settings;
mod socket;
mod supervisor;
mod tls;
mod tour;
mod warm_kernels;

use std::{
    error::Error, ffi::OsString, io::ErrorKind, path::Path, process::ExitCode, sync::Arc, time::Duration,
};

use atoll_container::{Engine, HeapTrimmer};
use atoll_front_native::Shutdown;
use atoll_image::{
    Catalog, HostSource,
    images::{Bounds, Images},
    oci::Registry,
};
use atoll_model::NodeName;
use atoll_provider::Provider;
use atoll_proxy::HttpServer;
use atoll_service::{ProviderRegistry, Service, ServiceError, SystemClock, TemplateSources};
use atoll_store::{SqliteStore, Store, StoreConfig};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use crate::{
    cli::{Cli, Command, Global},
    failure::Failure,
    out::{Out, Shade},
    server::{
        config_file,
        server_file::{self, ServerNote},
    },
};
pub(crate) use checks::checks;
pub(crate) use fail_at::FailAt;
pub(crate) use process_setup::open_data as data_folder;
pub(crate) use report::options as settings_of;
use settings::Settings;
pub(crate) use socket::GROUP;
use socket::Socket;

/// LIMIT: time for sandboxes that are bound to this server to be paused or deleted, and for the end of `uninstall`.
const END_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: an end without such sandboxes takes at most two seconds: requests under way, then work under way, which the next
/// server finishes, then ready instances, then threads that wait for a file or a tool.
const REQUESTS_END_WITHIN: Duration = Duration::from_millis(1_000);
const WORK_ENDS_WITHIN: Duration = Duration::from_millis(400);
const ENGINE_ENDS_WITHIN: Duration = Duration::from_millis(400);
const THREADS_END_WITHIN: Duration = Duration::from_millis(100);
/// LIMIT: how long recorded times accumulate.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// `atoll serve`: runs until a signal ends it.
pub(crate) fn serve(arguments: Vec<OsString>, out: Out) -> Result<u8, Failure> {
    let merged = config_file::with_file(arguments)?;
    let Cli { global, command: Command::Serve(args) } = merged.cli()? else {
        return Err(Failure::new("internal", "this command is not `serve`"));
    };
    if args.background {
        process_setup::leave_session();
    }
    let data = global.data_dir();
    process_setup::need_root()?;
    refuse_newer(&data, args.database.as_deref())?;
    logging::start(&args, &data, out)?;
    process_setup::raise_files();
    let data = process_setup::open_data(&data)?;
    let report = report::options(&data, &merged);
    let settings = Settings { report, ..Settings::new(data, *args)? };
    settings.network.apply()?;
    if let Some(file) = merged.path() {
        tracing::info!(file = %file.display(), "settings were read from a configuration file");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new("internal", format!("no runtime: {e}")))?;
    let result = runtime.block_on(run(&settings, &global, out));
    runtime.shutdown_timeout(THREADS_END_WITHIN);
    result.map(|()| 0)
}

/// Refuses a database that a newer version has changed, before anything in DATA is touched.
fn refuse_newer(data: &Path, database: Option<&Path>) -> Result<(), Failure> {
    let default = StoreConfig::last_database(data).unwrap_or_else(|| StoreConfig::default_database(data));
    atoll_store::refuse_newer(database.unwrap_or(&default))
        .map_err(|e| failed("the store cannot be opened", &e).hint(e.hint()))
}

/// `atoll launcher`: the process must have one thread.
pub(crate) fn launcher(_arguments: Vec<OsString>) -> ExitCode {
    match atoll_container::launcher::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Deletes every sandbox and volume, and removes everything that outlives a server: router, pool, cgroups, its block on this
/// machine, and DATA. No server of DATA may run. It opens no port.
pub(crate) async fn uninstall(data: &Path) -> Result<(), Failure> {
    process_setup::need_root()?;
    if atoll_backup::is_unfinished(data) {
        return atoll_backup::discard_unfinished(data)
            .map_err(|e| failed("the unfinished restore cannot be removed", &e));
    }
    refuse_newer(data, None)?;
    let data = process_setup::open_data(data)?;
    let settings = Settings::bare(data.clone())?;
    refuse_to_end_others(&settings).await?;
    delete_all(&settings).await?;
    let (store, catalog, _) = records(settings.store(), HostSource::default(), Bounds::default()).await?;
    store.remove_node().await.map_err(|e| failed("the node cannot be removed from its database", &e))?;
    leave_with_engine(&data, catalog, atoll_container::StoredFiles::Remove).await?;
    drop(store);
    std::fs::remove_dir_all(&data).map_err(|e| failed("the folder cannot be removed", &e))
}

/// Stops every sandbox of this machine and removes what is outside of DATA: router, mounts, cgroups. No server of DATA may
/// run. It opens no port. For the removal of a package.
pub(crate) async fn leave_machine(data: &Path) -> Result<(), Failure> {
    process_setup::need_root()?;
    let data = process_setup::open_data(data)?;
    let settings = Settings::bare(data.clone())?;
    // Without it no server was ever started here.
    if !settings.data.join("secret.key").exists() {
        return Ok(());
    }
    let (service, engine) = open(&settings, None).await?;
    service.stop_own_sandboxes().await.map_err(|e| failed("a sandbox cannot be stopped", &e))?;
    service.shutdown(END_WITHIN).await;
    // A slow reaper is left to the next engine.
    let _ = tokio::time::timeout(END_WITHIN, engine.close()).await;
    drop((service, engine));
    let (store, catalog, _) = records(settings.store(), HostSource::default(), Bounds::default()).await?;
    leave_with_engine(&data, catalog, atoll_container::StoredFiles::Keep).await?;
    store.close().await;
    Ok(())
}

/// Removes what the engine and the provider `local` have outside of DATA.
async fn leave_with_engine(
    data: &Path,
    catalog: Arc<Catalog>,
    files: atoll_container::StoredFiles,
) -> Result<(), Failure> {
    let engine = Engine::open(atoll_container::EngineConfig::new(data), catalog)
        .await
        .map_err(|e| failed("the engine cannot start", &e))?;
    engine.leave_machine(files).await.map_err(|e| failed("not everything could be removed", &e))?;
    atoll_local::remove_cgroups(&providers::local_folder(data))
        .map_err(|e| failed("not everything could be removed", &e))
}

/// A database in the folder goes with the folder, so no other node may use it.
async fn refuse_to_end_others(settings: &Settings) -> Result<(), Failure> {
    let (store, ..) = records(settings.store(), HostSource::default(), Bounds::default()).await?;
    let nodes = store.nodes().await.map_err(|e| failed("the nodes cannot be read", &e))?;
    store.close().await;
    let others: Vec<&str> = nodes.iter().filter(|node| *node != store.node()).map(NodeName::as_str).collect();
    if others.is_empty() || !settings.store().has_own_database() {
        return Ok(());
    }
    let others = others.join(", ");
    Err(Failure::new(
        "conflict",
        format!("{} has the database of other nodes: {others}", settings.data.display()),
    )
    .hint("uninstall the other servers first"))
}

/// Deletes the sandboxes and volumes of this folder's node.
async fn delete_all(settings: &Settings) -> Result<(), Failure> {
    // Without it no server was ever started here.
    if !settings.data.join("secret.key").exists() {
        return Ok(());
    }
    let (service, engine) = open(settings, None).await?;
    let refused = |e: ServiceError| failed("a sandbox cannot be deleted", &e);
    service.delete_own_sandboxes().await.map_err(refused)?;
    let refused = |e: ServiceError| failed("a volume cannot be removed", &e);
    service.volumes().remove_own().await.map_err(refused)?;
    service.shutdown(END_WITHIN).await;
    // A slow reaper is left to the next engine.
    let _ = tokio::time::timeout(END_WITHIN, engine.close()).await;
    Ok(())
}

/// The OpenAPI document of the native front.
pub(crate) fn openapi_text() -> String {
    // The document consists of plain types; writing it cannot fail.
    atoll_front_native::openapi().to_pretty_json().unwrap_or_default()
}

async fn run(settings: &Settings, global: &Global, out: Out) -> Result<(), Failure> {
    let shutdown = Shutdown::default();
    let mut signals = Signals::listen()?;
    tls::check(settings)?;
    // The port first: a server that cannot bind it should not wake anything.
    let listener = bind(settings).await?;
    let address = listener.local_addr().map_err(|e| Failure::new("io", format!("no address: {e}")))?;
    let socket = socket::open(settings.socket.as_deref())?;
    let (service, engine) = tokio::select! {
        opened = open(settings, Some(address.port())) => opened?,
        _ = signals.next() => return Ok(()),
    };
    process_setup::spare_from_oom();
    let tls_port = settings.tls.as_ref().map(|tls| tls.listen.port());
    let note = ServerNote::new(address, settings.domain.as_str(), tls_port);
    let note = ServerNote { socket: socket.as_ref().map(Socket::path), ..note };
    if let Err(cause) = server_file::write(&settings.data, &note) {
        tracing::warn!(%cause, "commands will not find this server through its data folder");
    }
    if let Some(warning) = note.clear_text_warning() {
        tracing::warn!("{warning}");
    }
    let url = note.url;
    if settings.make_templates {
        service.templates().make_defaults();
    }
    tracing::info!(%url, data = %settings.data.display(), node = %service.node(), version = env!("CARGO_PKG_VERSION"), "ready");
    let inside = e2b::InsideInterpreter { service: service.clone() };
    service.sandboxes().answer_inside(Arc::new(inside)).await;
    let server = fronts::server(settings, &service, &shutdown, address.port());
    let reload = Arc::clone(&signals.reload);
    supervisor::ready(&url);
    let serving = serve_listeners(&server, listener, socket, settings, &reload);
    let beside = async {
        tokio::join!(
            greet(settings, global, out, url.clone()),
            end_by_signal(&mut signals, &shutdown),
            upkeep()
        );
        std::future::pending().await
    };
    // The server ends by itself once a signal has closed it.
    tokio::select! { () = serving => {}, () = beside => {} }
    end(settings, &service, &engine).await;
    Ok(())
}

/// Ends what requests leave behind, in order.
async fn end(settings: &Settings, service: &Service, engine: &Engine) {
    // Sandboxes bound to this server are paused or deleted while their drivers still run.
    match service.bound_to_server() {
        0 => {}
        count => note_wait(settings, &format!("{count} sandboxes to be paused or deleted (their --on-exit)")),
    }
    service.exit(END_WITHIN).await;
    note_wait(settings, "work under way, which the next server continues");
    service.shutdown(WORK_ENDS_WITHIN).await;
    // Ready instances end with the server; a slow reaper is left to the next one.
    note_wait(settings, "ready instances to end");
    if tokio::time::timeout(ENGINE_ENDS_WITHIN, engine.close()).await.is_err() {
        tracing::warn!("some shutdown work was still in progress");
    }
    // Refused while sandboxes without isolation run in it; they keep it.
    let _ = atoll_local::remove_cgroups(&providers::local_folder(&settings.data));
    server_file::remove(&settings.data);
    tracing::info!("the server has ended; sandboxes keep running");
}

/// Tells `atoll server stop` what the end waits for.
fn note_wait(settings: &Settings, what: &str) {
    let noted = server_file::update(&settings.data, |note| note.waits_for = Some(what.to_owned()));
    if let Err(cause) = noted {
        tracing::debug!(%cause, "what the end waits for was not written down");
    }
}

/// Serves the ports and the socket until the server closes, and finishes requests under way.
async fn serve_listeners(
    server: &HttpServer,
    plain: TcpListener,
    mut socket: Option<Socket>,
    settings: &Settings,
    reload: &Arc<Notify>,
) {
    let at_socket = async {
        if let Some((listener, identify)) = socket.as_mut().and_then(Socket::listener) {
            server.serve_unix(listener, identify).await;
        }
    };
    let certificates = acme::keep(server, settings);
    tokio::join!(server.serve(plain), tls::serve(server, settings, reload), at_socket, certificates);
    // A new server may take its place while requests under way end.
    drop(socket);
    match server.connections() {
        0 => {}
        count => note_wait(settings, &format!("the requests of {count} connections to end")),
    }
    server.drain().await;
}

/// Folds recorded times periodically, so that they do not accumulate, and returns freed memory to the system.
async fn upkeep() {
    let mut heap = HeapTrimmer::default();
    let mut tick = tokio::time::interval(UPKEEP_EVERY);
    loop {
        tick.tick().await;
        atoll_front_native::upkeep();
        let trim = tokio::task::spawn_blocking(move || {
            if heap.trim() {
                tracing::debug!("freed memory was returned to the system");
            }
            heap
        });
        heap = trim.await.unwrap_or_default();
    }
}

async fn bind(settings: &Settings) -> Result<TcpListener, Failure> {
    TcpListener::bind(settings.listen).await.map_err(|cause| {
        let failure =
            Failure::new("address_in_use", format!("cannot listen on {}: {cause}", settings.listen));
        match cause.kind() {
            ErrorKind::AddrInUse => {
                failure.hint("`atoll server status` shows whether a server already runs there")
            }
            _ => failure.hint("choose another address with --listen"),
        }
    })
}

/// Opens store, templates, engine and service: each needs the one before.
async fn open(settings: &Settings, port: Option<u16>) -> Result<(Service, Arc<Engine>), Failure> {
    let (store, catalog, images) =
        records(settings.store(), settings.host(), settings.images.clone()).await?;
    let fail_at = FailAt::wanted();
    let engine = atoll_container::EngineConfig { failpoint: fail_at.of_engine(), ..settings.engine() };
    let engine = Engine::open(engine, Arc::clone(&catalog)).await.map_err(|e| {
        failed("the engine cannot start", &e).hint("`atoll doctor` shows what this machine lacks")
    })?;
    let engine = Arc::new(engine);
    let clock = SystemClock::open().map_err(|e| failed("the boot cannot be identified", &e))?;
    let providers = ProviderRegistry::new(Arc::clone(&engine) as Arc<dyn Provider>);
    let providers = providers.with_files(providers::files(settings, port)).await;
    let providers = providers.with_default(&settings.provider).map_err(|e| {
        let failure = failed("the default provider cannot be used", &e);
        e.hint.into_iter().fold(failure, Failure::hint)
    })?;
    let registry = Arc::new(Registry::new(settings.registry()));
    let templates = Arc::new(TemplateSources { catalog, images, registry });
    let service =
        Service::open_with(settings.service(), store, providers, templates, clock, fail_at.of_service())
            .await
            .map_err(|e| failed("the service cannot open", &e))?;
    Ok((service, engine))
}

/// Opens the data on disk: the store, which locks DATA for this process, and the templates with their images.
async fn records(
    store: StoreConfig,
    host: HostSource,
    bounds: Bounds,
) -> Result<(Arc<SqliteStore>, Arc<Catalog>, Arc<Images>), Failure> {
    let data = store.data.clone();
    tokio::task::spawn_blocking(move || {
        let store = SqliteStore::open_with(&store)
            .map_err(|e| failed("the store cannot be opened", &e).hint(e.hint()))?;
        let images = Images::open(data.join("images"), bounds)
            .map_err(|e| failed("the images cannot be opened", &e))?;
        let catalog = Catalog::open(data.join("templates"))
            .map_err(|e| failed("the templates cannot be opened", &e))?;
        let catalog = catalog.with_host(host).with_images(Arc::clone(&images));
        Ok((Arc::new(store), Arc::new(catalog), images))
    })
    .await
    .map_err(|e| failed("the store did not open", &e))?
}

/// The error with its causes in one line.
fn failed(what: &str, cause: &dyn Error) -> Failure {
    let mut text = format!("{what}: {cause}");
    let mut next = cause.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    tracing::error!("{text}");
    Failure::new("failed", text)
}

/// Prints one line for a person, and the tour if requested.
async fn greet(settings: &Settings, global: &Global, out: Out, url: String) {
    if settings.tour {
        tour::tour(Global { data: Some(settings.data.clone()), ..global.clone() }, out, url).await;
        return;
    }
    if out.talks() {
        let next = out.shade_talk(Shade::Faint, "atoll run -- python3 -c 'print(6*7)'");
        out.styled_say(&format!("atoll: ready at {url}; next, in another shell: {next}"));
    }
}

/// The first signal drains, the second ends at once. SIGHUP loads the certificate again.
async fn end_by_signal(signals: &mut Signals, shutdown: &Shutdown) {
    signals.next().await;
    supervisor::stopping();
    tracing::info!("shutting down; a second signal ends the server at once");
    shutdown.begin();
    signals.next().await;
    shutdown.force();
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    /// Notified when files have to be read again.
    reload: Arc<Notify>,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let on = |kind| signal(kind).map_err(|e| failed("signals cannot be received", &e));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
            reload: Arc::default(),
        })
    }

    /// The next signal that ends the server.
    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: the certificate is loaded again; other settings are flags and do not change");
                    self.reload.notify_waiters();
                }
            }
        }
    }
}
