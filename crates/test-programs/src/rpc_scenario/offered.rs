//! Functions that the worker offers.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_rpc::{CallContext, Method, Methods, RemoteError, RpcError, blocking};

use super::counts::EventCounts;
use super::{LONG, large, pressure, references, tensors, victim};

pub(crate) const DOUBLE: Method<i64, i64> = Method::new("scenario.double");
/// Same method with a different argument type, as in another version.
pub(crate) const DOUBLE_TEXT: Method<String, i64> = Method::new("scenario.double");
pub(crate) const HALVE: Method<i64, i64> = Method::new("scenario.halve");
/// A method that no worker offers.
pub(crate) const TRIPLE: Method<i64, i64> = Method::new("scenario.triple");
/// Returns the length of a text.
pub(crate) const MEASURE: Method<String, usize> = Method::new("scenario.measure");
/// Returns a text of this length.
pub(crate) const REPEAT: Method<usize, String> = Method::new("scenario.repeat");
/// Fails in one of ten ways.
pub(crate) const FAIL: Method<u8, ()> = Method::new("scenario.fail");
/// Waits until cancelled, and never answers: `waiting`, then `cancelled`.
pub(crate) const WAIT: Method<(), ()> = Method::new("scenario.wait");
/// Blocks a thread until `OPEN`: `holding`.
pub(crate) const HOLD: Method<(), i64> = Method::new("scenario.hold");
/// Lets all blocked functions continue: `open`.
pub(crate) const OPEN: Method<(), ()> = Method::new("scenario.open");
/// Uses a thread for a short time: `counted`.
pub(crate) const COUNT: Method<(), ()> = Method::new("scenario.count");
/// Answers once an event has at least this count.
pub(crate) const REACHED: Method<(String, u64), ()> = Method::new("scenario.reached");
/// Records a number.
pub(crate) const NOTE: Method<u64, ()> = Method::new("scenario.note");
/// Returns all recorded numbers, in order.
pub(crate) const NOTED: Method<(), Vec<u64>> = Method::new("scenario.noted");
/// Calls along the names; returns the trace number of each call.
pub(crate) const TRACE: Method<Vec<String>, Vec<String>> = Method::new("scenario.trace");

/// Calls along the names; returns the number of workers that it has passed.
const CHAIN: Method<Vec<String>, u32> = Method::new("scenario.chain");
/// Same as `CHAIN`, on a thread.
const BLOCKING_CHAIN: Method<Vec<String>, u32> = Method::new("scenario.blocking_chain");

pub(crate) fn methods(counts: &Arc<EventCounts>) -> Methods {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&noted);
    let with_counts = || Arc::clone(counts);
    let (waits, holds, opens) = (with_counts(), with_counts(), with_counts());
    let (counter, reaches) = (with_counts(), with_counts());
    let methods = Methods::new()
        .with(DOUBLE, async |number: i64| {
            let double = number.checked_mul(2);
            double.ok_or_else(|| "it does not fit".to_owned())
        })
        .with(HALVE, blocking(|number: i64| Ok::<_, RpcError>(number / 2)))
        .with(MEASURE, async |text: String| Ok::<_, RpcError>(text.len()))
        .with(REPEAT, async |length: usize| {
            Ok::<_, RpcError>("x".repeat(length))
        })
        .with(FAIL, async |how: u8| {
            Err::<(), Box<dyn Error + Send + Sync>>(failure(how))
        })
        .with(WAIT, move |context: CallContext, ()| {
            let counts = Arc::clone(&waits);
            async move {
                counts.add("waiting");
                context.cancellation().cancelled().await;
                counts.add("cancelled");
                // An answer at the deadline could arrive before the caller's timeout.
                std::future::pending::<Result<(), RpcError>>().await
            }
        })
        .with(
            HOLD,
            blocking(move |()| {
                holds.add("holding");
                match holds.wait_blocking("open", 1, LONG) {
                    0 => Err("the test has not opened the gate".to_owned()),
                    _ => Ok(7),
                }
            }),
        )
        .with(OPEN, move |()| {
            opens.add("open");
            async { Ok::<_, RpcError>(()) }
        })
        .with(
            COUNT,
            blocking(move |()| {
                counter.add("counted");
                Ok::<_, RpcError>(())
            }),
        )
        .with(REACHED, move |(what, times): (String, u64)| {
            let counts = Arc::clone(&reaches);
            async move {
                counts.wait(&what, times).await;
                Ok::<_, RpcError>(())
            }
        })
        .with(NOTE, move |number: u64| {
            let notes = Arc::clone(&notes);
            async move {
                // Some of the calls have to wait, but the order must still hold.
                if number.is_multiple_of(3) {
                    tokio::task::yield_now().await;
                }
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                notes.push(number);
                Ok::<_, RpcError>(())
            }
        })
        .with(NOTED, move |()| {
            let noted = noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
            async { Ok::<_, RpcError>(noted) }
        })
        .with(
            CHAIN,
            async |context: CallContext, mut names: Vec<String>| match names.pop() {
                Some(next) => Ok(context.agent().call(&next, CHAIN, &names).await? + 1),
                None => Ok::<_, RpcError>(0),
            },
        )
        .with(
            BLOCKING_CHAIN,
            blocking(
                |context: CallContext, mut names: Vec<String>| match names.pop() {
                    Some(next) => {
                        let next = context.agent().call(&next, BLOCKING_CHAIN, &names);
                        Ok(next.wait()? + 1)
                    }
                    None => Ok::<_, RpcError>(0),
                },
            ),
        )
        .with(
            TRACE,
            async |context: CallContext, mut names: Vec<String>| {
                let mut traces = vec![format!("{:032x}", context.trace())];
                if let Some(next) = names.pop() {
                    traces.extend(context.agent().call(&next, TRACE, &names).await?);
                }
                Ok::<_, RpcError>(traces)
            },
        );
    let methods = pressure::with_methods(methods, counts);
    let methods = large::with_methods(victim::with_methods(methods));
    references::with_methods(tensors::with_methods(methods))
}

/// Returns one of nine different errors, or panics.
fn failure(how: u8) -> Box<dyn Error + Send + Sync> {
    #[derive(Debug, thiserror::Error)]
    #[error("Größe {size} ist zu groß\nzweite Zeile: 次の行")]
    struct TooLarge {
        size: u32,
        source: Unreadable,
    }
    #[derive(Debug, thiserror::Error)]
    #[error("das läßt sich nicht lesen")]
    struct Unreadable {
        source: std::num::ParseIntError,
    }
    let no_number = "x".parse::<u32>().expect_err("x is no number");
    match how {
        0 => TooLarge {
            size: 7,
            source: Unreadable { source: no_number },
        }
        .into(),
        1 => no_number.into(),
        2 => "x".parse::<f64>().expect_err("x is no number").into(),
        3 => "x".parse::<bool>().expect_err("x is no truth").into(),
        4 => "xy".parse::<char>().expect_err("these are two").into(),
        5 => String::from_utf8(vec![0xff]).expect_err("no text").into(),
        6 => std::io::Error::from(std::io::ErrorKind::NotFound).into(),
        7 => "only a text".into(),
        8 => panic!("a panic with {how}"),
        _ => RemoteError {
            type_name: "an application's own".to_owned(),
            message: "of my own".to_owned(),
            code: 17,
            details: vec![1, 2, 3],
            ..RemoteError::default()
        }
        .into(),
    }
}
