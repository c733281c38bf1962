//! The two machines in full feature phase.
