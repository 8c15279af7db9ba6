//! The life of the service, from start to report.

use std::{sync::Arc, time::Duration};

use axum::serve::ListenerExt;
use tokio::{
    net::TcpListener, runtime::Handle, sync::oneshot, task::spawn_blocking, time::timeout,
};

use crate::{
    Error,
    api::{self, App},
    delivery,
    drain::{self, Report},
    options::Options,
    push::Downstream,
    signal::Stop,
};

/// After the drain, open requests have so long to get their answer.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serves until a signal comes. `true`: everything that was accepted is accounted for.
pub(crate) async fn run(args: impl Iterator<Item = String>) -> Result<bool, Error> {
    let options = Options::parse(args)?;
    let mut stop = Stop::listen()?;
    std::fs::create_dir_all(&options.dir)
        .map_err(|error| format!("--dir is {}: {error}", options.dir.display()))?;
    let downstream = Downstream::new(&options.downstream)?;
    let engine = delivery::engine(&options, downstream, Handle::current())?;
    let app = App::new(engine, options.patience);

    let (shared, settings) = (app.clone(), options.clone());
    let taken_up = spawn_blocking(move || drain::take_up(&shared, &settings)).await??;

    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(|error| format!("--listen is {}: {error}", options.listen))?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|connection| _ = connection.set_nodelay(true));
    let (end, ended) = oneshot::channel::<()>();
    let server = axum::serve(listener, api::router(app.clone()))
        .with_graceful_shutdown(async { _ = ended.await })
        .into_future();
    let server = tokio::spawn(server);

    let signal = stop.wanted().await;
    println!("{signal}: draining, at most {:?}; once more: stop at once", options.drain);
    let hurry = tokio::spawn(halt_at_next(stop, app.clone()));
    // Requests are answered meanwhile, with 503, and figures are there to look at.
    let report = drain::drain(&app, &options, taken_up).await?;
    hurry.abort();
    // No connection is taken from here on, and those that are open end with the answer under way.
    let _ = end.send(());
    if timeout(LAST_ANSWERS, server).await.is_err() {
        println!("some connections were cut");
    }
    print(&report, &options);
    Ok(report.balances())
}

/// Whoever asks twice does not want to wait: nothing more is sent, all of it is left.
async fn halt_at_next(mut stop: Stop, app: Arc<App>) {
    stop.wanted().await;
    app.engine.halt();
}

/// For people, and as JSON on the last line.
fn print(report: &Report, options: &Options) {
    let Report { accepted, taken_up, done, dead_lettered, left, .. } = report;
    println!(
        "{accepted} accepted + {taken_up} taken up {} {done} done + {dead_lettered} dead letters + {left} left, in {}",
        if report.balances() { "=" } else { "IS NOT" },
        options.dir.display(),
    );
    println!("{}", serde_json::to_string(report).expect("numbers"));
}
