//! The limit that `bin/bench --streamer` holds the streamers against: the same frames, written to the same sockets one
//! after the other, with nothing around it: no seats, no registry, no deadlines.
//!
//! `sse_limit` prints the port that it accepts connections on and answers requests, a line each, with numbers.
//! `bench/streamer/web_process.rb` answers the same for Ruby and describes them.

use std::error::Error;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use socket2::{Domain, Socket, Type};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Connections = Arc<Mutex<Vec<TcpStream>>>;

const BACKLOG: i32 = 4_096;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 2000\n\n";
const CONNECTED: &[u8] =
    b"event: pgbus:connected\ndata: {\"connectionId\":\"0000000000000000\"}\n\n";
const HEARTBEAT: &[u8] = b": heartbeat\n\n";
/// Of a broadcast.
const BYTES: usize = 100;

fn main() -> Outcome<()> {
    let listener = listen()?;
    println!("{}", listener.local_addr()?.port());
    let connections = Connections::default();
    let accepted = Arc::clone(&connections);
    thread::spawn(move || accept_all(&listener, &accepted));
    for line in io::stdin().lines() {
        let text = match answer(&line?, &connections) {
            Ok(number) => number.to_string(),
            Err(error) => format!("error {error}"),
        };
        writeln!(io::stdout(), "{text}")?;
    }
    Ok(())
}

/// What is accepted has no delay, either.
fn listen() -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Until one fails, which those who wait for their frames notice.
fn accept_all(listener: &TcpListener, connections: &Connections) -> io::Result<()> {
    loop {
        let (mut connection, _) = listener.accept()?;
        connection.write_all(HEAD)?;
        connection.write_all(CONNECTED)?;
        let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.push(connection);
    }
}

fn answer(request: &str, connections: &Connections) -> Outcome<u64> {
    let connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
    match request {
        "broadcast" => {
            let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
            let text = "x".repeat(BYTES);
            let frame = format!(
                "event: turbo-stream\ndata: <turbo-stream at=\"{at}\">{text}</turbo-stream>\n\n"
            );
            write_to_all(&connections, frame.as_bytes())?;
            Ok(1)
        }
        // What a heartbeat of all takes of the processors, in nanoseconds.
        "heartbeat" => {
            let before = used()?;
            write_to_all(&connections, HEARTBEAT)?;
            Ok(used()?.saturating_sub(before))
        }
        _ => Err(format!("unknown request: {request}").into()),
    }
}

fn write_to_all(connections: &[TcpStream], frame: &[u8]) -> io::Result<()> {
    for mut connection in connections {
        connection.write_all(frame)?;
    }
    Ok(())
}

fn used() -> Outcome<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is what the call fills in, and outlives it.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}
