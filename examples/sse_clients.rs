//! The clients of `bin/bench --streamer`: any number of SSE connections, held by one process of their own.
//!
//! `sse_clients PORT` answers requests, a line each, with numbers; times are in nanoseconds. Each socket has the kernel
//! note when bytes arrive, so it does not matter when this process reads them.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io::{self, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::Interest;
use tokio::net::TcpSocket;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// As many wait to be accepted at once. More than a listener's queue has room for would be tried again only after a
/// second, by the kernel.
const WAITING: usize = 2_000;
/// Of a client that does not read: bytes that the kernel takes for it.
const SMALL_BUFFER: u32 = 4_096;
/// A request that takes longer has gone wrong.
const PATIENCE: Duration = Duration::from_secs(200);
/// How often it is looked whether what a request waits for has come. No figure depends on it.
const LOOK: Duration = Duration::from_millis(2);
/// What is left for a client that did not read is read within this time, if an end follows it.
const DRAINING: Duration = Duration::from_secs(5);

/// What one connection has seen so far.
#[derive(Default)]
struct Client {
    reads: bool,
    /// When the `pgbus:connected` frame came; 0 if it has not yet.
    connected: Cell<u64>,
    ended: Cell<bool>,
    heartbeats: Cell<u64>,
    /// When the last one came.
    heartbeat: Cell<u64>,
    longest_gap: Cell<u64>,
    broadcasts: Cell<u64>,
    /// How long the last one was on its way.
    latency: Cell<u64>,
    slowest: Cell<u64>,
}

struct Clients {
    address: SocketAddr,
    all: RefCell<Vec<Rc<Client>>>,
    /// Those who do not read, read what is left.
    drain: Rc<Notify>,
}

fn main() -> Outcome<()> {
    let port = std::env::args().nth(1).ok_or("usage: sse_clients PORT")?;
    let clients = Clients {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?)),
        all: RefCell::default(),
        drain: Rc::default(),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, clients.serve(requests()))
}

/// Standard input is read on a thread of its own: here connections have to be served meanwhile.
fn requests() -> UnboundedReceiver<String> {
    let (lines, receiver) = unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Clients {
    async fn serve(self, mut requests: UnboundedReceiver<String>) -> Outcome<()> {
        while let Some(line) = requests.recv().await {
            let words: Vec<&str> = line.split_whitespace().collect();
            let text = match self.answer(&words).await {
                Ok(numbers) => {
                    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                    numbers.join(" ")
                }
                Err(error) => format!("error {error}"),
            };
            writeln!(io::stdout(), "{text}")?;
        }
        Ok(())
    }

    async fn answer(&self, words: &[&str]) -> Outcome<Vec<u64>> {
        match words {
            // So many more clients, each SLOWth of which will not read (0 for none): from the first attempt until the
            // last has its `pgbus:connected` frame.
            ["connect", count, slow] => self.connect(count.parse()?, slow.parse()?).await,
            // Until each has so many broadcasts: how long the last of them was on its way to the last client.
            ["broadcasts", count] => {
                let count = count.parse()?;
                self.wait("broadcast", |client| client.broadcasts.get() >= count)
                    .await?;
                Ok(vec![self.highest(|client| client.latency.get())])
            }
            // Until each has another heartbeat than now.
            ["beat"] => {
                for client in self.all.borrow().iter() {
                    client.heartbeat.set(0);
                }
                self.wait("heartbeat", |client| client.heartbeat.get() > 0)
                    .await?;
                Ok(vec![0])
            }
            // For so many milliseconds from now on nobody reads, and the sockets keep what comes. Otherwise whoever writes
            // would wake this process up each time, and share the processors with it.
            ["look_away", milliseconds] => {
                let time = Duration::from_millis(milliseconds.parse()?);
                spawn_local(async move { thread::sleep(time) });
                Ok(vec![0])
            }
            // Heartbeats so far, of all together.
            ["heartbeats"] => Ok(vec![
                self.all.borrow().iter().map(|c| c.heartbeats.get()).sum(),
            ]),
            // What came is forgotten; gaps between heartbeats are measured from now on.
            ["reset"] => {
                let now = now();
                for client in self.all.borrow().iter() {
                    client.heartbeat.set(now);
                    client.longest_gap.set(0);
                    client.broadcasts.set(0);
                    client.slowest.set(0);
                }
                Ok(vec![0])
            }
            ["verdict", gap, latency, broadcasts] => {
                self.verdict(gap.parse()?, latency.parse()?, broadcasts.parse()?)
                    .await
            }
            _ => Err(format!("unknown request: {}", words.join(" ")).into()),
        }
    }

    async fn connect(&self, count: usize, slow: usize) -> Outcome<Vec<u64>> {
        let waiting = Arc::new(Semaphore::new(WAITING));
        let started = now();
        for number in 1..=count {
            let place = Arc::clone(&waiting).acquire_owned().await?;
            let client = Rc::new(Client {
                reads: slow == 0 || number % slow != 0,
                ..Client::default()
            });
            self.all.borrow_mut().push(Rc::clone(&client));
            spawn_local(follow(self.address, client, place, Rc::clone(&self.drain)));
        }
        self.wait_of_all("pgbus:connected", |client| client.connected.get() > 0)
            .await?;
        Ok(vec![
            self.highest(|client| client.connected.get())
                .saturating_sub(started),
        ])
    }

    /// How many read; how many of them were late, which is a longer gap between heartbeats, a slower broadcast or a
    /// missing one, and how many were lost; how many did not read, and how many of those were cut off. Of those who
    /// read: the longest gap, the slowest broadcast of those that came, and how many broadcasts did not.
    async fn verdict(&self, gap: u64, latency: u64, broadcasts: u64) -> Outcome<Vec<u64>> {
        let now = now();
        let all: Vec<Rc<Client>> = self.all.borrow().clone();
        let (readers, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|client| client.reads);
        for client in &readers {
            client.note_gap(now);
        }
        let late = readers.iter().filter(|client| {
            client.longest_gap.get() > gap
                || client.slowest.get() > latency
                || client.broadcasts.get() < broadcasts
        });
        let late = number(late.count());
        let lost = number(readers.iter().filter(|client| client.ended.get()).count());
        let longest = readers.iter().map(|client| client.longest_gap.get()).max();
        let slowest = readers.iter().map(|client| client.slowest.get()).max();
        let missing = readers
            .iter()
            .map(|client| broadcasts.saturating_sub(client.broadcasts.get()))
            .sum();
        self.drain.notify_waiters();
        let deadline = Instant::now() + DRAINING;
        while Instant::now() < deadline && !others.iter().all(|client| client.ended.get()) {
            sleep(LOOK).await;
        }
        let cut = others.iter().filter(|client| client.ended.get()).count();
        Ok(vec![
            number(readers.len()),
            late,
            lost,
            number(others.len()),
            number(cut),
            longest.unwrap_or(0),
            slowest.unwrap_or(0),
            missing,
        ])
    }

    async fn wait(&self, what: &str, has_it: impl Fn(&Client) -> bool) -> Outcome<()> {
        self.wait_of_all(what, |client| !client.reads || has_it(client))
            .await
    }

    async fn wait_of_all(&self, what: &str, has_it: impl Fn(&Client) -> bool) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let without = self.how_many(|client| !has_it(client));
            if without == 0 {
                return Ok(());
            }
            let ended = self.how_many(|client| client.ended.get());
            if ended > 0 || Instant::now() > deadline {
                let message = format!("{what}: {without} clients have none, {ended} have ended");
                return Err(message.into());
            }
            sleep(LOOK).await;
        }
    }

    fn how_many(&self, condition: impl Fn(&Client) -> bool) -> usize {
        let all = self.all.borrow();
        all.iter().filter(|client| condition(client)).count()
    }

    /// Of those who read.
    fn highest(&self, figure: impl Fn(&Client) -> u64) -> u64 {
        let all = self.all.borrow();
        let readers = all.iter().filter(|client| client.reads);
        readers.map(|client| figure(client)).max().unwrap_or(0)
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// One client from its first attempt until its connection has ended.
async fn follow(
    address: SocketAddr,
    client: Rc<Client>,
    place: OwnedSemaphorePermit,
    drain: Rc<Notify>,
) {
    // Refused, reset or closed: it has ended, and whoever waits for it says so.
    let _ = read(address, &client, place, &drain).await;
    client.ended.set(true);
}

async fn read(
    address: SocketAddr,
    client: &Client,
    place: OwnedSemaphorePermit,
    drain: &Notify,
) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    if !client.reads {
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
    }
    note_arrivals(socket.as_raw_fd())?;
    let stream = socket.connect(address).await?;
    let mut place = Some(place);
    let mut unfinished = Vec::new();
    let mut stopped = false;
    loop {
        if !client.reads && !stopped && client.connected.get() > 0 {
            drain.notified().await;
            stopped = true;
        }
        let arrived = stream
            .async_io(Interest::READABLE, || {
                receive(stream.as_raw_fd(), &mut unfinished)
            })
            .await?;
        let Some(at) = arrived else { return Ok(()) };
        place.take(); // accepted, since something has been said
        for_each_frame(&mut unfinished, |frame| client.note(frame, at));
    }
}

impl Client {
    fn note(&self, frame: &[u8], at: u64) {
        if frame.starts_with(b": heartbeat") {
            self.note_gap(at);
            self.heartbeats.set(self.heartbeats.get() + 1);
            self.heartbeat.set(at);
        } else if frame.starts_with(b"event: turbo-stream") || frame.starts_with(b"id: ") {
            // What pgbus writes has an id before it.
            let latency = at.saturating_sub(sent_at(frame));
            self.broadcasts.set(self.broadcasts.get() + 1);
            self.latency.set(latency);
            self.slowest.set(self.slowest.get().max(latency));
        } else if frame.starts_with(b"event: pgbus:connected") {
            self.connected.set(at);
        }
    }

    fn note_gap(&self, until: u64) {
        let since = self.heartbeat.get();
        if since > 0 {
            let gap = until.saturating_sub(since);
            self.longest_gap.set(self.longest_gap.get().max(gap));
        }
    }
}

/// Passes on each frame that is complete, without the head of the response before the first one.
fn for_each_frame(unfinished: &mut Vec<u8>, mut act: impl FnMut(&[u8])) {
    let mut rest = unfinished.as_slice();
    while let Some((frame, others)) = split(rest, b"\n\n") {
        act(split(frame, b"\r\n\r\n").map_or(frame, |(_head, frame)| frame));
        rest = others;
    }
    let done = unfinished.len() - rest.len();
    unfinished.drain(..done);
}

fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes
        .windows(separator.len())
        .position(|window| window == separator)?;
    Some((bytes.get(..at)?, bytes.get(at + separator.len()..)?))
}

/// A broadcast says when it was sent: `at="NANOSECONDS"`. One that does not was sent in 1970.
fn sent_at(frame: &[u8]) -> u64 {
    split(frame, b"at=\"")
        .and_then(|(_, rest)| split(rest, b"\""))
        .and_then(|(digits, _)| std::str::from_utf8(digits).ok()?.parse().ok())
        .unwrap_or(0)
}

/// Has the kernel note when bytes arrive.
fn note_arrivals(socket: RawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(0);
    // SAFETY: the option's value is an int, which `on` is, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Appends what there is to read, and returns when the last of it arrived; nothing at the end of the stream.
fn receive(socket: RawFd, unfinished: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut bytes = [0_u8; 16_384];
    let mut control = [0_u64; 16];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: null pointers and lengths of zero are a valid header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the header points to `part` and `control`, which have the lengths that it says and outlive the call.
    let length = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    unfinished.extend_from_slice(bytes.get(..length).unwrap_or_default());
    Ok((length > 0).then(|| arrival(&message).unwrap_or_else(now)))
}

fn arrival(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled in the control data that the header points to, and the macro looks at no more.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: data of this type is a timespec; it may lie anywhere.
    let time = unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::timespec>()
            .read_unaligned()
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// On the clock that the kernel notes arrivals by, and Ruby the beginning of a broadcast.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
