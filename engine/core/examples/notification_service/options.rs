//! The options of `serve`. Names, bounds and defaults; nothing else.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// See the fields.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// `--listen`: where notifications come in; port 0 takes any.
    pub(crate) listen: SocketAddr,
    /// `--downstream`: where they go to.
    pub(crate) downstream: String,
    /// `--dir`: where dead letters and what is left at the end are written.
    pub(crate) dir: PathBuf,
    /// `--capacity`: notifications inside the service, at most.
    pub(crate) capacity: usize,
    /// `--merchant-capacity`: notifications of one merchant, at most.
    pub(crate) merchant_capacity: usize,
    /// `--rate`: notifications a second that go out, at most.
    pub(crate) rate: f64,
    /// `--merchant-rate`: those of one merchant.
    pub(crate) merchant_rate: f64,
    /// `--patience`: seconds that a request waits for room before it is told to come again.
    pub(crate) patience: Duration,
    /// `--drain`: seconds after the signal in which notifications still go out.
    pub(crate) drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            downstream: "http://127.0.0.1:9090".to_owned(),
            dir: PathBuf::from("."),
            capacity: 4_096,
            merchant_capacity: 64,
            rate: 4_500.0,
            merchant_rate: 100.0,
            patience: Duration::from_millis(25),
            drain: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Reads `--name value` pairs; each error says what to give instead.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(name) = args.next() {
            let Some(value) = args.next() else { return Err(format!("{name} has no value")) };
            let value = Value { name: &name, value: &value };
            match name.as_str() {
                "--listen" => options.listen = value.read("an address like 127.0.0.1:8080")?,
                "--downstream" => options.downstream = value.read("a URL")?,
                "--dir" => options.dir = value.read("a folder")?,
                "--capacity" => options.capacity = value.read("a whole number")?,
                "--merchant-capacity" => {
                    options.merchant_capacity = value.read("a whole number")?
                }
                "--rate" => options.rate = value.read("a number")?,
                "--merchant-rate" => options.merchant_rate = value.read("a number")?,
                "--patience" => options.patience = value.seconds()?,
                "--drain" => options.drain = value.seconds()?,
                _ => {
                    return Err(format!(
                        "{name} is no option; there are --listen, --downstream, --dir, --capacity, \
                         --merchant-capacity, --rate, --merchant-rate, --patience and --drain"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The value of an option, as text.
pub(crate) struct Value<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
}

impl Value<'_> {
    pub(crate) fn read<V: FromStr>(&self, what: &str) -> Result<V, String> {
        let Self { name, value } = self;
        value.parse().map_err(|_| format!("{name} is {value:?}; give {what}"))
    }

    pub(crate) fn seconds(&self) -> Result<Duration, String> {
        let what = "seconds, such as 2.5";
        let seconds: f64 = self.read(what)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("{} is {seconds}; give {what}", self.name))
    }
}
