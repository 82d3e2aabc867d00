//! Grammar of `atoll template` and `atoll build`: what sandboxes start from, and how it is made.

use std::path::PathBuf;

use atoll_model::TemplateRef;
use clap::{Args, Subcommand, ValueEnum};

use super::network::Reach;
use super::values::{
    Mebibytes, Pair, Ready, Seconds, SecretSource, cores, mebibytes, ready, seconds, secret_source, variable,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Template {
    /// List templates
    #[command(visible_alias = "list")]
    Ls {
        /// Only names, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one template
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// NAME, NAME:TAG, NAME@sha256:… or an alias
        name: String,
    },
    /// Make a template on this machine, or make it anew
    #[command(after_help = "Examples:
  atoll template make debian               what SDKs start from unless told otherwise
  atoll run -T debian -- cat /etc/os-release")]
    Make {
        /// Which; without it, lists what there is
        name: Option<String>,
        /// A value for one that is built, such as NPM_CONFIG_REGISTRY=URL behind a mirror
        #[arg(long, value_parser = variable, value_name = "NAME[=VALUE]")]
        build_arg: Vec<Pair>,
    },
    /// Make a template from a folder with a Dockerfile
    Build(Box<Build>),
    /// List builds, newest first
    Builds(Builds),
    /// Show what a build says; with -f until it ends
    Log(BuildLog),
    /// End builds that are under way
    Cancel {
        /// Ids, as `template builds` shows them
        #[arg(required = true)]
        builds: Vec<String>,
    },
    /// Fetch an image from a registry
    #[command(after_help = "Examples:
  atoll template pull python:3.12-slim
  atoll template pull ghcr.io/team/app@sha256:…
  atoll template pull --username anna --password-stdin registry.example/app:v1 < password")]
    Pull {
        /// As in docker pull: NAME[:TAG], NAME@sha256:…, with a registry's host in front
        image: TemplateRef,
        /// For which machine, where there are several, such as linux/amd64 [default: this one]
        #[arg(long, value_name = "OS/ARCH")]
        platform: Option<String>,
        #[command(flatten)]
        login: Login,
    },
    /// Send a template to a registry
    #[command(after_help = "Examples:
  atoll template push app:v1 registry.example/team/app:v1")]
    Push {
        /// Which
        template: String,
        /// Where to, as in docker push
        image: TemplateRef,
        #[command(flatten)]
        login: Login,
    },
    /// Write a template to a file that Docker and others read
    Export {
        /// Which
        template: String,
        /// A file, or - for stdout
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Which form
        #[arg(long, value_enum, default_value_t = ExportForm::Oci)]
        format: ExportForm,
    },
    /// Make a template from an archive of docker save, an OCI archive or layout folder, or a tar of a root file system
    #[command(after_help = "Examples:
  docker save app:v1 | atoll template import - app:v1
  atoll template import ./oci-layout app
  atoll template import rootfs.tar.gz tiny:1")]
    Import {
        /// A file, a folder with an OCI layout, or - for stdin
        #[arg(value_name = "FROM")]
        from: PathBuf,
        /// Its name here: NAME or NAME:TAG
        name: TemplateRef,
        /// What it is [default: found out]
        #[arg(long, value_enum)]
        format: Option<ImportForm>,
    },
    /// Give a version of a template more tags, or take tags away
    #[command(after_help = "Examples:
  atoll template tag app:v1 stable         app:stable is what app:v1 is now
  atoll template tag --remove app old")]
    Tag {
        /// Take the tags away instead
        #[arg(long)]
        remove: bool,
        /// NAME, NAME:TAG or NAME@sha256:…
        template: String,
        /// Tags
        #[arg(required = true)]
        tags: Vec<String>,
    },
    /// Change what sandboxes of a template start with; those that are there stay as they are
    Update(Box<Update>),
    /// Remove templates, or single tags of them
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// NAME or NAME:TAG
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove what no template, sandbox, snapshot or recent build needs any more
    Gc,
}

/// Who one is at a registry.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Login {
    /// Name at the registry [default: what the server's Docker config knows, for admin keys; else nobody]
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password, or a token where no name is given, from stdin
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportForm {
    /// An OCI archive
    Oci,
    /// What docker load takes
    Docker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportForm {
    /// An OCI archive
    Oci,
    /// What docker save writes
    Docker,
    /// A tar of a whole root file system
    Rootfs,
}

impl From<ExportForm> for atoll_wire::templates::ExportForm {
    fn from(word: ExportForm) -> Self {
        match word {
            ExportForm::Oci => Self::Oci,
            ExportForm::Docker => Self::Docker,
        }
    }
}

impl From<ImportForm> for atoll_wire::templates::ImportForm {
    fn from(word: ImportForm) -> Self {
        match word {
            ImportForm::Oci => Self::Oci,
            ImportForm::Docker => Self::Docker,
            ImportForm::Rootfs => Self::Rootfs,
        }
    }
}

const BUILD_EXAMPLES: &str = "\
Examples:
  atoll template build -t app .                       ./Dockerfile, built without Docker
  atoll template build -t app:v2 -f other.Dockerfile --build-arg VERSION=2 .
  atoll template build -t app --secret id=npm,src=$HOME/.npmrc .
  atoll template build -t web --start 'python3 -m http.server 8000' --ready port:8000 .
  atoll run -T app -- ls

The folder goes to the server without what .dockerignore names. Ctrl-C cancels the build; what was built stays in the cache.";

/// A build.
#[derive(Debug, Clone, Args)]
#[command(after_help = BUILD_EXAMPLES)]
pub(crate) struct Build {
    /// Its name: NAME or NAME:TAG; further ones are more tags of the same name
    #[arg(short, long = "tag", required = true, value_name = "NAME[:TAG]")]
    pub(crate) tag: Vec<TemplateRef>,
    /// The Dockerfile, or - for stdin [default: DIR/Dockerfile]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// A value for an ARG: NAME=VALUE, or NAME to pass yours on
    #[arg(long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) build_arg: Vec<Pair>,
    /// What RUN --mount=type=secret,id=ID sees: id=ID,src=FILE or id=ID,env=NAME; never in a layer or a log
    #[arg(long, value_parser = secret_source, value_name = "id=ID,src=FILE")]
    pub(crate) secret: Vec<SecretSource>,
    /// End with this stage
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// For which machine base images are, such as linux/amd64 [default: this one]
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<String>,
    /// Run every step, whatever the cache has
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Start it and answer; `template log -f` shows how it goes
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Print nothing but the name
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Cores of each step
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Memory of each step, such as 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk of each step, such as 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// End it after this long [default: the server's]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    #[command(flatten)]
    pub(crate) start: Start,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// The folder that COPY takes from
    #[arg(default_value = ".", value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

impl Build {
    /// As it is when only its name and its arguments are said.
    pub(crate) fn of(tag: TemplateRef, build_arg: Vec<Pair>, start: Start) -> Self {
        Self {
            tag: vec![tag],
            file: None,
            build_arg,
            secret: Vec::new(),
            target: None,
            platform: None,
            no_cache: false,
            detach: false,
            quiet: false,
            cpu: None,
            memory: None,
            disk: None,
            timeout: None,
            start,
            reach: Reach::default(),
            folder: ".".into(),
        }
    }
}

/// What sandboxes of a template start with.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Start {
    /// A command of the shell that is started at every boot
    #[arg(long, value_name = "COMMAND", help_heading = "Start of its sandboxes")]
    pub(crate) start: Option<String>,
    /// The same as a list; of templates whose description this program has
    #[arg(skip)]
    pub(crate) argv: Option<Vec<String>>,
    /// When that is ready: port:8000, url:8000/health, or a command of the shell
    #[arg(long, value_parser = ready, value_name = "CHECK", requires = "start", help_heading = "Start of its sandboxes")]
    pub(crate) ready: Option<Ready>,
    /// The port of previews that name none
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Start of its sandboxes")]
    pub(crate) port: Option<u16>,
    /// How many instances wait ready for the next create
    #[arg(long, value_name = "N", help_heading = "Start of its sandboxes")]
    pub(crate) pool: Option<u32>,
}

/// What is changed of a template.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  atoll template update app --pool 4 --memory 1g
  atoll template update app --start 'node server.js' --ready url:3000/health
  atoll template update app --alias my-app --env DEBUG=1")]
pub(crate) struct Update {
    /// NAME or NAME:TAG
    pub(crate) template: String,
    #[command(flatten)]
    pub(crate) start: Start,
    /// Who commands run as
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Where commands start
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// A variable of every command; added to those that are there
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// Cores of sandboxes that ask for none
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Memory of sandboxes that ask for none
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk of sandboxes that ask for none
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// Another name that it answers to; replaces those it has
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
    /// Take all aliases away
    #[arg(long, conflicts_with = "alias")]
    pub(crate) no_alias: bool,
    /// Forget earlier changes first: what its versions say holds again
    #[arg(long)]
    pub(crate) reset: bool,
    /// Every tenant may use it; needs an admin key
    #[arg(long)]
    pub(crate) public: bool,
    /// Only its own tenant may use it
    #[arg(long, conflicts_with = "public")]
    pub(crate) private: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Builds {
    /// Only of this template
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// Only ids, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BuildLog {
    /// Id, or the beginning of one; the UUID that an E2B SDK was told will do too
    pub(crate) build: String,
    /// Stay until it ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}
