//! The server that the tests run against, named by `DATABASE_URL`.

use pgbus_native_core::Config;
use tokio_postgres::config::Host;

/// The server, for connections of the test's own.
pub fn server() -> tokio_postgres::Config {
    std::env::var("DATABASE_URL")
        .expect("DATABASE_URL names no server: run `bin/env cargo test`")
        .parse()
        .unwrap()
}

/// The same, as the core is told of it.
pub fn config() -> Config {
    let server = server();
    let mut keywords = vec![(
        "dbname",
        server.get_dbname().unwrap_or("postgres").to_owned(),
    )];
    for host in server.get_hosts() {
        let name = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        keywords.push(("host", name));
    }
    keywords.extend(
        server
            .get_ports()
            .iter()
            .map(|port| ("port", port.to_string())),
    );
    keywords.extend(server.get_user().map(|user| ("user", user.to_owned())));
    keywords.extend(
        server
            .get_password()
            .map(|password| ("password", String::from_utf8_lossy(password).into_owned())),
    );
    Config::from_keywords(keywords.iter().map(|(k, v)| (*k, v.as_str()))).unwrap()
}
