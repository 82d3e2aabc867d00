//! The OpenAPI document, generated from the attributes that also make the routes, so that the two always agree.

use utoipa::PartialSchema;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::{Tag, TagBuilder};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Response, ResponseBuilder, SecurityRequirement,
};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    App, builds, code, docs, egress, events, exec, files, git, health, keys, logins, lsp, metrics, previews,
    processes, providers, sandboxes, secrets, server, sessions, snapshots, system, templates, tenants,
    terminals, threads, volumes,
};
use atoll_client::errors::Envelope;

/// The document of all native routes; `docs/openapi.json` is this, rendered.
#[must_use]
pub fn openapi() -> OpenApi {
    finish(routes().into_openapi())
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(base())
        .merge(sandboxes::routes())
        .merge(snapshots::routes())
        .merge(threads::routes())
        .merge(exec::routes())
        .merge(processes::routes())
        .merge(terminals::routes())
        .merge(sessions::routes())
        .merge(code::routes())
        .merge(files::routes())
        .merge(git::routes())
        .merge(lsp::routes())
        .merge(previews::routes())
        .merge(egress::routes())
        .merge(secrets::routes())
        .merge(metrics::routes())
        .merge(events::routes())
        .merge(templates::routes())
        .merge(builds::routes())
        .merge(volumes::routes())
        .merge(keys::routes())
        .merge(logins::routes())
        .merge(tenants::routes())
        .merge(providers::routes())
        .merge(health::routes())
        .merge(server::routes())
        .merge(system::routes())
        .merge(docs::routes())
}

/// Adds what every operation shares: any other status is an error in the one envelope.
pub(crate) fn finish(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            for answer in operation.responses.responses.values_mut() {
                describe(answer);
            }
            operation.responses.responses.insert("default".to_owned(), RefOr::T(error()));
            name(operation);
        }
    }
    document
}

/// The text as it is committed and served.
pub(crate) fn render(document: &OpenApi) -> String {
    let mut text = document.to_pretty_json().expect("the document is plain data");
    text.push('\n');
    text
}

/// The specification requires a description of every response.
fn describe(answer: &mut RefOr<Response>) {
    if let RefOr::T(response) = answer
        && response.description.is_empty()
    {
        response.description = "Done".to_owned();
    }
}

/// Handler names are unique within their file; the document needs names that are unique in all of it.
fn name(operation: &mut Operation) {
    let noun = operation.tags.iter().flatten().next();
    if let (Some(noun), Some(verb)) = (noun, &operation.operation_id) {
        operation.operation_id = Some(format!("{noun}_{verb}"));
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten()
}

fn error() -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
    ResponseBuilder::new()
        .description("Refused; `code` is one of the closed list in docs/errors.md")
        .content("application/json", content)
        .build()
}

fn base() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Atoll")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Isolated Linux sandboxes for untrusted code."))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    let components = ComponentsBuilder::new()
        .schema("Error", Envelope::schema())
        .security_scheme("bearer", SecurityScheme::Http(bearer))
        .security_scheme("api_key", SecurityScheme::ApiKey(header))
        .build();
    let either = ["bearer", "api_key"].map(|name| SecurityRequirement::new(name, Vec::<String>::new()));
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some(either))
        .tags(Some(TAGS.map(tag)))
        .build()
}

const TAGS: [(&str, &str); 19] = [
    ("sandboxes", "Create, change, start, stop, pause, fork, archive and delete sandboxes."),
    ("snapshots", "Named copies of a sandbox, to create other sandboxes from or to roll back to."),
    ("commands", "Run programs in sandboxes and follow their output."),
    ("terminals", "Shells in a sandbox that keep their directory and environment."),
    (
        "sessions",
        "Shells without a terminal that keep their state between commands, and the output of their commands.",
    ),
    ("code", "Run code in contexts that keep its state; results in all their forms, and charts."),
    ("files", "Read, write, list, move, remove and watch files in sandboxes."),
    ("git", "Repositories in sandboxes: clone, status, commits, branches, push and pull."),
    ("lsp", "Language servers of projects in sandboxes: completions and symbols."),
    ("previews", "Access to ports of a sandbox: links that expire, and public ports."),
    (
        "network",
        "The log of outbound connections, and secrets that are added to requests outside the sandbox.",
    ),
    ("metrics", "Resource use of sandboxes."),
    ("events", "Events of sandboxes, in order."),
    ("templates", "Root file systems that sandboxes start from: make, pull, import, tag and share them."),
    ("builds", "Templates built from steps, each of which runs in a sandbox."),
    ("volumes", "Files that outlive sandboxes and can be mounted into several."),
    ("keys", "API keys and their scopes."),
    ("tenants", "Owners of sandboxes and keys, with their quotas."),
    ("server", "Providers, health, version, settings and metrics of the server."),
];

fn tag((name, description): (&str, &str)) -> Tag {
    TagBuilder::new().name(name).description(Some(description)).build()
}
