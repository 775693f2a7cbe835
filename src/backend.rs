//! The server's process behind a session. When the connection breaks, it may still be about to run what it was sent.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};

use crate::connect::UntilHungUp;
use crate::statements;

/// What tells a process from all others, on this server and on any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    process: i32,
    started: String,
}

impl Backend {
    /// The process that the answer to [`statements::OWN_BACKEND`] names; `None` behind a pooler, which gives its
    /// clients process ids of its own, since there the process serves others as well.
    pub(crate) async fn from_answer(
        answer: &[SimpleQueryMessage],
        token: &CancelToken,
    ) -> Option<Backend> {
        let row = answer.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })?;
        let process = row.try_get(0).ok()??.parse().ok()?;
        let started = row.try_get(1).ok()??.to_owned();
        let told = process_told_to_client(token).await?;
        (told == process).then_some(Backend { process, started })
    }

    /// Ends the process, over another session, and returns when it is gone. It may have ended long ago.
    ///
    /// # Errors
    ///
    /// If the server refuses that.
    pub(crate) async fn end(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        const PAUSE: Duration = Duration::from_millis(2);
        let statement = statements::end_backend(self.process, &self.started);
        loop {
            let answer = client.simple_query(&statement).await?;
            let is_there =
                |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(_));
            if !answer.iter().any(is_there) {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }
}

/// The process id that the server, or a pooler, gave the client for its cancel requests. Only such a request shows
/// it, so one is written to nobody.
async fn process_told_to_client(token: &CancelToken) -> Option<i32> {
    const TLS_REQUEST: [u8; 4] = 80_877_103_i32.to_be_bytes();
    let (near, mut far) = duplex(64);
    // It hangs up when it has read.
    let read = async move {
        let mut head = [0; 8];
        far.read_exact(&mut head).await.ok()?;
        if head.ends_with(&TLS_REQUEST) {
            far.write_all(b"S").await.ok()?;
            far.read_exact(&mut head).await.ok()?;
        }
        far.read_i32().await.ok()
    };
    let (_, process) = tokio::join!(token.cancel_query_raw(near, Untouched), read);
    process
}

/// TLS that encrypts nothing.
struct Untouched;

impl TlsConnect<DuplexStream> for Untouched {
    type Stream = UntilHungUp<DuplexStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Stream>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        std::future::ready(Ok(UntilHungUp(stream)))
    }
}

impl TlsStream for UntilHungUp<DuplexStream> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
