//! Hearing what other processes broadcast.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use super::message::Assembly;
use super::{Command, Level, Shared};
use crate::config::Config;
use crate::connect::{Connected, connect};
use crate::statements;

/// Between attempts to connect: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];
/// How often the server is asked whether it is still there, and how long it may take to say so.
const CHECK: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(10)];

/// Listens for as long as the hub lives; a lost connection is made again. Blocks the thread.
pub(super) fn listen(shared: &Arc<Shared>, config: &Config) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return shared.log(Level::Warn, lost(&error.to_string())),
    };
    runtime.block_on(async {
        tokio::select! {
            () = shared.ended.notified() => {}
            () = hear_again_and_again(shared, config) => {}
        }
    });
    runtime.shutdown_background();
}

async fn hear_again_and_again(shared: &Shared, config: &Config) {
    let mut pause = PAUSE[0];
    let mut told = false;
    loop {
        let reason = match connect(config).await {
            Ok(connected) => match hear(shared, connected, &mut told).await {
                Ok(()) => {
                    pause = PAUSE[0];
                    "the server closed the connection".to_owned()
                }
                Err(reason) => reason,
            },
            Err(error) => error.to_string(),
        };
        shared.command(Command::Heard);
        if !std::mem::replace(&mut told, true) {
            shared.log(Level::Warn, lost(&reason));
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE[1]);
    }
}

fn lost(reason: &str) -> String {
    let reason = reason.trim_end();
    format!("broadcasts of other processes do not arrive, until there is a connection: {reason}")
}

/// Hears until the connection is lost.
async fn hear(shared: &Shared, connected: Connected, told: &mut bool) -> Result<(), String> {
    let Connected {
        client,
        mut notifications,
        ..
    } = connected;
    timeout(CHECK[1], client.batch_execute(statements::LISTEN))
        .await
        .map_err(|_| "the server does not answer".to_owned())?
        .map_err(|error| error.to_string())?;
    if std::mem::take(told) {
        let text = "broadcasts of other processes arrive again".to_owned();
        shared.log(Level::Info, text);
    }
    shared.command(Command::Heard);
    let mut assembly = Assembly::default();
    loop {
        match timeout(CHECK[0], notifications.recv()).await {
            Ok(Some(notification)) => {
                if let Some(broadcast) = assembly.add(notification.payload(), &shared.name) {
                    shared.broadcast(broadcast);
                }
            }
            Ok(None) => return Ok(()),
            Err(_quiet) if is_there(&client).await => {}
            Err(_quiet) => return Ok(()),
        }
    }
}

async fn is_there(client: &Client) -> bool {
    matches!(
        timeout(CHECK[1], client.batch_execute("")).await,
        Ok(Ok(()))
    )
}
