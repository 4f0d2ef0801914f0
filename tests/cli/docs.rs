//! The documentation: its commands run as they are written, its tables match the code.

mod admin;
mod bans;
mod ca;
mod commands;
mod follow;
mod inbound;
mod installed;
mod listeners;
mod logs_page;
mod monitoring;
mod outbound;
mod readme;
mod recipes;
mod rules;
mod team;
mod tproxy;
