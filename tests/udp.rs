//! UDP through the proxy: three dialects, and sessions that tell the truth.

mod dialects;
mod rig;
