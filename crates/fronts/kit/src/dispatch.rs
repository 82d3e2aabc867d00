//! The table of fronts.

use std::convert::Infallible;
use std::sync::Arc;

use atoll_model::Code;
use axum::Router;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};

use crate::{ApiError, Front, MountedFront};

/// The fronts of a server, in the order in which they are tried. The first whose mount matches answers.
#[derive(Default)]
pub struct Dispatch {
    fronts: Vec<MountedFront>,
}

impl Dispatch {
    /// Adds a front behind those that were added before.
    #[must_use]
    pub fn front(mut self, front: impl Front) -> Self {
        self.fronts.push(MountedFront::new(front));
        self
    }

    /// The hosts at which a front answers every path. No sandbox has one of these names.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.fronts.iter().flat_map(|front| front.hosts()).cloned().collect()
    }

    /// The header fields of the fronts' own in which their clients send keys.
    #[must_use]
    pub fn key_fields(&self) -> Vec<HeaderName> {
        let names = self.fronts.iter().flat_map(|front| front.key_fields());
        names.map(|name| HeaderName::from_static(name)).collect()
    }

    /// One router over all of them.
    pub fn into_router(self) -> Router {
        let fronts: Arc<[MountedFront]> = self.fronts.into();
        Router::new().fallback_service(tower::service_fn(move |request: Request| {
            let fronts = Arc::clone(&fronts);
            async move { Ok::<_, Infallible>(dispatch(&fronts, request).await) }
        }))
    }
}

async fn dispatch(fronts: &[MountedFront], request: Request) -> Response {
    match fronts.iter().find(|front| front.matches(&request)) {
        Some(front) => front.call(request).await,
        None => ApiError::new(Code::RouteNotFound, "this server has no API at this path").into_response(),
    }
}
