//! Ctrl-C and TERM in three stages: no new command, ask the running ones, kill them and go.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::running::{Running, Stage};
use crate::control::{Control, StopReason};
use crate::report::console::Console;

/// From the third signal to the end of the process, whatever is in the way.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Listens from now on, on a thread of its own that lasts as long as the process.
///
/// The lock that is given back is held from the stop to the end of its message: whoever ends the process
/// takes it first, so that no message is lost.
///
/// # Errors
/// The signals cannot be watched.
pub fn listen(
    control: Arc<Control>,
    running: Arc<Running>,
    console: Arc<Console>,
) -> io::Result<Arc<Mutex<()>>> {
    let speaking = Arc::new(Mutex::new(()));
    let turn = Arc::clone(&speaking);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for (count, _) in signals.forever().enumerate() {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            match count {
                0 => {
                    control.stop(StopReason::Interrupted);
                    console.say(format_args!(
                        "interrupted: no further command is started, {} running ones finish \
                         (again: they get TERM; a third time: KILL)",
                        running.count()
                    ));
                }
                1 => {
                    let asked = running.raise(Stage::Asked);
                    console.say(format_args!("interrupted again: TERM to {asked} commands"));
                }
                more => {
                    let killed = running.raise(Stage::Killed);
                    if more == 2 {
                        give_up_later();
                    }
                    console.say(format_args!("interrupted again: KILL to {killed} commands"));
                }
            }
        }
    })?;
    Ok(speaking)
}

/// After KILL nothing of ours runs any more. What may still be in the way is a reader of our output that
/// lets us wait, or a dead letter on a file system that hangs: they get a little time.
fn give_up_later() {
    let wait = || {
        std::thread::sleep(GIVE_UP);
        std::process::exit(130);
    };
    // Without a thread left the run ends when the reader lets it.
    let _ = std::thread::Builder::new().name("give-up".into()).spawn(wait);
}
