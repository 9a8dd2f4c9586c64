use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

fn flags(args: &[&str]) -> Flags {
    let args = std::iter::once("serve").chain(args.iter().copied());
    Command::try_parse_from(args).unwrap().flags
}

fn read_flags(args: &[&str]) -> Result<Settings, Vec<String>> {
    Settings::read_with(&flags(args), &|_| None, Some("/data".into()))
}

fn with_file(text: &str, args: &[&str]) -> Result<Settings, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let mut all = vec!["--config", path.to_str().unwrap()];
    all.extend(args);
    let base = format!("{}/", dir.path().display());
    let here = |faults: Vec<String>| -> Vec<String> {
        faults.iter().map(|fault| fault.replace(&base, "")).collect()
    };
    let here_path = |path: &Path| path.strip_prefix(dir.path()).unwrap_or(path).to_owned();
    let mut settings = read_flags(&all).map_err(here)?;
    settings.agents = settings.agents.map(|path| here_path(&path));
    if let StoreUrl::Sqlite(path) = &mut settings.store {
        *path = here_path(path);
    }
    Ok(settings)
}

#[test]
fn without_anything_the_defaults_hold() {
    let settings = read_flags(&[]).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:50051");
    assert_eq!(settings.store, StoreUrl::Sqlite("/data/countersign/countersign.db".into()));
    assert_eq!(settings.agents, None);
    assert_eq!((settings.log_format, settings.log_filter.as_str()), (LogFormat::Text, "info"));
    assert_eq!(settings.drain_timeout.as_secs(), 30);
    assert_eq!(settings.limits, Limits::default());
    assert_eq!(settings.limits.request_bytes, 4 << 20);
    assert_eq!(settings.limits.stream_age.as_secs(), 3_600);

    let homeless = Settings::read_with(&flags(&[]), &|_| None, None).unwrap_err();
    let expected = "--store: this user has no data directory: say sqlite:PATH or memory:";
    assert_eq!(homeless, [expected]);
}

#[test]
fn flags_beat_the_file() {
    let text = "
listen = '0.0.0.0:1'
store = 'sqlite:a/b.db'
agents = 'agents'
log_format = 'json'
log_filter = 'warn,countersign=debug'
drain_timeout = '5m'
[limits]
event_bytes = '2 MiB'
heartbeat = 20
stream_age = '2h'
";
    let settings = with_file(text, &[]).unwrap();
    assert_eq!(settings.listen.to_string(), "0.0.0.0:1");
    assert_eq!(settings.store, StoreUrl::Sqlite("a/b.db".into()));
    assert_eq!(settings.agents, Some("agents".into()));
    assert_eq!(settings.log_format, LogFormat::Json);
    assert_eq!(settings.log_filter, "warn,countersign=debug");
    assert_eq!(settings.drain_timeout.as_secs(), 300);
    assert_eq!(settings.limits.event_bytes, 2 << 20);
    assert_eq!(settings.limits.heartbeat.as_secs(), 20);
    assert_eq!(settings.limits.stream_age.as_secs(), 7_200);

    let args = ["--listen", "localhost:0", "--store", "memory:", "--agents", "x"];
    let more = ["--limit", "heartbeat=5s", "--limit", "max_llm_calls=7,driven_sessions=9"];
    let settings = with_file(text, &[&args[..], &more[..]].concat()).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:0");
    assert_eq!(settings.store, StoreUrl::Memory);
    assert_eq!(settings.agents, Some("x".into()));
    assert_eq!(settings.limits.heartbeat.as_secs(), 5);
    assert_eq!(settings.limits.event_bytes, 2 << 20);
    assert_eq!((settings.limits.max_llm_calls, settings.limits.driven_sessions), (7, 9));
}

#[test]
fn every_fault_is_told_at_once_with_its_place() {
    let text = "
listne = 'x'
store = 'postgres://me:secret@host/db'
log_format = 1
drain_timeout = '2h'
[limits]
event_byte = 1
heartbeat = 0
stream_age = 1.5
request_bytes = '9 MiB'
";
    let args = ["--listen", "here", "--log-filter", "=,=", "--limit", "heart=1", "--limit", "x"];
    let faults = with_file(text, &args).unwrap_err();
    assert!(faults[1].starts_with("--log-filter: is no log filter such as"), "{faults:?}");
    let mut rest = faults;
    rest.remove(1);
    let expected = [
        "--listen: must be an IP address and a port, such as 127.0.0.1:50051",
        "--limit: there is no limit `heart`",
        "--limit: must be NAME=VALUE",
        "c.toml:2:1: there is no setting `listne` (did you mean `listen`?)",
        "c.toml:3:9: `store` PostgreSQL is not built yet: use sqlite:PATH or memory:",
        "c.toml:4:14: `log_format` must be a text in quotes",
        "c.toml:5:17: `drain_timeout` must be a duration from 0s to 1h, such as 30s",
        "c.toml:7:1: there is no limit `event_byte` (did you mean `event_bytes`?)",
        "c.toml:8:13: `heartbeat` must be from 1s to 5m",
        "c.toml:9:14: `stream_age` must be a whole number, or a text such as \"15s\"",
        "c.toml:10:17: `request_bytes` must be from 64 KiB to 8 MiB",
    ];
    assert_eq!(rest, expected);
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let faults = with_file("listen = \n[x\n", &[]).unwrap_err();
    assert!(faults[0].starts_with("c.toml:1:"), "{faults:?}");
    let faults = with_file("listen = '[::1]:1'\nlisten = '[::1]:2'\n", &[]).unwrap_err();
    assert!(faults[0].starts_with("c.toml:2:1: "), "{faults:?}");
    let faults = read_flags(&["--config", "/nowhere/c.toml"]).unwrap_err();
    assert!(faults[0].starts_with("/nowhere/c.toml: cannot be read: "), "{faults:?}");
}

#[test]
fn a_fault_of_a_variable_names_the_variable() {
    let flags = Flags {
        listen: Some("x".to_owned()),
        store: Some("mem".to_owned()),
        agents: Some(String::new()),
        log_format: Some("yaml".to_owned()),
        limits: vec!["heartbeat".to_owned()],
        ..Flags::default()
    };
    let variable = |name: &str| match name {
        "COUNTERSIGN_LISTEN" => Some("x".to_owned()),
        "COUNTERSIGN_AGENTS" => Some(String::new()),
        "COUNTERSIGN_LIMITS" => Some("heartbeat".to_owned()),
        _ => None,
    };
    let faults = Settings::read_with(&flags, &variable, Some("/data".into())).unwrap_err();
    let expected = [
        "COUNTERSIGN_LISTEN: must be an IP address and a port, such as 127.0.0.1:50051",
        "--store: must be sqlite:PATH or memory:",
        "--log-format: must be text or json",
        "COUNTERSIGN_LIMITS: must be NAME=VALUE",
    ];
    assert_eq!(faults, expected);
}

#[test]
fn every_limit_is_in_its_own_range_and_explained() {
    for limit in LIMITS {
        assert!((limit.min..=limit.max).contains(&limit.default), "{}", limit.name);
        assert!(!limit.about.is_empty(), "{}", limit.name);
        for value in [limit.min, limit.default, limit.max] {
            assert_eq!(limit.read(&limit.show(value)), Ok(value), "{}", limit.name);
        }
        assert!(limit.read("99999999999999999999").is_err());
        assert!(limit.read("18446744073709551615 MiB").is_err());
        assert!(limit.read("-1").is_err() && limit.read("").is_err());
    }
}

#[test]
fn the_help_is_complete() {
    use clap::CommandFactory;
    Command::command().debug_assert();
    let help = Command::command().render_long_help().to_string();
    for flag in KEYS.iter().map(|key| format!("--{}", key.replace('_', "-"))) {
        assert!(help.contains(&flag), "{flag}");
    }
}
