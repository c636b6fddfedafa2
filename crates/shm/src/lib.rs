//! Memory that processes of one host share, and how they tell one another of it.
//!
//! The only place of remote calls and process groups where code is `unsafe`; each use says which
//! invariant makes it sound.
