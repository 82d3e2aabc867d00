//! Translates names of templates and ids of builds.

use atoll_front_kit::ApiError;
use atoll_model::{BuildId, Code, DEFAULT_TAG, Principal, TemplateRef};

use crate::E2bApp;
use crate::error::not_here;

/// E2B's default tag.
pub(super) const DEFAULT: &str = "default";
/// The stored form of a user's tag `latest`, since `latest` is Atoll's default tag.
const THEIR_LATEST: &str = "_latest";
/// Atoll's form of a tag of E2B.
pub(super) fn stored(tag: &str) -> &str {
    match tag {
        DEFAULT => DEFAULT_TAG,
        DEFAULT_TAG => THEIR_LATEST,
        tag => tag,
    }
}

/// E2B's form of a tag of Atoll.
pub(super) fn shown(tag: &str) -> &str {
    match tag {
        DEFAULT_TAG => DEFAULT,
        THEIR_LATEST => DEFAULT_TAG,
        tag => tag,
    }
}

/// A name with or without a tag, which stays in E2B's form.
pub(super) fn parse(field: &str, text: &str) -> Result<TemplateRef, ApiError> {
    let text = text.trim().to_ascii_lowercase();
    text.parse::<TemplateRef>().map_err(|bad| ApiError::field(field, bad.to_string()))
}

/// The name in Atoll for a template id: with a tag in Atoll's form if the id has one. A text that is not a name is
/// returned unchanged, and is then not found.
pub(crate) async fn word(app: &E2bApp, who: &Principal, id: &str) -> Result<String, ApiError> {
    let Ok(reference) = parse("templateID", id) else { return Ok(id.to_owned()) };
    let Some(tag) = &reference.tag else { return Ok(reference.to_string()) };
    if tag == DEFAULT {
        return Ok(TemplateRef { tag: None, ..reference }.to_string());
    }
    if tag == DEFAULT_TAG {
        let theirs = TemplateRef { tag: Some(THEIR_LATEST.to_owned()), ..reference.clone() }.to_string();
        // Templates that were not built through this front know no other `latest` than ours.
        return match app.service.templates().get(who, &theirs).await {
            Ok(_) => Ok(theirs),
            Err(error) if error.code == Code::TemplateNotFound => Ok(reference.to_string()),
            Err(error) => Err(error.into()),
        };
    }
    Ok(reference.to_string())
}

/// Templates of E2B whose calls in the SDKs run programs that only these templates have: the call, and what to do instead.
const VENDORS_OWN: [(&str, &str, &str); 2] = [
    (
        "mcp-gateway",
        "mcp (the MCP gateway in E2B's template)",
        "give the agent this server's /mcp instead, whose tools work in sandboxes (docs/mcp.md), or build a template named mcp-gateway \
         that has that program",
    ),
    (
        "devcontainer",
        "a dev container (E2B's template devcontainer)",
        "it runs Docker in the sandbox; build from the project's Dockerfile instead: Template().from_dockerfile()",
    ),
];

/// The refusal of one of these templates, if it was not found. `word` is the core's name.
pub(crate) fn vendors_own(word: &str) -> Option<ApiError> {
    let name = word.split(':').next().unwrap_or_default();
    let (_, what, why) = VENDORS_OWN.iter().find(|(own, _, _)| *own == name)?;
    Some(not_here(what, why))
}

/// E2B's ids of builds are UUIDs. Atoll's ids have 103 bits, which fit into the free bits of a UUID of version 8.
pub(super) fn uuid(build: &BuildId) -> String {
    let digits = build.as_str().bytes().map(|b| match b {
        b'a'..=b'z' => u128::from(b - b'a'),
        digit => u128::from(digit - b'0') + 26,
    });
    write(digits.fold(0, |number, digit| number * 36 + digit), 8)
}

/// The id of a build as the client wrote it.
pub(super) fn build_id(text: &str) -> Result<BuildId, ApiError> {
    let unknown = || ApiError::new(Code::BuildNotFound, "there is no such build");
    if let Ok(own) = text.parse() {
        return Ok(own);
    }
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32).ok_or_else(unknown)?;
    let mut rest = number >> 80 << 74 | (number >> 64 & 0xfff) << 62 | number & ((1 << 62) - 1);
    let mut id = Vec::with_capacity(20);
    for _ in 0..20 {
        let digit = u8::try_from(rest % 36).map_err(|_| unknown())?;
        id.push(if digit < 26 { b'a' + digit } else { b'0' + digit - 26 });
        rest /= 36;
    }
    id.reverse();
    let id: BuildId = String::from_utf8(id).ok().and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
    if rest == 0 && uuid(&id) == text.to_ascii_lowercase() { Ok(id) } else { Err(unknown()) }
}

/// The build id of a UUID that an SDK received; `None` if no build can have it.
#[must_use]
pub fn build_of_uuid(text: &str) -> Option<BuildId> {
    build_id(text).ok().filter(|_| text.contains('-'))
}

/// A UUID for a version without a known build.
pub(super) fn uuid_of_version(version: &str) -> String {
    let hex: String = version.chars().rev().filter(char::is_ascii_hexdigit).take(32).collect();
    write(u128::from_str_radix(&hex, 16).unwrap_or_default(), 5)
}

/// 122 bits as a UUID of a version.
fn write(bits: u128, kind: u128) -> String {
    let bits = bits & ((1 << 122) - 1);
    let number =
        (bits >> 74) << 80 | kind << 76 | (bits >> 62 & 0xfff) << 64 | 0b10 << 62 | bits & ((1 << 62) - 1);
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_one_uuid_and_a_uuid_one_build() {
        for id in [
            "a0000000000000000000",
            "z9999999999999999999",
            "aaaaaaaaaaaaaaaaaaaa",
            "zzzzzzzzzzzzzzzzzzzz",
            "k3j5x9q2w8e7r6t5y4u3",
        ] {
            let id: BuildId = id.parse().unwrap();
            let uuid = uuid(&id);
            assert_eq!((uuid.len(), uuid.as_bytes()[14], uuid.matches('-').count()), (36, b'8', 4), "{uuid}");
            assert_eq!(build_id(&uuid).unwrap(), id);
            assert_eq!((build_of_uuid(&uuid), build_of_uuid(id.as_str())), (Some(id.clone()), None));
            assert_eq!(build_id(id.as_str()).unwrap(), id);
        }
        for bad in [
            "",
            "x",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-8fff-bfff-ffffffffffff",
            "../../x",
        ] {
            assert_eq!(build_id(bad).unwrap_err().code, Code::BuildNotFound, "{bad}");
        }
        assert_eq!(uuid_of_version(&format!("sha256:{}", "ab".repeat(32))).len(), 36);
    }

    #[test]
    fn tags_have_other_names_there() {
        for (theirs, ours) in [("default", "latest"), ("latest", "_latest"), ("v1", "v1")] {
            assert_eq!((stored(theirs), shown(ours)), (ours, theirs));
        }
    }
}
