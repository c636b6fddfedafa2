//! Tests of stores and their clients. They are one program to save link time.

mod file_store;
mod secret;
mod tcp_client;
mod work;
