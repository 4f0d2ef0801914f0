//! `peername proxy` over TCP, from the header to the drain. UDP is in `udp`.

mod confinement;
mod draining;
mod fail2ban;
mod headers;
mod limits;
mod listeners;
mod observe;
mod policy;
mod real_servers;
mod relay;
mod reload;
mod routes;
mod tproxy;
mod upgrade;
mod upstream;
