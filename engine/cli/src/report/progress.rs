//! Progress while the run lasts: a bar on a terminal, a plain line now and then elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::console::Console;
use super::tally::Tally;
use crate::options::Progress;

const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Bytes read, and bytes there are if that is known.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Bytes read so far.
    pub read: Arc<AtomicU64>,
    /// The size of all inputs, if they are regular files.
    pub size: Option<u64>,
}

impl Extent {
    /// The share of the work that is over, once something is over.
    fn share(&self, tally: &Tally) -> Option<f64> {
        let (size, read) = (self.size?, self.read.load(Ordering::Relaxed));
        let (over, total) = (tally.over(), tally.total.get());
        if size == 0 || total == 0 || over == 0 {
            return None;
        }
        let records_read = read.min(size) as f64 / size as f64;
        Some(records_read * over as f64 / total as f64)
    }

    fn left(&self, tally: &Tally, since: Instant) -> Option<Duration> {
        let share = self.share(tally)?;
        let left = since.elapsed().as_secs_f64() * (1.0 - share) / share;
        (left < 1e8).then(|| Duration::from_secs(left as u64))
    }
}

/// Shows progress until `end` is hung up.
pub fn show(
    how: Progress,
    console: &Console,
    tally: &Tally,
    extent: &Extent,
    since: Instant,
    end: &Receiver<()>,
) {
    let terminal = std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    match how {
        Progress::None => {}
        Progress::Bar => bar(console, tally, extent, since, end),
        Progress::Auto if terminal => bar(console, tally, extent, since, end),
        Progress::Auto | Progress::Plain => lines(console, tally, extent, since, end),
    }
}

fn goes_on(end: &Receiver<()>, time: Duration) -> bool {
    matches!(end.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

fn lines(console: &Console, tally: &Tally, extent: &Extent, since: Instant, end: &Receiver<()>) {
    while goes_on(end, LINE_EVERY) {
        console.say(format_args!("{}", state(tally, extent, since)));
    }
}

fn bar(console: &Console, tally: &Tally, extent: &Extent, since: Instant, end: &Receiver<()>) {
    // Redrawn by the clock below; the bar's length is in thousandths where the size is known.
    let bar = match extent.size {
        Some(_) => ProgressBar::new(1000),
        None => ProgressBar::no_length(),
    };
    let template = if extent.size.is_some() { "[{bar:24}] {msg}" } else { "{spinner} {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_draw_target(ProgressDrawTarget::stderr());
    console.show(bar.clone());
    while goes_on(end, BAR_EVERY) {
        if let Some(share) = extent.share(tally) {
            bar.set_position((share * 1000.0) as u64);
        }
        bar.set_message(state(tally, extent, since));
        bar.tick();
    }
    console.clear();
}

/// The state of the run in one line.
fn state(tally: &Tally, extent: &Extent, since: Instant) -> String {
    let rate = tally.over() as f64 / since.elapsed().as_secs_f64().max(1e-9);
    let mut line = format!(
        "{}/{} done, {} running, {} failed, {} retried, {rate:.0}/s",
        tally.over(),
        tally.total.get(),
        tally.running.get(),
        tally.failed.get(),
        tally.retried.get(),
    );
    if let Some(left) = extent.left(tally, since) {
        line += &format!(", {} left", humantime::format_duration(left));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_never_exceeds_the_total_and_retries_stand_apart() {
        let tally = Tally::default();
        tally.total.add(10);
        tally.retried.add(10);
        tally.ok.add(7);
        tally.failed.add(3);
        let extent = Extent { read: Arc::default(), size: None };
        let line = state(&tally, &extent, Instant::now());
        assert!(line.starts_with("10/10 done, 0 running, 3 failed, 10 retried, "), "{line}");
    }

    #[test]
    fn the_share_is_known_only_with_a_size() {
        let tally = Tally::default();
        let read = Arc::new(AtomicU64::new(50));
        let extent = Extent { read: Arc::clone(&read), size: Some(100) };
        assert_eq!(extent.share(&tally), None);
        tally.total.add(10);
        tally.ok.add(5);
        assert_eq!(extent.share(&tally), Some(0.25));
        assert_eq!(Extent { read, size: None }.share(&tally), None);
    }
}
