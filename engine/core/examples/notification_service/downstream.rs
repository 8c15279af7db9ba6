//! A stand-in for the downstream, as such things are: it takes so many calls at a time and so many a second, answers 429 to what is
//! over, and fails now and then. It keeps books, so that a claim about the service can be checked from outside.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
    serve::ListenerExt,
};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{Error, notification::Notification, options::Options, signal::Stop};

/// Calls at a time, and a second.
const CAP: u64 = 32;
const RATE: u64 = 5_000;

/// Figures of the stand-in. The last three must stay zero.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) calls: u64,
    pub(crate) delivered: u64,
    pub(crate) over_cap: u64,
    pub(crate) over_rate: u64,
    pub(crate) failed: u64,
    pub(crate) forbidden: u64,
    pub(crate) most_at_once: u64,
    /// Delivered once more.
    pub(crate) duplicates: u64,
    /// Calls for a merchant while another one for it was under way.
    pub(crate) overlaps: u64,
    /// Ids that end in `#n` and came after a higher one of their merchant.
    pub(crate) out_of_order: u64,
}

#[derive(Default)]
struct Book {
    figures: Figures,
    at_once: u64,
    second: Option<Instant>,
    in_second: u64,
    busy: HashSet<String>,
    delivered: HashSet<(String, String)>,
    last: HashMap<String, u64>,
}

/// See the module text.
#[derive(Default)]
pub(crate) struct StandIn(Mutex<Book>);

impl StandIn {
    /// Listens at `listen`. Ends with its runtime.
    pub(crate) async fn start(listen: SocketAddr) -> Result<(SocketAddr, Arc<Self>), Error> {
        let listener = TcpListener::bind(listen).await?;
        let (address, stand_in) = (listener.local_addr()?, Arc::new(Self::default()));
        let router = Router::new().route("/push", post(push)).with_state(stand_in.clone());
        let listener = listener.tap_io(|connection| _ = connection.set_nodelay(true));
        tokio::spawn(axum::serve(listener, router).into_future());
        Ok((address, stand_in))
    }

    pub(crate) fn figures(&self) -> Figures {
        self.book().figures.clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stand-in as a process of its own: prints its address, and its figures at the end.
pub(crate) async fn run(args: impl Iterator<Item = String>) -> Result<bool, Error> {
    let mut stop = Stop::listen()?;
    let (address, stand_in) = StandIn::start(Options::parse(args)?.listen).await?;
    println!("listening on http://{address}");
    stop.wanted().await;
    let figures = stand_in.figures();
    println!("{}", serde_json::to_string(&figures)?);
    Ok(figures.duplicates + figures.overlaps + figures.out_of_order == 0)
}

/// Why a call was not let in.
enum Over {
    Cap,
    Rate,
    Merchant,
}

impl IntoResponse for Over {
    fn into_response(self) -> Response {
        match self {
            Self::Cap => StatusCode::TOO_MANY_REQUESTS.into_response(),
            Self::Rate => {
                (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response()
            }
            Self::Merchant => StatusCode::CONFLICT.into_response(),
        }
    }
}

/// A call that was let in. Leaves the books when it ends, also when its client goes away.
struct Call<'a> {
    stand_in: &'a StandIn,
    merchant: &'a str,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut book = self.stand_in.book();
        book.at_once -= 1;
        book.busy.remove(self.merchant);
    }
}

impl StandIn {
    /// Lets a call in, or says why not.
    fn enter<'a>(&'a self, merchant: &'a str) -> Result<Call<'a>, Over> {
        let mut book = self.book();
        book.figures.calls += 1;
        if book.at_once >= CAP {
            book.figures.over_cap += 1;
            return Err(Over::Cap);
        }
        let now = Instant::now();
        if book.second.is_none_or(|began| now - began >= Duration::from_secs(1)) {
            (book.second, book.in_second) = (Some(now), 0);
        }
        if book.in_second >= RATE {
            book.figures.over_rate += 1;
            return Err(Over::Rate);
        }
        if !book.busy.insert(merchant.to_owned()) {
            book.figures.overlaps += 1;
            return Err(Over::Merchant);
        }
        book.in_second += 1;
        book.at_once += 1;
        book.figures.most_at_once = book.figures.most_at_once.max(book.at_once);
        Ok(Call { stand_in: self, merchant })
    }

    fn deliver(&self, notification: Notification) {
        let Notification { id, merchant, .. } = notification;
        let mut book = self.book();
        if let Some(number) = id.rsplit_once('#').and_then(|(_, number)| number.parse::<u64>().ok())
        {
            let last = book.last.entry(merchant.clone()).or_default();
            let late = number < *last;
            *last = number.max(*last);
            book.figures.out_of_order += u64::from(late);
        }
        if book.delivered.insert((merchant, id)) {
            book.figures.delivered += 1;
        } else {
            book.figures.duplicates += 1;
        }
    }
}

async fn push(State(stand_in): State<Arc<StandIn>>, headers: HeaderMap, body: Bytes) -> Response {
    let Ok(notification) = Notification::parse(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let merchant = notification.merchant.clone();
    let call = match stand_in.enter(&merchant) {
        Ok(call) => call,
        Err(over) => return over.into_response(),
    };
    let mut luck = DefaultHasher::new();
    (&notification.id, headers.get("attempt").map(|value| value.as_bytes())).hash(&mut luck);
    let luck = luck.finish();
    tokio::time::sleep(Duration::from_millis(2 + luck % 4)).await;
    let answer = if notification.title.contains("forbidden") {
        stand_in.book().figures.forbidden += 1;
        StatusCode::UNPROCESSABLE_ENTITY
    } else if merchant.starts_with("broken") || (luck / 4).is_multiple_of(50) {
        stand_in.book().figures.failed += 1;
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        stand_in.deliver(notification);
        StatusCode::OK
    };
    drop(call);
    answer.into_response()
}
