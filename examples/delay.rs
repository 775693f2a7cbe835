//! A network that takes its time, for `bin/bench`: a TCP proxy that delays what it forwards, each direction
//! by itself.
//!
//! `delay HOST PORT MICROSECONDS` prints the port that it listens on and ends when its standard input does.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What was read, and when it is due at the other end. Nothing at all is the end of the stream.
type Parcel = (Instant, Vec<u8>);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, microseconds] = arguments.as_slice() else {
        return Err("usage: delay HOST PORT MICROSECONDS".into());
    };
    let server = format!("{host}:{port}");
    let delay = Duration::from_micros(microseconds.parse()?);
    wake_on_time();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(0);
    });
    for client in listener.incoming() {
        forward(client?, TcpStream::connect(&server)?, delay)?;
    }
    Ok(())
}

/// By default Linux lets a sleeper wake up to 50 µs late, a tenth of the delay. Threads inherit this.
fn wake_on_time() {
    #[cfg(target_os = "linux")]
    // SAFETY: no pointers are passed. If it fails, sleeps are less exact.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64);
    }
}

fn forward(client: TcpStream, server: TcpStream, delay: Duration) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    one_way(client.try_clone()?, server.try_clone()?, delay);
    one_way(server, client, delay);
    Ok(())
}

/// Reads on one thread and writes on another, so that what comes while a parcel waits is not delayed twice.
fn one_way(from: TcpStream, to: TcpStream, delay: Duration) {
    let (parcels, due) = channel();
    thread::spawn(move || read(from, &parcels, delay));
    thread::spawn(move || write(to, &due));
}

fn read(mut from: TcpStream, parcels: &Sender<Parcel>, delay: Duration) {
    let mut buffer = vec![0; 65_536];
    loop {
        // A reset is passed on as an end.
        let length = from.read(&mut buffer).unwrap_or(0);
        let bytes = buffer.get(..length).unwrap_or_default().to_vec();
        if parcels.send((Instant::now() + delay, bytes)).is_err() || length == 0 {
            return;
        }
    }
}

fn write(mut to: TcpStream, due: &Receiver<Parcel>) {
    for (time, bytes) in due {
        thread::sleep(time.saturating_duration_since(Instant::now()));
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
