//! How to reach a database and how a session there is set up.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio_postgres::config::{ChannelBinding, SslNegotiation};

use crate::error::Error;
use crate::tls::{ALL_VERSIONS, Mode, ONLY_TLS12, ONLY_TLS13, Roots, Settings as Tls};

/// Everything that a [`Database`](crate::Database) needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The servers to try, in this order or a random one.
    pub(crate) hosts: Vec<Host>,
    pub(crate) load_balance: bool,
    /// The kinds of server to look for, one after the other.
    pub(crate) targets: &'static [Target],
    pub(crate) network: Network,
    pub(crate) tls: Tls,
    /// Whether libpq might encrypt with GSSAPI, which this client cannot.
    pub(crate) gss_encryption: bool,
    /// User, database and what else the server is told first.
    pub(crate) startup: tokio_postgres::Config,
    /// What a new session is told, in this order.
    pub session: Vec<Setting>,
    /// Whether named prepared statements may be used; off behind a transaction pooler.
    pub prepared_statements: bool,
    /// The most connections to hold.
    pub pool_size: usize,
    /// How long a call waits for a connection when all are busy.
    pub checkout_timeout: Duration,
}

/// One server.
#[derive(Clone)]
pub(crate) struct Host {
    /// Its name or address, or the folder of its socket; empty if only `address` was given.
    pub(crate) name: String,
    /// Where it is, if the name is not to be looked up.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Host {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, address, port) = (&self.name, &self.address, &self.port);
        write!(f, "Host({name:?}, {address:?}, {port})")
    }
}

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
}

/// How a socket behaves.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    /// For each address.
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) keepalive: Option<TcpKeepalive>,
    pub(crate) user_timeout: Option<Duration>,
}

/// A run-time parameter of the session, as `SET SESSION` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: SettingValue,
}

/// The value of a [`Setting`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// The server's default.
    Default,
    /// One value, to be quoted.
    Literal(String),
    /// A list written as SQL, such as a search path.
    List(String),
}

impl Config {
    /// Reads connection settings under their libpq names, as libpq has resolved them: nothing is looked up
    /// in the environment or the password file here. `passwords` holds one for each host, a line each, for
    /// hosts whose passwords differ.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a setting that this client cannot honour.
    pub fn from_keywords<'a>(
        keywords: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Config, Error> {
        let keywords = Keywords(keywords.into_iter().collect());
        keywords.refuse_unknown_needs()?;
        Ok(Config {
            hosts: keywords.hosts()?,
            load_balance: keywords.choice(
                "load_balance_hosts",
                &[("", false), ("disable", false), ("random", true)],
            )?,
            targets: keywords.choice("target_session_attrs", TARGETS)?,
            network: keywords.network()?,
            tls: keywords.tls()?,
            gss_encryption: keywords.get("gssencmode") == "prefer",
            startup: keywords.startup()?,
            session: Vec::new(),
            prepared_statements: true,
            pool_size: 4,
            checkout_timeout: Duration::from_secs(5),
        })
    }

    /// The statements that set up a session, as one text.
    pub(crate) fn session_sql(&self) -> String {
        self.session.iter().map(Setting::sql).collect()
    }
}

impl Setting {
    fn sql(&self) -> String {
        let value = match &self.value {
            SettingValue::Default => "DEFAULT".to_owned(),
            SettingValue::Literal(text) => format!("'{}'", text.replace('\'', "''")),
            SettingValue::List(list) => list.clone(),
        };
        format!("SET SESSION {} TO {value};\n", self.name)
    }
}

static TARGETS: &[(&str, &[Target])] = &[
    ("", &[Target::Any]),
    ("any", &[Target::Any]),
    ("read-write", &[Target::ReadWrite]),
    ("read-only", &[Target::ReadOnly]),
    ("primary", &[Target::Primary]),
    ("standby", &[Target::Standby]),
    ("prefer-standby", &[Target::Standby, Target::Any]),
];

/// libpq's keywords. An empty value is as good as none.
struct Keywords<'a>(HashMap<&'a str, &'a str>);

impl Keywords<'_> {
    fn get(&self, keyword: &str) -> &str {
        self.0.get(keyword).copied().unwrap_or_default()
    }

    fn unsupported<T>(&self, keyword: &str) -> Result<T, Error> {
        let value = self.get(keyword);
        Err(Error::Unsupported(format!(
            "the native client cannot honour {keyword}={value}"
        )))
    }

    fn choice<T: Copy>(&self, keyword: &str, choices: &[(&str, T)]) -> Result<T, Error> {
        let value = self.get(keyword);
        match choices.iter().find(|(name, _)| *name == value) {
            Some((_, choice)) => Ok(*choice),
            None => self.unsupported(keyword),
        }
    }

    /// A number; libpq reads zero and less as "not set".
    fn number(&self, keyword: &str) -> Result<Option<u32>, Error> {
        let value = self.get(keyword).trim();
        if value.is_empty() {
            return Ok(None);
        }
        match value.parse::<i32>() {
            Ok(number) => Ok(u32::try_from(number).ok().filter(|&number| number > 0)),
            Err(_) => self.unsupported(keyword),
        }
    }

    fn seconds(&self, keyword: &str) -> Result<Option<Duration>, Error> {
        let number = self.number(keyword)?;
        Ok(number.map(|seconds| Duration::from_secs(seconds.into())))
    }

    /// A list's parts for `count` hosts; a list of one is for all of them.
    fn list(&self, keyword: &str, separator: char, count: usize) -> Result<Vec<&str>, Error> {
        let parts: Vec<&str> = self.get(keyword).split(separator).collect();
        match parts.as_slice() {
            [one] => Ok(vec![one; count]),
            all if all.len() == count => Ok(parts),
            _ => self.unsupported(keyword),
        }
    }

    fn hosts(&self) -> Result<Vec<Host>, Error> {
        let commas = |keyword| self.get(keyword).matches(',').count();
        let count = 1 + commas("host").max(commas("hostaddr"));
        let names = self.list("host", ',', count)?;
        let addresses = self.list("hostaddr", ',', count)?;
        let ports = self.list("port", ',', count)?;
        let passwords = match self.get("password") {
            "" => self.list("passwords", '\n', count)?,
            password => vec![password; count],
        };
        (0..count)
            .map(|index| {
                let name = match (names[index], addresses[index]) {
                    ("", "") => "localhost",
                    (name, _) => name,
                };
                // A socket in the abstract namespace.
                if name.starts_with('@') {
                    return self.unsupported("host");
                }
                Ok(Host {
                    name: name.to_owned(),
                    address: self.parsed("hostaddr", addresses[index])?,
                    port: self.parsed("port", ports[index])?.unwrap_or(5432),
                    password: Some(passwords[index].to_owned()).filter(|text| !text.is_empty()),
                })
            })
            .collect()
    }

    fn parsed<T: FromStr>(&self, keyword: &str, text: &str) -> Result<Option<T>, Error> {
        match text {
            "" => Ok(None),
            _ => text
                .parse()
                .map(Some)
                .or_else(|_| self.unsupported(keyword)),
        }
    }

    fn network(&self) -> Result<Network, Error> {
        let mut keepalive = TcpKeepalive::new();
        if let Some(idle) = self.seconds("keepalives_idle")? {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = self.seconds("keepalives_interval")? {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(count) = self.number("keepalives_count")? {
            keepalive = keepalive.with_retries(count);
        }
        // Without a word libpq turns keepalives on.
        let wanted = self.get("keepalives").is_empty() || self.number("keepalives")?.is_some();
        let user_timeout = self.number("tcp_user_timeout")?;
        Ok(Network {
            // The pg gem, like libpq, waits two seconds at least.
            connect_timeout: self
                .seconds("connect_timeout")?
                .map(|limit| limit.max(Duration::from_secs(2))),
            keepalive: wanted.then_some(keepalive),
            user_timeout: user_timeout.map(|limit| Duration::from_millis(limit.into())),
        })
    }
    fn tls(&self) -> Result<Tls, Error> {
        let mode = self.choice(
            "sslmode",
            &[
                ("", Mode::Prefer),
                ("disable", Mode::Disable),
                ("allow", Mode::Allow),
                ("prefer", Mode::Prefer),
                ("require", Mode::Require),
                ("verify-ca", Mode::VerifyCa),
                ("verify-full", Mode::VerifyFull),
            ],
        )?;
        let file = |keyword| Some(self.get(keyword)).filter(|path| !path.is_empty());
        let roots = match self.get("sslrootcert") {
            "system" if mode != Mode::VerifyFull => return self.unsupported("sslmode"),
            "system" => Some(Roots::System),
            _ => file("sslrootcert").map(|path| Roots::File(path.into())),
        };
        // An address alone has no name that a certificate could be compared with.
        if mode == Mode::VerifyFull && self.hosts()?.iter().any(|host| host.name.is_empty()) {
            return self.unsupported("sslmode");
        }
        let direct = self.get("sslnegotiation") == "direct";
        if direct && mode < Mode::Require {
            return self.unsupported("sslnegotiation");
        }
        let certificate = match self.get("sslcertmode") {
            "" | "allow" => file("sslcert"),
            "disable" => None,
            _ => return self.unsupported("sslcertmode"),
        };
        Ok(Tls {
            mode,
            roots,
            revoked: file("sslcrl").map(Into::into),
            certificate: certificate.map(Into::into),
            key: file("sslkey").map(Into::into),
            server_name: self.get("sslsni") != "0",
            direct,
            versions: self.versions()?,
        })
    }

    fn versions(&self) -> Result<&'static [&'static rustls::SupportedProtocolVersion], Error> {
        let lowest = self.get("ssl_min_protocol_version").to_lowercase();
        let highest = self.get("ssl_max_protocol_version").to_lowercase();
        match (lowest.as_str(), highest.as_str()) {
            (_, "tlsv1" | "tlsv1.1") => self.unsupported("ssl_max_protocol_version"),
            ("" | "tlsv1" | "tlsv1.1" | "tlsv1.2", "" | "tlsv1.3") => Ok(ALL_VERSIONS),
            ("" | "tlsv1" | "tlsv1.1" | "tlsv1.2", "tlsv1.2") => Ok(ONLY_TLS12),
            ("tlsv1.3", "" | "tlsv1.3") => Ok(ONLY_TLS13),
            _ => self.unsupported("ssl_min_protocol_version"),
        }
    }

    fn startup(&self) -> Result<tokio_postgres::Config, Error> {
        let mut startup = tokio_postgres::Config::new();
        startup.user(self.get("user")).dbname(self.get("dbname"));
        if !self.get("options").is_empty() {
            startup.options(self.get("options"));
        }
        for keyword in ["fallback_application_name", "application_name"] {
            if !self.get(keyword).is_empty() {
                startup.application_name(self.get(keyword));
            }
        }
        startup.channel_binding(self.choice(
            "channel_binding",
            &[
                ("", ChannelBinding::Prefer),
                ("disable", ChannelBinding::Disable),
                ("prefer", ChannelBinding::Prefer),
                ("require", ChannelBinding::Require),
            ],
        )?);
        if self.get("sslnegotiation") == "direct" {
            startup.ssl_negotiation(SslNegotiation::Direct);
        }
        Ok(startup)
    }

    /// What matters, and what this client has nothing like.
    fn refuse_unknown_needs(&self) -> Result<(), Error> {
        if self.get("gssencmode") == "require" {
            return self.unsupported("gssencmode");
        }
        if !matches!(self.get("replication"), "" | "0" | "false" | "off" | "no") {
            return self.unsupported("replication");
        }
        for keyword in [
            "min_protocol_version",
            "require_auth",
            "requirepeer",
            "scram_client_key",
            "scram_server_key",
            "sslcrldir",
        ] {
            if !self.get(keyword).is_empty() {
                return self.unsupported(keyword);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(keywords: &[(&str, &str)]) -> Config {
        Config::from_keywords(keywords.iter().copied()).unwrap()
    }

    #[test]
    fn refuses_what_it_cannot_honour() {
        for (keyword, value) in [
            ("sslmode", "sometimes"),
            ("sslrootcert", "system"),
            ("sslnegotiation", "direct"),
            ("sslcertmode", "require"),
            ("ssl_max_protocol_version", "TLSv1.1"),
            ("sslcrldir", "/crl"),
            ("gssencmode", "require"),
            ("requirepeer", "postgres"),
            ("require_auth", "scram-sha-256"),
            ("target_session_attrs", "any-other"),
            ("host", "@abstract"),
            ("hostaddr", "db.example"),
            ("port", "many"),
            ("port", "1,2"),
            ("connect_timeout", "soon"),
        ] {
            let refused = Config::from_keywords([(keyword, value)]);
            assert!(
                matches!(refused, Err(Error::Unsupported(_))),
                "{keyword}={value}"
            );
        }
    }

    #[test]
    fn reads_a_list_of_hosts() {
        let config = config(&[
            ("host", "a,/run,"),
            ("hostaddr", ",,10.0.0.1"),
            ("port", "1,,3"),
            ("passwords", "x\n\nz"),
        ]);
        let hosts: Vec<_> = config
            .hosts
            .iter()
            .map(|host| {
                (
                    host.name.as_str(),
                    host.address,
                    host.port,
                    host.password.as_deref(),
                )
            })
            .collect();
        let address = "10.0.0.1".parse().ok();
        assert_eq!(
            hosts,
            [
                ("a", None, 1, Some("x")),
                ("/run", None, 5432, None),
                ("", address, 3, Some("z"))
            ]
        );
    }

    #[test]
    fn gives_all_hosts_one_port_and_password() {
        let config = config(&[("host", "a,b"), ("port", "6000"), ("password", "x")]);
        for host in &config.hosts {
            assert_eq!((host.port, host.password.as_deref()), (6000, Some("x")));
        }
    }

    #[test]
    fn times_mean_what_they_mean_to_libpq() {
        let network = config(&[("connect_timeout", "1"), ("tcp_user_timeout", "0")]).network;
        assert_eq!(network.connect_timeout, Some(Duration::from_secs(2)));
        assert_eq!(network.user_timeout, None);
        assert!(network.keepalive.is_some());
        let network = config(&[("connect_timeout", "-1"), ("keepalives", "0")]).network;
        assert_eq!(network.connect_timeout, None);
        assert!(network.keepalive.is_none());
    }

    #[test]
    fn quotes_session_settings() {
        let mut config = config(&[]);
        config.session = vec![
            Setting {
                name: "timezone".to_owned(),
                value: SettingValue::Literal("it's".to_owned()),
            },
            Setting {
                name: "search_path".to_owned(),
                value: SettingValue::List("a, b".to_owned()),
            },
            Setting {
                name: "work_mem".to_owned(),
                value: SettingValue::Default,
            },
        ];
        assert_eq!(
            config.session_sql(),
            "SET SESSION timezone TO 'it''s';\nSET SESSION search_path TO a, b;\n\
             SET SESSION work_mem TO DEFAULT;\n"
        );
    }

    #[test]
    fn shows_no_password() {
        for keyword in ["password", "passwords"] {
            let config = config(&[("host", "db.example"), (keyword, "secret")]);
            assert!(!format!("{config:?}").contains("secret"));
        }
    }
}
