//! Templates that are built on `debian` from other registries' packages: `atoll template make NAME` runs a build of the
//! Dockerfile kept here.
//!
//! Debian's node is older than these programs ask for, so each brings a node from the Python registry first. Behind a
//! mirror, give its address as a build argument (`PIP_INDEX_URL`, `NPM_CONFIG_REGISTRY`).

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltRecipe {
    /// What it is called.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// How it is built.
    pub dockerfile: &'static str,
    /// What runs in it from the start, and on which port; most have nothing.
    pub start: Option<(&'static [&'static str], u16)>,
}

/// All of them.
pub const BUILT_RECIPES: &[BuiltRecipe] = &[
    BuiltRecipe {
        name: "claude-code",
        about: "debian with Claude Code (claude), the coding agent of Anthropic",
        dockerfile: include_str!("recipes/claude-code.dockerfile"),
        start: None,
    },
    BuiltRecipe {
        name: "codex",
        about: "debian with Codex (codex), the coding agent of OpenAI",
        dockerfile: include_str!("recipes/codex.dockerfile"),
        start: None,
    },
    BuiltRecipe {
        name: "language-servers",
        about: "debian with language servers for Python, TypeScript and JavaScript",
        dockerfile: include_str!("recipes/language-servers.dockerfile"),
        start: None,
    },
    BuiltRecipe {
        name: "code-server",
        about: "debian with VS Code in the browser, on port 8080",
        dockerfile: include_str!("recipes/code-server.dockerfile"),
        start: Some((
            &[
                "code-server",
                "--bind-addr",
                "0.0.0.0:8080",
                "--auth",
                "none",
                "--disable-telemetry",
                "/home/user",
            ],
            8080,
        )),
    },
];

/// The Dockerfile of a template that is built, by its name.
#[must_use]
pub fn recipe(name: &str) -> Option<&'static str> {
    built_recipe(name).map(|recipe| recipe.dockerfile)
}

/// A template that is built, by its name.
#[must_use]
pub fn built_recipe(name: &str) -> Option<&'static BuiltRecipe> {
    BUILT_RECIPES.iter().find(|recipe| recipe.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_stands_on_debian_and_ends_as_its_user() {
        for recipe in BUILT_RECIPES {
            assert!(crate::name::check_name(recipe.name).is_ok());
            assert!(recipe.dockerfile.contains("\nFROM debian\n"), "{}", recipe.name);
            assert!(recipe.dockerfile.contains("\nUSER user\n"), "{}", recipe.name);
        }
        assert!(recipe("debian").is_none());
    }
}
