//! The classic connectivity job: are these 500 addresses reachable, how fast, and if not, why? Each check waits for somebody else, so the
//! number of workers pays far beyond the number of CPUs.
//!
//! ```text
//! cargo run --release -p bgrp-process --example connectivity
//! ```
//!
//! The server is local: it answers after 20 ms + U(0, 60 ms), one in 25 addresses with 503, and one in 50 not at all.

use std::{
    error::Error,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use bgrp_process::{Ended, Program, Runner, Server, Task, Value};

const URLS: u32 = 500;
const PATIENCE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    Server::new()
        .task("check", |_, (address, path): (SocketAddr, String)| check(address, &path))
        .run_if_worker();
    let address = serve()?;
    println!("| workers | seconds | speed-up | reachable | 503 | no answer | out of order |");
    println!("|---------|---------|----------|-----------|-----|-----------|--------------|");
    let mut alone = None;
    for workers in [1, 8, 16, 32] {
        let begin = Instant::now();
        let (ok, refused, silent, disordered) = run(address, workers)?;
        let took = begin.elapsed().as_secs_f64();
        let speed_up = *alone.get_or_insert(took) / took;
        println!(
            "| {workers:>7} | {took:>7.2} | {speed_up:>8.1} | {ok:>9} | {refused:>3} | {silent:>9} | {disordered:>12} |"
        );
    }
    Ok(())
}

/// Checks all addresses; the paths of one host are one key, so they are checked one after the other.
fn run(address: SocketAddr, workers: usize) -> Result<(u32, u32, u32, u32), Box<dyn Error>> {
    let runner = Runner::builder(Program::this()).workers(workers).start()?;
    let results = runner.results();
    for n in 0..URLS {
        let host = format!("host-{}", n % 100);
        let task = Task::new(n.to_string(), host, Value::json(&(address, format!("/{n}")))?);
        runner.submit(task)?;
    }
    let report = runner.close(Duration::from_secs(300));
    if let Some(error) = report.error {
        return Err(error.into());
    }
    let (mut ok, mut refused, mut silent, mut disordered) = (0, 0, 0, 0);
    let mut last = std::collections::HashMap::new();
    for result in results {
        let n: i64 = result.id.parse()?;
        disordered += u32::from(last.insert(result.key, n).is_some_and(|before| before > n));
        match result.ended {
            Ended::Ok(_) => ok += 1,
            Ended::Error(error) if error.message.contains("503") => refused += 1,
            _ => silent += 1,
        }
    }
    Ok((ok, refused, silent, disordered))
}

/// Status and time of one address.
fn check(address: SocketAddr, path: &str) -> Result<(u16, u64), String> {
    let begin = Instant::now();
    let said = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .map_err(said)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(said)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    match status {
        Some(200) => Ok((200, begin.elapsed().as_millis() as u64)),
        Some(status) => Err(format!("status {status}")),
        None => Err("no HTTP answer".to_owned()),
    }
}

fn serve() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

/// Ends when the other side does.
fn answer(mut stream: TcpStream) -> Option<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1_024];
    while !request.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        request.extend_from_slice(&chunk[..count]);
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let n: u32 = text.split(['/', ' ']).nth(2)?.parse().ok()?;
    if n % 50 == 7 {
        // Until the other side has had enough.
        let _ = stream.read(&mut chunk);
        return None;
    }
    // The same for an address each time, so that all rows do the same work.
    std::thread::sleep(Duration::from_millis(
        20 + u64::from(n.wrapping_mul(2_654_435_761) >> 16) % 61,
    ));
    let status = if n % 25 == 3 { "503 Service Unavailable" } else { "200 OK" };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()
}
