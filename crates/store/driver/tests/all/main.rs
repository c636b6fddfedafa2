//! Stores and their clients. One program, because each is linked with everything.

mod file_store;
mod secret;
mod tcp_client;
mod work;
