//! The one door: a request that names a sandbox by its host, or by a path below `/p/`, goes to the proxy; every other to
//! the native front.

use atoll_front_native::{Options, PreviewOrigin, Shutdown};
use atoll_proxy::{Proxy, Route};
use atoll_service::Service;
use axum::{Router, extract::Request, middleware::Next, response::Response};
use tokio::sync::watch;

use super::settings::Settings;

/// All routes of the plain port.
pub(super) fn router(settings: &Settings, service: &Service, shutdown: &Shutdown, port: u16) -> Router {
    let previews = PreviewOrigin { domain: settings.domain.as_str().to_owned(), port };
    let native =
        atoll_front_native::router(service.clone(), Options { shutdown: shutdown.clone(), previews });
    let (close, closing) = watch::channel(false);
    let draining = shutdown.draining();
    tokio::spawn(async move {
        draining.await;
        close.send_replace(true);
        // Those who listen take a sender that is gone for the same.
        close.closed().await;
    });
    let proxy = Proxy::new(service.clone(), settings.domain.clone(), closing);
    // Around the routes and not among them: a host decides before a path does.
    native.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let proxy = proxy.clone();
        async move { dispatch(&proxy, request, next).await }
    }))
}

async fn dispatch(proxy: &Proxy, request: Request, next: Next) -> Response {
    match proxy.route(&request) {
        Route::Elsewhere => next.run(request).await,
        Route::Preview(preview) => proxy.serve(preview, request).await,
        Route::Refused(why) => proxy.refuse(why),
    }
}
