//! Selects one of an image's platforms. Pure functions.

use std::fmt;
use std::str::FromStr;

use oci_spec::image::{Descriptor, ImageIndex};

use super::error::RegistryError;

/// An operating system, an architecture and an optional variant, by their names in Go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`, …
    pub arch: String,
    /// `v7` of `arm`.
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this machine.
    #[must_use]
    pub fn of_host() -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Self { os: "linux".into(), arch: arch.into(), variant: None }
    }

    /// How well `there` fits a request for `self`: lower is better, `None` means not at all.
    fn distance(&self, there: &Platform) -> Option<u8> {
        if (self.os.as_str(), self.arch.as_str()) != (there.os.as_str(), there.arch.as_str()) {
            return None;
        }
        let usual = match self.arch.as_str() {
            "arm64" => Some("v8"),
            "arm" => Some("v7"),
            "amd64" => Some("v1"),
            _ => None,
        };
        match (self.variant.as_deref(), there.variant.as_deref()) {
            (asked, is) if asked == is => Some(0),
            (None, is) if is == usual => Some(1),
            (asked, None) if asked == usual => Some(1),
            // Older variants run on newer machines; a list with several names the most general one first.
            (None, Some(_)) if self.arch == "arm" => Some(2),
            _ => None,
        }
    }

    /// Whether an image for `there` runs where `self` was requested.
    pub(super) fn is_served_by(&self, there: &Platform) -> bool {
        self.distance(there).is_some()
    }

    /// The image of an index for this platform.
    pub(super) fn choose<'a>(
        &self,
        image: &str,
        index: &'a ImageIndex,
    ) -> Result<&'a Descriptor, RegistryError> {
        let known = || {
            index.manifests().iter().filter_map(|one| {
                let there = one.platform().as_ref()?;
                let there = Platform {
                    os: there.os().to_string(),
                    arch: there.architecture().to_string(),
                    variant: there.variant().clone(),
                };
                Some((one, there))
            })
        };
        let best =
            known().filter_map(|(one, there)| Some((self.distance(&there)?, one))).min_by_key(|best| best.0);
        if let Some((_, one)) = best {
            return Ok(one);
        }
        // An index of one image without a platform means that image; its config is checked later.
        if let [only] = index.manifests().as_slice()
            && only.platform().is_none()
        {
            return Ok(only);
        }
        // LIMIT: at most sixteen are named; an index may contain thousands.
        let mut there: Vec<String> = known()
            .map(|(_, there)| there.to_string())
            .filter(|name| !name.starts_with("unknown/"))
            .take(16)
            .collect();
        there.dedup();
        let there = if there.is_empty() { "none with a platform".into() } else { there.join(", ") };
        Err(RegistryError::NoPlatform { image: image.to_owned(), asked: self.to_string(), there })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.arch)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = RegistryError;

    /// `linux/amd64`, `linux/arm/v7`, or only the architecture.
    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let bad = || RegistryError::BadPlatform(text.chars().take(64).collect());
        let is_word = |word: &&str| {
            (1..=32).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
        };
        let words: Vec<&str> = text.split('/').collect();
        if !words.iter().all(is_word) {
            return Err(bad());
        }
        let (os, arch, variant) = match words.as_slice() {
            [arch] => ("linux", *arch, None),
            [os, arch] => (*os, *arch, None),
            [os, arch, variant] => (*os, *arch, Some((*variant).to_owned())),
            _ => return Err(bad()),
        };
        let arch = match arch {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        if os != "linux" {
            return Err(bad());
        }
        Ok(Self { os: os.into(), arch: arch.into(), variant })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn index(platforms: &[&str]) -> ImageIndex {
        let manifests: Vec<_> = platforms
            .iter()
            .enumerate()
            .map(|(n, platform)| {
                let words: Vec<&str> = platform.split('/').collect();
                let mut one = serde_json::json!({
                    "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": format!("sha256:{n:064x}"), "size": n,
                    "platform": {"os": words[0], "architecture": words[1]},
                });
                if let Some(variant) = words.get(2) {
                    one["platform"]["variant"] = (*variant).into();
                }
                one
            })
            .collect();
        serde_json::from_value(serde_json::json!({"schemaVersion": 2, "manifests": manifests})).unwrap()
    }

    #[test]
    fn the_nearest_platform_of_an_index_is_chosen() {
        let many = index(&[
            "windows/amd64",
            "linux/arm/v6",
            "linux/arm/v7",
            "linux/arm64/v8",
            "linux/amd64",
            "unknown/unknown",
        ]);
        for (asked, size) in [
            ("linux/amd64", 4),
            ("amd64", 4),
            ("x86_64", 4),
            ("linux/arm64", 3),
            ("linux/arm", 2),
            ("linux/arm/v6", 1),
        ] {
            let chosen: Platform = asked.parse().unwrap();
            assert_eq!(chosen.choose("a", &many).unwrap().size(), size, "{asked}");
        }
        let missing = "linux/riscv64".parse::<Platform>().unwrap().choose("a", &many).unwrap_err();
        assert!(
            missing.to_string().contains("linux/amd64") && !missing.to_string().contains("unknown"),
            "{missing}"
        );
    }

    #[test]
    fn what_is_no_platform_of_linux_is_refused() {
        for text in
            ["", "/", "linux/", "windows/amd64", "linux/a/b/c", "linux/a b", "linux/\0", &"a".repeat(99)]
        {
            assert!(text.parse::<Platform>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_platform_that_is_read_is_written_back_the_same() {
        atoll_robustness::check("platform", |bytes| {
            if let Ok(platform) = String::from_utf8_lossy(bytes).parse::<Platform>() {
                assert_eq!(platform.to_string().parse::<Platform>().ok(), Some(platform));
            }
        });
    }
}
