//! Reads the start settings from the config of an image.

use atoll_model::StartSettings;
use oci_spec::image::ImageConfiguration;

/// User, working directory, environment and port of a config. Its command is not started: the agent is the first
/// process of a sandbox.
#[must_use]
pub fn start_settings(config: &ImageConfiguration) -> StartSettings {
    let Some(config) = config.config().as_ref() else { return StartSettings::default() };
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let env = config.env().iter().flatten().filter_map(|pair| pair.split_once('='));
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let env: std::collections::BTreeMap<_, _> = env.filter(|(key, _)| !key.is_empty()).collect();
    let said = env.get("PORT").and_then(|port| port.parse().ok());
    let exposed = config.exposed_ports().iter().flatten().filter_map(|port| {
        let (number, protocol) = port.split_once('/').unwrap_or((port, "tcp"));
        number.parse::<u16>().ok().filter(|number| protocol == "tcp" && *number > 0)
    });
    // The list is unordered, so the lowest port is used.
    let port = said.filter(|port| *port > 0).or_else(|| exposed.min());
    StartSettings {
        user: text(config.user()),
        workdir: text(config.working_dir()),
        env,
        port,
        ..StartSettings::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn settings(config: &str) -> StartSettings {
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[]}},"config":{config}}}"#
        );
        start_settings(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_config_says_how_to_start() {
        let read = settings(
            r#"{"User":"web:staff","WorkingDir":"/srv","Env":["A=1=2","PATH=/bin","broken","=x"],
                "ExposedPorts":{"53/udp":{},"9000/tcp":{},"8080":{}},"Cmd":["serve"]}"#,
        );
        assert_eq!((read.user.as_deref(), read.workdir.as_deref()), (Some("web:staff"), Some("/srv")));
        assert_eq!(
            read.env.into_iter().collect::<Vec<_>>(),
            [("A".into(), "1=2".into()), ("PATH".into(), "/bin".into())]
        );
        assert_eq!((read.port, read.command), (Some(8080), None));
        assert_eq!(settings(r#"{"Env":["PORT=3000"],"ExposedPorts":{"80/tcp":{}}}"#).port, Some(3000));
        assert_eq!(settings(r#"{"User":"","WorkingDir":""}"#), StartSettings::default());
    }
}
