//! What an operator sees: metrics, health, listings, log, page and `top`.

mod admin;
mod connections;
mod logging;
mod outages;
mod page;
mod top;
