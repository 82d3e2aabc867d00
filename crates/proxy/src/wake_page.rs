//! The page that a browser gets while a preview's sandbox wakes, when it does not wake, and when the request is refused: the
//! reason, and what to do. It has no script and loads nothing; everything that is not written here is escaped.

use std::fmt::Write as _;

use atoll_model::Code;
use http::StatusCode;

use crate::page::ProxyError;
use crate::proxy::PortRequest;

const STYLE: &str = include_str!("wake_page.css");

/// LIMIT: a sandbox that could not be woken is not asked to wake at every second by a page that is left open.
const FAILED_WAKE_RELOAD_S: u32 = 5;

/// What the page is about; it decides the words, the colour and whether the page reloads itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Situation {
    Waking,
    NotWoken,
    Asleep,
    NotReady,
    NoListener,
    Private,
    NoAccess,
    NotFound,
    Busy,
    BadAnswer,
    Late,
    Other,
}

impl Situation {
    fn of(error: &ProxyError) -> Self {
        match error.code {
            Code::WakeFailed if error.is_waking => Self::Waking,
            Code::WakeFailed => Self::NotWoken,
            Code::Asleep => Self::Asleep,
            Code::PhaseConflict => Self::NotReady,
            Code::PortClosed => Self::NoListener,
            Code::Unauthenticated => Self::Private,
            Code::Forbidden => Self::NoAccess,
            Code::SandboxNotFound => Self::NotFound,
            Code::BadAnswer => Self::BadAnswer,
            Code::DeadlineExceeded => Self::Late,
            _ if error.status() == StatusCode::TOO_MANY_REQUESTS => Self::Busy,
            _ => Self::Other,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Waking => "The sandbox is waking up",
            Self::NotWoken => "The sandbox could not be woken",
            Self::Asleep => "The sandbox is asleep",
            Self::NotReady => "The sandbox is not ready",
            Self::NoListener => "Nothing answers on this port yet",
            Self::Private => "This preview is private",
            Self::NoAccess => "This request has no access",
            Self::NotFound => "There is no such sandbox",
            Self::Busy => "Too many requests at once",
            Self::BadAnswer => "The app gave no valid answer",
            Self::Late => "The app did not answer in time",
            Self::Other => "The preview is not available",
        }
    }

    /// What the reader can do, in a sentence.
    fn advice(self) -> &'static str {
        match self {
            Self::Waking => {
                "It was paused or stopped while it was not in use. The app appears here as soon as it answers."
            }
            Self::NotWoken => "Look at the reason above. To see the state of the sandbox:",
            Self::Asleep => "It is woken by its owner only, not by a visit. To wake it:",
            Self::NotReady => "To see the state of the sandbox:",
            Self::NoListener => {
                "Start the app in the sandbox; it may listen on 127.0.0.1 only. To see what runs there:"
            }
            Self::Private => "Open it with a link. Anyone with a key of the sandbox can make one:",
            Self::NoAccess => {
                "The link may have expired or been closed. Anyone with a key of the sandbox can make a new one:"
            }
            Self::NotFound => "It may have been deleted. Check the address, or ask for a new link.",
            Self::Busy => "The page reloads when the next request is accepted.",
            Self::BadAnswer | Self::Late => "Look at the log of the app:",
            Self::Other => "Check the address, or ask for a new link.",
        }
    }

    /// The command that belongs to the advice. The id and the port are those of the request, so that it says nothing about
    /// sandboxes that the reader may not know.
    fn command(self, asked: &PortRequest<'_>) -> Option<String> {
        let id = asked.sandbox;
        match self {
            Self::NotWoken | Self::NotReady => Some(format!("atoll inspect {id}")),
            Self::Asleep => Some(format!("atoll resume {id}")),
            Self::NoListener => Some(format!("atoll ps {id}")),
            Self::Private | Self::NoAccess => Some(format!(
                "atoll preview {id} {}",
                asked.port.map_or_else(|| "PORT".to_owned(), |port| port.to_string())
            )),
            Self::BadAnswer | Self::Late => Some(format!("atoll logs {id}")),
            Self::Waking | Self::NotFound | Self::Busy | Self::Other => None,
        }
    }

    /// The colour: waiting, failed, or neither.
    fn class(self) -> &'static str {
        match self {
            Self::Waking => "waking",
            Self::NotWoken | Self::BadAnswer | Self::Late => "failed",
            Self::Asleep
            | Self::NotReady
            | Self::NoListener
            | Self::Private
            | Self::NoAccess
            | Self::NotFound
            | Self::Busy
            | Self::Other => "refused",
        }
    }
}

/// The page as HTML.
pub(crate) fn render(
    error: &ProxyError,
    asked: &PortRequest<'_>,
    retry_after_s: Option<u32>,
    id: &str,
) -> String {
    let situation = Situation::of(error);
    let reload_s = retry_after_s.map(|seconds| match situation {
        Situation::NotWoken => seconds.clamp(FAILED_WAKE_RELOAD_S, 30),
        _ => seconds.clamp(1, 30),
    });
    let mut page = String::with_capacity(4_096);
    page.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    page.push_str("<meta name=\"robots\" content=\"noindex\">");
    if let Some(seconds) = reload_s {
        let _ = write!(page, "<meta http-equiv=\"refresh\" content=\"{seconds}\">");
    }
    let title = situation.title();
    let _ = write!(page, "<title>{title} · Atoll</title><style>{STYLE}</style></head>");
    let _ = write!(page, "<body><main class=\"{}\">{MARK}<h1>{title}</h1>", situation.class());
    let _ = write!(page, "<p class=\"reason\" role=\"status\">{}</p>", escape(&error.message));
    let _ = write!(page, "<p>{}</p>", situation.advice());
    if let Some(command) = situation.command(asked) {
        let _ = write!(page, "<pre><code>{}</code></pre>", escape(&command));
    }
    // The hint is written for programs; people have the advice.
    if let Some(hint) = &error.hint {
        let _ = write!(page, "<p class=\"hint\">{}</p>", escape(hint));
    }
    match reload_s {
        Some(1) => page.push_str("<p class=\"after\">This page reloads automatically.</p>"),
        Some(seconds) => {
            let _ = write!(
                page,
                "<p class=\"after\">This page reloads automatically, every {seconds} seconds.</p>"
            );
        }
        None => page.push_str("<p class=\"after\"><a href=\"\">Try again</a></p>"),
    }
    let _ = write!(
        page,
        "<footer><code>{}</code> · request <code>{}</code></footer>",
        error.code.as_str(),
        escape(id)
    );
    page.push_str("</main></body></html>\n");
    page
}

/// The ring of the web page.
const MARK: &str = "<svg viewBox=\"0 0 32 32\" width=\"34\" height=\"34\" aria-hidden=\"true\"><circle cx=\"16\" cy=\"16\" r=\"10\" \
    fill=\"none\" stroke=\"currentColor\" stroke-width=\"4.4\" stroke-linecap=\"round\" stroke-dasharray=\"45 12 3.5 2.4\"/></svg>";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proxy::PortRequestOrigin;
    use atoll_model::SandboxId;

    fn page(error: &ProxyError, retry_after_s: Option<u32>) -> String {
        let sandbox: SandboxId = "k3v9x0qn2m7c1z8d5b4a".parse().unwrap();
        let asked = PortRequest { sandbox: &sandbox, port: Some(8080), by: PortRequestOrigin::Host };
        render(error, &asked, retry_after_s, "00p1")
    }

    #[test]
    fn every_code_has_a_page_without_script_and_without_foreign_markup() {
        for code in Code::ALL {
            let error = ProxyError::new(*code, "<script>alert(1)</script> & \"text\"")
                .hint("<img src=x onerror='alert(2)'>");
            let text = page(&error, None);
            assert!(!text.contains("<script") && !text.contains("<img"), "{}: {text}", code.as_str());
            assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;text&quot;"), "{text}");
            assert!(
                text.contains(code.as_str()) && text.contains("00p1") && text.contains("Try again"),
                "{text}"
            );
        }
    }

    #[test]
    fn waking_reloads_soon_and_a_failed_wake_later() {
        let mut error = ProxyError::new(Code::WakeFailed, "no");
        assert!(page(&error, Some(1)).contains("http-equiv=\"refresh\" content=\"5\""));
        error.is_waking = true;
        let text = page(&error, Some(1));
        assert!(
            text.contains("http-equiv=\"refresh\" content=\"1\"") && text.contains("class=\"waking\""),
            "{text}"
        );
    }

    #[test]
    fn a_refusal_says_how_to_get_access() {
        let text = page(&ProxyError::new(Code::Unauthenticated, "no key"), None);
        assert!(
            text.contains("atoll preview k3v9x0qn2m7c1z8d5b4a 8080") && !text.contains("refresh"),
            "{text}"
        );
    }
}
