//! The location of an image: the host of its registry, its repository there, and the tag or digest. Pure functions.

use atoll_model::TemplateRef;

/// The registry for names without a host, and for Docker's own names of it.
const HUB: &str = "registry-1.docker.io";
/// Its name in Docker's config.
const HUB_IN_CONFIG: &str = "https://index.docker.io/v1/";

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageLocation {
    /// `host` or `host:port`, as in a URL.
    pub host: String,
    /// `library/debian`.
    pub repository: String,
    /// A tag, or `sha256:…`.
    pub reference: String,
    /// The digest in the reference, which the manifest must match.
    pub digest: Option<String>,
}

impl ImageLocation {
    /// Interprets the reference as Docker does: no host means Docker's registry, no folder there means `library`.
    pub(super) fn of(image: &TemplateRef) -> Self {
        let (host, repository) = match image.registry() {
            Some(host) => (host, image.name[host.len() + 1..].to_owned()),
            None => (HUB, image.name.clone()),
        };
        let hub = matches!(host, HUB | "docker.io" | "index.docker.io");
        let repository =
            if hub && !repository.contains('/') { format!("library/{repository}") } else { repository };
        let tag = image.tag_or_default().unwrap_or_default();
        Self {
            host: if hub { HUB.to_owned() } else { host.to_ascii_lowercase() },
            repository,
            reference: image.digest.clone().unwrap_or_else(|| tag.to_owned()),
            digest: image.digest.clone(),
        }
    }

    /// The name of the registry in Docker's config.
    pub(super) fn in_docker_config(&self) -> &str {
        if self.host == HUB { HUB_IN_CONFIG } else { &self.host }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_where_docker_would_look() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, host, repository, reference) in [
            ("python:3.12-slim", HUB, "library/python", "3.12-slim"),
            ("team/app", HUB, "team/app", "latest"),
            ("docker.io/debian", HUB, "library/debian", "latest"),
            ("index.docker.io/a/b:c", HUB, "a/b", "c"),
            ("127.0.0.1:5000/deb:base", "127.0.0.1:5000", "deb", "base"),
            ("localhost/app", "localhost", "app", "latest"),
            ("Ghcr.io/a/b", "ghcr.io", "a/b", "latest"),
            (&format!("ghcr.io/a/b:tag@{digest}"), "ghcr.io", "a/b", &digest),
        ] {
            let place = ImageLocation::of(&text.parse().unwrap());
            assert_eq!(
                (&*place.host, &*place.repository, &*place.reference),
                (host, repository, reference),
                "{text}"
            );
        }
    }
}
