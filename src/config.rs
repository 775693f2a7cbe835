//! How to reach a database and how a session there is set up.

use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use crate::error::Error;

/// Everything that a [`Database`](crate::Database) needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) connection: tokio_postgres::Config,
    /// What a new session is told, in this order.
    pub session: Vec<Setting>,
    /// Whether named prepared statements may be used; off behind a transaction pooler.
    pub prepared_statements: bool,
    /// The most connections to hold.
    pub pool_size: usize,
    /// How long a call waits for a connection when all are busy.
    pub checkout_timeout: Duration,
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
    /// in the environment or in files here. Passwords may be given for several hosts only if they are equal.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a setting that this client cannot honour.
    pub fn from_keywords<'a>(
        keywords: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Config, Error> {
        let mut connection = tokio_postgres::Config::new();
        // libpq turns keepalives on; their intervals are the system's unless given.
        connection.keepalives(true);
        let mut fallback_name = None;
        for (keyword, value) in keywords {
            apply(&mut connection, keyword, value)?;
            if keyword == "fallback_application_name" {
                fallback_name = Some(value);
            }
        }
        if let (None, Some(name)) = (connection.get_application_name(), fallback_name) {
            connection.application_name(name);
        }
        Ok(Config {
            connection,
            session: Vec::new(),
            prepared_statements: true,
            pool_size: 4,
            checkout_timeout: Duration::from_secs(5),
        })
    }

    /// Where the connection goes, for messages: never a password.
    pub(crate) fn server(&self) -> String {
        let hosts: Vec<String> = self
            .connection
            .get_hosts()
            .iter()
            .map(|host| match host {
                tokio_postgres::config::Host::Tcp(name) => name.clone(),
                tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        let ports: Vec<String> = self
            .connection
            .get_ports()
            .iter()
            .map(u16::to_string)
            .collect();
        format!(
            "server at \"{}\", port {}",
            hosts.join(","),
            ports.join(",")
        )
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

fn apply(connection: &mut tokio_postgres::Config, keyword: &str, value: &str) -> Result<(), Error> {
    let unsupported = || {
        Err(Error::Unsupported(format!(
            "the native client has no {keyword}={value}"
        )))
    };
    match keyword {
        "host" => {
            for host in value.split(',') {
                connection.host(host);
            }
        }
        "hostaddr" => {
            for address in value.split(',') {
                match address.parse() {
                    Ok(address) => connection.hostaddr(address),
                    Err(_) => return unsupported(),
                };
            }
        }
        "port" => {
            for port in value.split(',') {
                match port.parse() {
                    Ok(port) => connection.port(port),
                    Err(_) => return unsupported(),
                };
            }
        }
        "user" => {
            connection.user(value);
        }
        "password" => {
            connection.password(value);
        }
        "dbname" => {
            connection.dbname(value);
        }
        "options" => {
            connection.options(value);
        }
        "application_name" => {
            connection.application_name(value);
        }
        "connect_timeout" => {
            if let Some(timeout) = seconds(value) {
                connection.connect_timeout(timeout);
            }
        }
        "keepalives" => {
            connection.keepalives(value != "0");
        }
        "keepalives_idle" => {
            if let Some(idle) = seconds(value) {
                connection.keepalives_idle(idle);
            }
        }
        "keepalives_interval" => {
            if let Some(interval) = seconds(value) {
                connection.keepalives_interval(interval);
            }
        }
        "keepalives_count" => {
            if let Some(count) = value.parse().ok().filter(|&count| count > 0) {
                connection.keepalives_retries(count);
            }
        }
        "tcp_user_timeout" => {
            if let Some(timeout) = value.parse().ok().filter(|&milliseconds| milliseconds > 0) {
                connection.tcp_user_timeout(Duration::from_millis(timeout));
            }
        }
        "target_session_attrs" => {
            connection.target_session_attrs(match value {
                "any" => TargetSessionAttrs::Any,
                "read-write" => TargetSessionAttrs::ReadWrite,
                "read-only" => TargetSessionAttrs::ReadOnly,
                _ => return unsupported(),
            });
        }
        "load_balance_hosts" => {
            connection.load_balance_hosts(match value {
                "random" => LoadBalanceHosts::Random,
                _ => LoadBalanceHosts::Disable,
            });
        }
        "channel_binding" => {
            connection.channel_binding(match value {
                "disable" => ChannelBinding::Disable,
                "require" => return unsupported(),
                _ => ChannelBinding::Prefer,
            });
        }
        "sslmode" => {
            // Encryption that is asked for must not be dropped silently; "prefer" and "allow" permit a
            // plain connection.
            if !matches!(value, "disable" | "allow" | "prefer") {
                return unsupported();
            }
            connection.ssl_mode(SslMode::Disable);
        }
        "gssencmode" if value == "require" => return unsupported(),
        "require_auth" | "requirepeer" if !value.is_empty() => return unsupported(),
        "replication" if !matches!(value, "" | "0" | "false" | "off" | "no") => {
            return unsupported();
        }
        // The rest concerns libpq itself (files that it has read already, tracing) or encryption that the
        // modes above do not use.
        _ => {}
    }
    Ok(())
}

/// A number of seconds; libpq reads zero and less as "not set".
fn seconds(value: &str) -> Option<Duration> {
    let seconds: u64 = value.trim().parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_it_cannot_honour() {
        for (keyword, value) in [
            ("sslmode", "verify-full"),
            ("gssencmode", "require"),
            ("target_session_attrs", "prefer-standby"),
            ("port", "many"),
        ] {
            assert!(matches!(
                Config::from_keywords([(keyword, value)]),
                Err(Error::Unsupported(_))
            ));
        }
    }

    #[test]
    fn quotes_session_settings() {
        let mut config = Config::from_keywords([]).unwrap();
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
        let config = Config::from_keywords([
            ("host", "db.example"),
            ("port", "5433"),
            ("password", "secret"),
        ])
        .unwrap();
        assert_eq!(config.server(), "server at \"db.example\", port 5433");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
