//! Ctrl-C and TERM in three stages: no new command, ask the running ones, kill them.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::running::{Running, Stage};
use crate::control::{Control, StopReason};
use crate::report::console::Console;

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
                _ => {
                    let killed = running.raise(Stage::Killed);
                    console.say(format_args!("interrupted again: KILL to {killed} commands"));
                }
            }
        }
    })?;
    Ok(speaking)
}
