//! Compiled policies, reviewed as one page; refused ones, as a table; and the property that levels only restrict.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::{HeaderText, Transform};

fn cidrs(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn domains(texts: &[&str]) -> Vec<DomainPattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn custom(names: &[&str], networks: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_domains: domains(names),
        allow_cidrs: cidrs(networks),
        ..NetworkPolicy::default()
    }
}

fn but(policy: NetworkPolicy, denied: &[&str]) -> NetworkPolicy {
    NetworkPolicy { deny_cidrs: cidrs(denied), ..policy }
}

fn with_transform(policy: NetworkPolicy, domain: &str) -> NetworkPolicy {
    let transform = Transform {
        domain: domain.parse().unwrap(),
        inject_headers: [("Authorization".to_owned(), HeaderText::Plain("v".to_owned()))].into(),
        strip_headers: vec!["Cookie".to_owned()],
        plain_http: false,
    };
    NetworkPolicy { transforms: vec![transform], ..policy }
}

fn opened(policy: &NetworkPolicy) -> Vec<OpenedTransform> {
    let change = |transform: &Transform| OpenedTransform {
        domain: transform.domain.clone(),
        inject: vec![Injected { name: "Authorization".to_owned(), value: "v".to_owned() }],
        strip: transform.strip_headers.clone(),
        plain_http: transform.plain_http,
    };
    policy.transforms.iter().map(change).collect()
}

/// Example addresses and names, one of each kind.
const ADDRESSES: [&str; 9] = [
    "1.1.1.1",
    "203.0.113.7",
    "203.0.113.200",
    "10.1.2.3",
    "192.168.0.1",
    "100.64.0.5",
    "127.0.0.1",
    "169.254.169.254",
    "168.63.129.16",
];
const NAMES: [&str; 5] =
    ["example.com", "api.example.com", "deep.api.example.com", "example.org", "evil-example.com"];

fn reaches(egress: &Egress, address: Ipv4Addr) -> bool {
    match egress.direct_mode {
        DirectMode::Closed => false,
        DirectMode::Open => !egress.shut.contains(address.into()),
        DirectMode::Listed => egress.direct.contains(address.into()),
    }
}

fn answers(egress: &Egress, name: &str) -> bool {
    egress.dns != Dns::Closed && !matches!(egress.judge(name), NameVerdict::Refused { .. })
}

fn page(egress: &Egress) -> String {
    let ranges = |ranges: &Ranges4| -> String {
        let text = ranges.iter().map(|(a, b)| format!("{}-{}", Ipv4Addr::from(a), Ipv4Addr::from(b)));
        text.collect::<Vec<_>>().join(" ")
    };
    let mut page = format!("  door {:?}, dns {:?}\n", egress.direct_mode, egress.dns);
    let denied = egress.shut.minus(&ranges::never(Ranges4::default()));
    let opened = ranges::never(Ranges4::default()).minus(&egress.shut);
    if egress.direct_mode != DirectMode::Closed || egress.dns != Dns::Closed {
        writeln!(page, "  denied [{}], private opened [{}]", ranges(&denied), ranges(&opened)).unwrap();
    }
    if egress.direct6.iter().len() > 0 {
        writeln!(page, "  {} ranges of IPv6", egress.direct6.iter().len()).unwrap();
    }
    let reached = ADDRESSES.into_iter().filter(|address| reaches(egress, address.parse().unwrap()));
    writeln!(page, "  reaches {}", reached.collect::<Vec<_>>().join(" ")).unwrap();
    for name in NAMES {
        if egress.dns != Dns::Closed {
            writeln!(page, "  {name}: {}", verdict(egress.judge(name))).unwrap();
        }
    }
    if !egress.limits.is_none() {
        writeln!(page, "  {:?}", egress.limits).unwrap();
    }
    page
}

fn verdict(verdict: NameVerdict) -> String {
    match verdict {
        NameVerdict::Refused { rule } => format!("refused, {rule}"),
        NameVerdict::Allowed { rule } => format!("passes, {rule}"),
        NameVerdict::Changed { rule, .. } => format!("changed, {rule}"),
    }
}

fn sandboxes() -> Vec<(&'static str, NetworkPolicy)> {
    vec![
        ("allow-all", NetworkPolicy::allow_all()),
        ("deny-all", NetworkPolicy::deny_all()),
        ("custom, nothing", custom(&[], &[])),
        ("custom, networks", custom(&[], &["203.0.113.0/24"])),
        ("custom, names", custom(&["example.com", "*.example.com"], &[])),
        ("custom, both", custom(&["example.org"], &["203.0.113.7"])),
        ("custom, all networks", custom(&["example.org"], &["0.0.0.0/0"])),
        ("custom, private", custom(&[], &["10.0.0.0/8", "203.0.113.0/24"])),
        (
            "allow-all and private",
            NetworkPolicy { mode: NetworkMode::AllowAll, ..custom(&[], &["10.0.0.0/8"]) },
        ),
        ("custom, IPv6", custom(&[], &["2606:4700::/32"])),
        ("custom, every name", custom(&["*"], &[])),
        ("allow-all but", but(NetworkPolicy::allow_all(), &["203.0.113.0/25"])),
        ("custom but", but(custom(&["example.com"], &["203.0.113.0/24"]), &["203.0.113.0/25"])),
        ("allow-all, transform", with_transform(NetworkPolicy::allow_all(), "api.example.com")),
        ("custom, transform", with_transform(custom(&["example.org"], &[]), "*.example.com")),
        ("learn", NetworkPolicy { learn: true, ..custom(&["example.org"], &[]) }),
    ]
}

fn tenants() -> Vec<(&'static str, Option<NetworkPolicy>)> {
    let limited = NetworkPolicy {
        limits: NetworkLimits { connections: Some(10), ..NetworkLimits::default() },
        ..custom(&["*.example.com", "example.com"], &["203.0.113.0/25", "10.0.0.0/8"])
    };
    vec![
        ("no tenant", None),
        ("tenant allow-all", Some(NetworkPolicy::allow_all())),
        ("tenant deny-all", Some(NetworkPolicy::deny_all())),
        ("tenant custom", Some(limited)),
    ]
}

#[test]
fn every_mode_with_every_list_below_every_layer() {
    let floors = [
        ("operator says nothing", TenantFloor::default()),
        ("operator: private when named", TenantFloor { private_when_named: true, policy: None }),
        (
            "operator: but 1.0.0.0/8",
            TenantFloor {
                private_when_named: false,
                policy: Some(but(NetworkPolicy::allow_all(), &["1.0.0.0/8"])),
            },
        ),
    ];
    let mut text = String::new();
    for (floor_name, floor) in &floors {
        for (tenant_name, tenant) in tenants() {
            for (name, sandbox) in sandboxes() {
                let egress = compile(floor, tenant.as_ref(), &sandbox, &opened(&sandbox));
                writeln!(text, "{floor_name} / {tenant_name} / {name}\n{}", page(&egress)).unwrap();
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_cannot_be_asked_for_is_named() {
    let floor = TenantFloor::default();
    let named = TenantFloor { private_when_named: true, policy: None };
    let header = |name: &str, value: &str| {
        let mut policy = with_transform(NetworkPolicy::allow_all(), "api.example.com");
        policy.transforms[0].inject_headers = [(name.to_owned(), HeaderText::Plain(value.to_owned()))].into();
        policy
    };
    let limited = |limits| NetworkPolicy { limits, ..NetworkPolicy::allow_all() };
    let none = NetworkLimits::default();
    let many: Vec<String> = (0..=DOMAINS_MAX).map(|n| format!("h{n}.example.com")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut twice = with_transform(NetworkPolicy::allow_all(), "api.example.com");
    twice.transforms.push(twice.transforms[0].clone());
    let mut headers = with_transform(NetworkPolicy::allow_all(), "api.example.com");
    headers.transforms[0]
        .inject_headers
        .insert("AUTHORIZATION".to_owned(), HeaderText::Plain("w".to_owned()));
    for (policy, field) in [
        (NetworkPolicy { mode: NetworkMode::DenyAll, ..custom(&["example.com"], &[]) }, Some("mode")),
        (NetworkPolicy { mode: NetworkMode::AllowAll, ..custom(&[], &["203.0.113.0/24"]) }, Some("mode")),
        (with_transform(NetworkPolicy::deny_all(), "example.com"), Some("mode")),
        (but(NetworkPolicy::deny_all(), &["203.0.113.0/24"]), Some("mode")),
        (custom(&many, &[]), Some("allow_domains")),
        (custom(&[], &["10.0.0.0/8"]), Some("allow_cidrs")),
        (NetworkPolicy { mode: NetworkMode::AllowAll, ..custom(&[], &["10.0.0.0/8"]) }, Some("allow_cidrs")),
        (
            NetworkPolicy { mode: NetworkMode::AllowAll, ..custom(&["example.com"], &["10.0.0.0/8"]) },
            Some("mode"),
        ),
        (custom(&[], &["192.168.1.1"]), Some("allow_cidrs")),
        (custom(&[], &["169.254.169.254"]), Some("allow_cidrs")),
        (custom(&[], &["127.0.0.1"]), Some("allow_cidrs")),
        (custom(&[], &["100.64.0.0/10"]), Some("allow_cidrs")),
        (custom(&[], &["224.0.0.1"]), Some("allow_cidrs")),
        (custom(&[], &["fe80::/10"]), Some("allow_cidrs")),
        (custom(&[], &["fd00::/8"]), Some("allow_cidrs")),
        (custom(&[], &["::1"]), Some("allow_cidrs")),
        (header("Host", "v"), Some("transforms")),
        (header("content-length", "1"), Some("transforms")),
        (header("X Y", "v"), Some("transforms")),
        (header("", "v"), Some("transforms")),
        (header("X-Y", "a\r\nb"), Some("transforms")),
        (header("X-Y", &"a".repeat(9_000)), Some("transforms")),
        (twice, Some("transforms")),
        (headers, Some("transforms")),
        (limited(NetworkLimits { up_bytes_per_s: Some(1), ..none }), Some("limits")),
        (limited(NetworkLimits { connections: Some(0), ..none }), Some("limits")),
        (limited(NetworkLimits { bytes_per_destination: Some(1 << 63), ..none }), Some("limits")),
        (limited(NetworkLimits { bytes_per_destination: Some((1 << 63) - 1), ..none }), None),
        (header("X-Y", "v"), None),
        (custom(&[], &["0.0.0.0/0", "::/0"]), None),
        (but(NetworkPolicy::allow_all(), &["10.0.0.0/8"]), None),
        (custom(&[], &[]), None),
    ] {
        let found = check(&policy, &floor).err();
        assert_eq!(found.as_ref().map(|bad| bad.field), field, "{policy:?}");
    }
    assert_eq!(check(&custom(&[], &["10.0.0.0/8"]), &named), Ok(()));
    let beside = NetworkPolicy { mode: NetworkMode::AllowAll, ..custom(&[], &["10.0.0.0/8"]) };
    assert_eq!(check(&beside, &named), Ok(()));
    let refused = check(&custom(&[], &["10.0.0.0/8"]), &floor).unwrap_err();
    assert!(refused.hint.unwrap().contains("--egress-private named"), "{refused:?}");
    // Never, whatever the operator allows.
    for network in ["169.254.0.0/16", "127.0.0.0/8", "100.64.0.0/10", "168.63.129.16"] {
        assert!(check(&custom(&[], &[network]), &named).is_err(), "{network}");
    }
    assert!(check_layer(&with_transform(NetworkPolicy::allow_all(), "example.com"), &floor).is_err());
    assert!(check_layer(&NetworkPolicy { learn: true, ..NetworkPolicy::allow_all() }, &floor).is_err());
    assert_eq!(check_layer(&custom(&["example.com"], &[]), &floor), Ok(()));
}

#[test]
fn private_ranges_are_a_matter_of_the_tenant() {
    let opens = |private, is_first| OperatorFloors::new(private, None).of(is_first).private_when_named;
    for (private, first, others) in [
        (PrivateRanges::Never, false, false),
        (PrivateRanges::FirstTenant, true, false),
        (PrivateRanges::AllTenants, true, true),
    ] {
        assert_eq!((opens(private, true), opens(private, false)), (first, others), "{private:?}");
    }
    let narrow = OperatorFloors::new(PrivateRanges::default(), Some(NetworkPolicy::deny_all()));
    assert_eq!(narrow.of(true).policy, narrow.of(false).policy);
}

fn some_policy() -> impl Strategy<Value = NetworkPolicy> {
    const NETWORKS: [&str; 9] = [
        "0.0.0.0/0",
        "1.0.0.0/8",
        "1.1.1.1",
        "203.0.113.0/24",
        "203.0.113.0/25",
        "10.0.0.0/8",
        "192.168.0.0/24",
        "2606:4700::/32",
        "::/0",
    ];
    const PATTERNS: [&str; 6] =
        ["*", "example.com", "*.example.com", "api.example.com", "*.api.example.com", "example.org"];
    let some_of = |all: &'static [&'static str]| proptest::sample::subsequence(all, 0..=3.min(all.len()));
    let mode =
        prop_oneof![Just(NetworkMode::AllowAll), Just(NetworkMode::DenyAll), Just(NetworkMode::Custom)];
    (mode, some_of(&NETWORKS), some_of(&PATTERNS), some_of(&NETWORKS), proptest::option::of(1u32..50))
        .prop_map(|(mode, allow, names, deny, connections)| {
            let limits = NetworkLimits { connections, ..NetworkLimits::default() };
            let lists = match mode {
                NetworkMode::AllowAll => {
                    let private =
                        allow.iter().copied().filter(|text| text.starts_with("10.")).collect::<Vec<_>>();
                    but(NetworkPolicy { mode, ..custom(&[], &private) }, &deny)
                }
                NetworkMode::DenyAll => NetworkPolicy::deny_all(),
                NetworkMode::Custom => but(custom(&names, &allow), &deny),
            };
            NetworkPolicy { limits, ..lists }
        })
}

fn is_within(more: &Egress, fewer: &Egress) -> Result<(), TestCaseError> {
    let probes = ADDRESSES.iter().map(|text| text.parse::<Ipv4Addr>().unwrap());
    for address in probes {
        prop_assert!(!reaches(more, address) || reaches(fewer, address), "{address}");
        let opens =
            |egress: &Egress| egress.dns != Dns::Closed && egress.judge_address(address.into()).is_ok();
        prop_assert!(!opens(more) || opens(fewer), "a name opens {address}");
    }
    for name in NAMES {
        prop_assert!(!answers(more, name) || answers(fewer, name), "{name}");
    }
    prop_assert!(more.direct6.minus(&fewer.direct6).is_empty(), "IPv6");
    let most = |egress: &Egress| egress.limits.connections.unwrap_or(u32::MAX);
    prop_assert!(most(more) <= most(fewer));
    Ok(())
}

#[test]
fn a_rule_names_the_layer_above_that_decided() {
    let refused = |rule: &str| NameVerdict::Refused { rule: rule.to_owned() };
    let passes = |rule: &str| NameVerdict::Allowed { rule: rule.to_owned() };
    let above = TenantFloor { private_when_named: false, policy: Some(custom(&["*.example.com"], &[])) };
    let tenant = custom(&["api.example.com", "example.org"], &[]);
    let open = NetworkPolicy::allow_all();
    let egress = compile(&above, Some(&tenant), &open, &[]);
    assert_eq!(egress.judge("example.org"), refused("operator: not in allow_domains"));
    assert_eq!(egress.judge("b.example.com"), refused("tenant: not in allow_domains"));
    assert_eq!(egress.judge("api.example.com"), passes("tenant: allow_domains: api.example.com"));
    let own = compile(&above, Some(&tenant), &custom(&["api.example.com"], &[]), &[]);
    assert_eq!(own.judge("api.example.com"), passes("allow_domains: api.example.com"));
    let denied = compile(&TenantFloor::default(), Some(&NetworkPolicy::deny_all()), &open, &[]);
    assert_eq!(denied.no_name(), "tenant: no name is allowed");
    assert_eq!(
        compile(&TenantFloor::default(), None, &NetworkPolicy::deny_all(), &[]).no_name(),
        "no name is allowed"
    );
}

proptest! {
    #[test]
    fn more_layers_never_reach_more_than_fewer(
        sandbox in some_policy(),
        tenant in some_policy(),
        operator in some_policy(),
        private_when_named: bool,
    ) {
        let plain = TenantFloor { private_when_named, policy: None };
        let above = TenantFloor { private_when_named, policy: Some(operator) };
        let alone = compile(&plain, None, &sandbox, &[]);
        let two = compile(&plain, Some(&tenant), &sandbox, &[]);
        let other_two = compile(&above, None, &sandbox, &[]);
        let three = compile(&above, Some(&tenant), &sandbox, &[]);
        is_within(&two, &alone)?;
        is_within(&other_two, &alone)?;
        is_within(&three, &two)?;
        is_within(&three, &other_two)?;
    }

    #[test]
    fn nobody_reaches_the_host_other_sandboxes_or_metadata(
        sandbox in some_policy(),
        tenant in proptest::option::of(some_policy()),
        private_when_named: bool,
    ) {
        let floor = TenantFloor { private_when_named, policy: None };
        let egress = compile(&floor, tenant.as_ref(), &sandbox, &[]);
        for never in ["100.64.0.5", "127.0.0.1", "169.254.169.254", "168.63.129.16", "0.0.0.0", "255.255.255.255"] {
            let address: Ipv4Addr = never.parse().unwrap();
            prop_assert!(!reaches(&egress, address));
            prop_assert!(egress.dns == Dns::Closed || egress.judge_address(address.into()).is_err());
        }
        if !private_when_named {
            prop_assert!(!reaches(&egress, Ipv4Addr::new(10, 1, 2, 3)));
        }
    }
}

#[test]
fn secrets_open_no_name_and_all_that_name_a_host_are_replaced() {
    let secret = |placeholder: &str, hosts: &[&str]| Replacement {
        hosts: domains(hosts),
        placeholder: placeholder.to_owned(),
        value: "canary".to_owned(),
    };
    let policy = with_transform(custom(&["*.example.com"], &[]), "*.example.com");
    let mut egress = compile(&TenantFloor::default(), None, &policy, &opened(&policy));
    egress.replacements =
        vec![secret("a", &["api.example.com"]), secret("b", &["*.example.com", "example.org"])];
    let of = |name: &str| {
        let rewrite = egress.rewrite_for(name).unwrap_or_default();
        let placeholders: String = rewrite.replacements.iter().map(|one| one.placeholder.as_str()).collect();
        (rewrite.change.is_some(), placeholders)
    };
    assert_eq!(of("api.example.com"), (true, "ab".to_owned()));
    assert_eq!(of("other.example.com"), (true, "b".to_owned()));
    assert_eq!(of("example.net"), (false, String::new()));
    // The policy decides what is reachable.
    assert_eq!(verdict(egress.judge("example.org")), "refused, not in allow_domains");
    let mut open = Egress::open();
    assert!(!open.rewrites());
    open.replacements.clone_from(&egress.replacements);
    assert!(open.rewrites() && open.needs_gate());
    assert_eq!(verdict(open.judge("example.org")), "changed, secrets: example.org");
    assert_eq!(verdict(open.judge("example.net")), "passes, allow-all");
    assert!(!format!("{open:?} {:?}", egress.rewrite_for("api.example.com")).contains("canary"));
}

#[test]
fn through_a_proxy_only_ipv4_goes_and_what_is_denied_stays_denied() {
    let proxy = || EgressProxy { url: "http://u:canary@127.0.0.1:3128".parse().unwrap(), is_operators: true };
    let six = NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_cidrs: vec!["2001:db8:1::/48".parse().unwrap(), "203.0.113.0/24".parse().unwrap()],
        ..NetworkPolicy::default()
    };
    let direct = compile(&TenantFloor::default(), None, &six, &[]);
    let proxied = direct.clone().through(proxy());
    assert!(!direct.is_proxied() && proxied.is_proxied() && proxied.needs_gate());
    assert!(proxied.direct6.is_empty() && proxied.direct == direct.direct);
    let stand_in = ranges::stand_in("only.inside.test");
    assert!(ranges::is_stand_in(stand_in) && direct.judge_address(stand_in.into()).is_err());
    assert_eq!(proxied.judge_address(stand_in.into()), Ok(()));
    assert!(proxied.judge_address("10.0.0.1".parse().unwrap()).is_err(), "private stays private");
    assert!(!format!("{proxied:?}").contains("canary"));
    let closed = compile(&TenantFloor::default(), None, &NetworkPolicy::deny_all(), &[]).through(proxy());
    assert!(!closed.is_proxied(), "the kernel refuses everything without the gate");
}

#[test]
fn a_proxy_of_a_sandbox_is_an_address_and_belongs_to_no_layer() {
    let with = |address: &str, username: Option<&str>, password: Option<&str>| NetworkPolicy {
        egress_proxy: Some(crate::SandboxProxy {
            address: address.to_owned(),
            username: username.map(str::to_owned),
            password: password.map(|text| crate::HeaderText::Plain(text.to_owned())),
        }),
        ..NetworkPolicy::default()
    };
    let floor = TenantFloor::default();
    assert_eq!(check(&with("proxy.test:1080", Some("me"), Some("pw")), &floor), Ok(()));
    assert_eq!(check(&with("203.0.113.7:1080", None, None), &floor), Ok(()));
    for bad in [
        with("proxy.test", None, None),
        with("socks5://proxy.test:1080", None, None),
        with("me@proxy.test:1080", None, None),
        with("proxy.test:0", None, None),
        with("proxy.test:1080", None, Some("pw")),
        with("proxy.test:1080", Some(&"x".repeat(256)), None),
    ] {
        assert_eq!(check(&bad, &floor).unwrap_err().field, "egress_proxy");
    }
    assert!(check_layer(&with("proxy.test:1080", None, None), &floor).is_err());
}
