//! Where the data plane of the E2B front is: on the ports of sandboxes that its SDKs know, and at `/files` for signed links.

use atoll_front_e2b::Data;
use atoll_model::Code;
use atoll_proxy::{Dispatch, PortRequest, PortRequestOrigin, Refused, StandIn};
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

fn asked<'a>(asked: &PortRequest<'a>) -> atoll_front_e2b::Asked<'a> {
    atoll_front_e2b::Asked {
        sandbox: asked.sandbox,
        port: asked.port,
        by_fields: asked.by == PortRequestOrigin::Fields,
    }
}

impl StandIn for OnPorts {
    fn wants(&self, asked: &PortRequest<'_>) -> bool {
        asked.by != PortRequestOrigin::Path && Data::wants(asked.port)
    }

    fn take<'a>(&'a self, by: PortRequest<'a>, request: Request<Body>) -> Dispatch<'a> {
        Box::pin(self.0.take(asked(&by), request))
    }

    fn refuse<'a>(&'a self, by: PortRequest<'a>, code: Code) -> Refused<'a> {
        Box::pin(self.0.refuse(asked(&by), code))
    }
}
