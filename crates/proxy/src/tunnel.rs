//! The connection after an upgrade: forwards bytes both ways, unread, until one end closes or the instance ends.
//!
//! WebSocket frames pass unchanged: data that one end sends faster than the other reads stays with the sender. A half
//! that is closed is closed on the other side, and the other half continues.

use std::pin::Pin;
use std::time::Duration;

use atoll_service::PortSession;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::app_connection::AppConnection;
use crate::pool::RequestPermit;

const SWITCH_WITHIN: Duration = Duration::from_secs(30);
/// LIMIT: buffer of one direction of one tunnel; two thousand of them stay below 64 MiB.
const PIECE: usize = 16 << 10;

/// Ends with `ends`, or when both ends are closed.
#[expect(
    clippy::disallowed_methods,
    reason = "ends with either side, with the incarnation, or when its request scope ends"
)]
pub(crate) fn tunnel(
    client: OnUpgrade,
    app: OnUpgrade,
    mut connection: AppConnection,
    session: PortSession,
    place: RequestPermit,
    ends: impl Future<Output = ()> + Send + 'static,
) {
    let gone = session.gone();
    let held = (session, place);
    tokio::spawn(async move {
        let mut app = app;
        // The connection releases the stream once it has been driven to its end.
        let app = std::future::poll_fn(|cx| {
            connection.advance(cx);
            Pin::new(&mut app).poll(cx)
        });
        let both = async { tokio::try_join!(client, app) };
        let Ok(Ok((client, app))) = tokio::time::timeout(SWITCH_WITHIN, both).await else { return };
        let (mut client, mut app) = (TokioIo::new(client), TokioIo::new(app));
        tokio::select! {
            ended = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut app, PIECE, PIECE) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a tunnel ended early");
                }
            }
            () = gone => {}
            () = ends => {}
        }
        drop(held);
    });
}
