//! Grammar of `atoll template` and `atoll build`.

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
        /// Print only names, one per line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one template
    #[command(visible_aliases = ["inspect", "info"])]
    Show {
        /// NAME, NAME:TAG, NAME@sha256:… or an alias
        name: String,
    },
    /// Make a built-in template on this machine, or make it again
    #[command(after_help = "Examples:
  atoll template make debian               the default template of the SDKs
  atoll run -T debian -- cat /etc/os-release")]
    Make {
        /// Name of the template [default: list the templates that can be made]
        name: Option<String>,
        /// Build argument, such as NPM_CONFIG_REGISTRY=URL for a mirror
        #[arg(long, value_parser = variable, value_name = "NAME[=VALUE]")]
        build_arg: Vec<Pair>,
    },
    /// Build a template from a folder with a Dockerfile
    Build(Box<Build>),
    /// List builds, newest first
    Builds(Builds),
    /// Show the log of a build; with -f until the build ends
    Log(BuildLog),
    /// Cancel running builds
    Cancel {
        /// Ids of builds; `template builds` shows them
        #[arg(required = true)]
        builds: Vec<String>,
    },
    /// Pull an image from a registry
    #[command(after_help = "Examples:
  atoll template pull python:3.12-slim
  atoll template pull ghcr.io/team/app@sha256:…
  atoll template pull --username anna --password-stdin registry.example/app:v1 < password")]
    Pull {
        /// Image as in docker pull: NAME[:TAG] or NAME@sha256:…, optionally with the host of a registry
        image: TemplateRef,
        /// Platform of a multi-platform image, such as linux/amd64 [default: this machine's]
        #[arg(long, value_name = "OS/ARCH")]
        platform: Option<String>,
        #[command(flatten)]
        login: Login,
    },
    /// Push a template to a registry
    #[command(after_help = "Examples:
  atoll template push app:v1 registry.example/team/app:v1")]
    Push {
        /// Name of the template: NAME, NAME:TAG or an alias
        template: String,
        /// Target as in docker push
        image: TemplateRef,
        #[command(flatten)]
        login: Login,
    },
    /// Export a template to a Docker or OCI archive
    Export {
        /// Name of the template: NAME, NAME:TAG or an alias
        template: String,
        /// Output file, or - for stdout
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Format of the archive
        #[arg(long, value_enum, default_value_t = ExportForm::Oci)]
        format: ExportForm,
    },
    /// Import a template from an archive of docker save, an OCI archive or layout folder, or a tar of a root file
    /// system
    #[command(after_help = "Examples:
  docker save app:v1 | atoll template import - app:v1
  atoll template import ./oci-layout app
  atoll template import rootfs.tar.gz tiny:1")]
    Import {
        /// A file, a folder with an OCI layout, or - for stdin
        #[arg(value_name = "FROM")]
        from: PathBuf,
        /// Name of the template: NAME or NAME:TAG
        name: TemplateRef,
        /// Format of the archive [default: detected]
        #[arg(long, value_enum)]
        format: Option<ImportForm>,
    },
    /// Add tags to a version of a template, or remove tags
    #[command(after_help = "Examples:
  atoll template tag app:v1 stable         app:stable points to the version of app:v1
  atoll template tag --remove app old")]
    Tag {
        /// Remove the tags
        #[arg(long)]
        remove: bool,
        /// NAME, NAME:TAG or NAME@sha256:…
        template: String,
        /// Tags
        #[arg(required = true)]
        tags: Vec<String>,
    },
    /// Change the start settings of a template; existing sandboxes do not change
    Update(Box<Update>),
    /// Remove templates, or single tags of them
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// NAME or NAME:TAG
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove files that no template, sandbox, snapshot or recent build uses
    Gc,
}

/// Credentials for a registry.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Login {
    /// User name at the registry [default: the server's Docker config for admin keys, otherwise anonymous]
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password, or without --username a token, from stdin
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportForm {
    /// An OCI archive
    Oci,
    /// An archive for docker load
    Docker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportForm {
    /// An OCI archive
    Oci,
    /// An archive of docker save
    Docker,
    /// A tar of a whole root file system
    Rootfs,
}

impl From<ExportForm> for atoll_client::templates::ExportForm {
    fn from(word: ExportForm) -> Self {
        match word {
            ExportForm::Oci => Self::Oci,
            ExportForm::Docker => Self::Docker,
        }
    }
}

impl From<ImportForm> for atoll_client::templates::ImportForm {
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
  atoll template build -t app .                       build ./Dockerfile without Docker
  atoll template build -t app:v2 -f other.Dockerfile --build-arg VERSION=2 .
  atoll template build -t app --secret id=npm,src=$HOME/.npmrc .
  atoll template build -t web --start 'python3 -m http.server 8000' --ready port:8000 .
  atoll run -T app -- ls

The folder is uploaded without the files that .dockerignore names. Ctrl-C cancels the build; finished steps stay in the cache.";

/// A build.
#[derive(Debug, Clone, Args)]
#[command(after_help = BUILD_EXAMPLES)]
pub(crate) struct Build {
    /// Name of the template: NAME or NAME:TAG; repeat it for more tags of the same name
    #[arg(short, long = "tag", required = true, value_name = "NAME[:TAG]")]
    pub(crate) tag: Vec<TemplateRef>,
    /// Dockerfile, or - for stdin [default: DIR/Dockerfile]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Value of an ARG: NAME=VALUE, or NAME to copy your own variable
    #[arg(long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) build_arg: Vec<Pair>,
    /// Secret for RUN --mount=type=secret,id=ID: id=ID,src=FILE or id=ID,env=NAME; never in a layer or a log
    #[arg(long, value_parser = secret_source, value_name = "id=ID,src=FILE")]
    pub(crate) secret: Vec<SecretSource>,
    /// Stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// Platform of base images, such as linux/amd64 [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<String>,
    /// Do not use cached steps
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Return at once; `template log -f` shows the progress
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Print only the name
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// CPU limit of each step in cores
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Memory limit of each step, such as 2g
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Disk limit of each step, such as 10g
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// Time limit of the build [default: the server's]
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    #[command(flatten)]
    pub(crate) start: Start,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Folder with the files for COPY
    #[arg(default_value = ".", value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

impl Build {
    /// A build with only a name and arguments.
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

/// Start settings of a template.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Start {
    /// Start command: a shell command that runs at every boot
    #[arg(long, value_name = "COMMAND", help_heading = "Start settings")]
    pub(crate) start: Option<String>,
    /// The same as a list; of templates whose description this program has
    #[arg(skip)]
    pub(crate) argv: Option<Vec<String>>,
    /// Ready check of the start command: port:8000, url:8000/health, or a shell command
    #[arg(long, value_parser = ready, value_name = "CHECK", requires = "start", help_heading = "Start settings")]
    pub(crate) ready: Option<Ready>,
    /// Default port of previews
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Start settings")]
    pub(crate) port: Option<u16>,
    /// Number of ready instances to keep for the next creates
    #[arg(long, value_name = "N", help_heading = "Start settings")]
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
    /// User that runs commands
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Working directory of commands
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Environment variable of every command; added to the existing ones
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// Default CPU limit of sandboxes in cores
    #[arg(long, value_parser = cores)]
    pub(crate) cpu: Option<f64>,
    /// Default memory limit of sandboxes
    #[arg(short, long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) memory: Option<Mebibytes>,
    /// Default disk limit of sandboxes
    #[arg(long, value_parser = mebibytes, value_name = "SIZE")]
    pub(crate) disk: Option<Mebibytes>,
    /// Alias of the template; replaces the existing aliases
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
    /// Remove all aliases
    #[arg(long, conflicts_with = "alias")]
    pub(crate) no_alias: bool,
    /// Discard earlier changes first, so that the settings of the versions apply
    #[arg(long)]
    pub(crate) reset: bool,
    /// Let every tenant use the template; needs an admin key
    #[arg(long)]
    pub(crate) public: bool,
    /// Let only its own tenant use the template
    #[arg(long, conflicts_with = "public")]
    pub(crate) private: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Builds {
    /// Only builds of this template
    #[arg(short = 'T', long)]
    pub(crate) template: Option<String>,
    /// Print only ids, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BuildLog {
    /// Id or id prefix of the build, or the UUID that an E2B SDK shows
    pub(crate) build: String,
    /// Follow the log until the build ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}
