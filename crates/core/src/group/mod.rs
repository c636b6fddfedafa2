//! The workers of one agent.
