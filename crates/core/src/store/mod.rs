//! The stores: keys, values, waiters, and the c10d wire.
