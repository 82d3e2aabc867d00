//! Templates that are built on `debian` with packages of other registries: `atoll template make NAME` builds the
//! Dockerfile that is stored here.
//!
//! Behind a mirror, pass its address as a build argument (`PIP_INDEX_URL`, `NPM_CONFIG_REGISTRY`).

/// A built-in Dockerfile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltRecipe {
    /// The name of the template.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The Dockerfile.
    pub dockerfile: &'static str,
    /// The program that runs from the start, and its port; most have none.
    pub start: Option<(&'static [&'static str], u16)>,
}

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

/// The Dockerfile of a template with this name.
#[must_use]
pub fn recipe(name: &str) -> Option<&'static str> {
    built_recipe(name).map(|recipe| recipe.dockerfile)
}

/// The recipe with this name.
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
