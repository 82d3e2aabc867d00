//! Where the data plane of the E2B front is: on the ports of sandboxes that its SDKs know, and at `/files` for signed links.

use atoll_front_e2b::Data;
use atoll_model::Code;
use atoll_proxy::{Asked, AskedBy, Refused, StandIn, Taken};
use axum::{Router, body::Body, extract::Request, middleware::Next};

/// Puts signed links before the other fronts.
pub(super) fn mount(fronts: Router, data: Data) -> Router {
    fronts.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let data = data.clone();
        async move {
            match data.at_root(request).await {
                Ok(response) => response,
                Err(request) => next.run(*request).await,
            }
        }
    }))
}

/// On the ports of a sandbox.
pub(super) struct OnPorts(pub(super) Data);

fn asked<'a>(asked: &Asked<'a>) -> atoll_front_e2b::Asked<'a> {
    atoll_front_e2b::Asked {
        sandbox: asked.sandbox,
        port: asked.port,
        by_fields: asked.by == AskedBy::Fields,
    }
}

impl StandIn for OnPorts {
    fn wants(&self, asked: &Asked<'_>) -> bool {
        asked.by != AskedBy::Path && Data::wants(asked.port)
    }

    fn take<'a>(&'a self, by: Asked<'a>, request: Request<Body>) -> Taken<'a> {
        Box::pin(self.0.take(asked(&by), request))
    }

    fn refuse<'a>(&'a self, by: Asked<'a>, code: Code) -> Refused<'a> {
        Box::pin(self.0.refuse(asked(&by), code))
    }
}
