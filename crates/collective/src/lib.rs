//! Placeholder story, replaced below.
