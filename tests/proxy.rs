//! `peername proxy` over TCP, from the header to the drain. UDP is in `udp`.

mod admin;
mod apparmor;
mod confinement;
mod connections;
mod draining;
mod fail2ban;
mod headers;
mod limits;
mod listeners;
mod logging;
mod outages;
mod page;
mod policy;
mod real_servers;
mod relay;
mod reload;
mod routes;
mod strangers;
mod top;
mod tproxy;
mod upgrade;
mod upstream;
mod uring;
