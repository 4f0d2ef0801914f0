//! The documentation: its commands run as they are written, its tables match the code.

mod commands;
mod fail2ban;
mod follow;
mod inbound;
mod installed;
mod logs_page;
mod monitoring;
mod outbound;
mod readme;
mod recipes;
mod tproxy;
