//! Sources that a header may claim and that need a policy: impossible ones, loopback, the server's own.

/// Addresses that no single host has, which no policy admits, and two of 240.0.0.0/4, which only `allow-reserved` admits.
pub(crate) const IMPOSSIBLE: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "255.255.255.255",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "254.1.2.3",
    "127.255.255.255",
    "::",
    "ff02::1",
    "ff0e::1",
    "fe80::1",
    "febf::1",
    "::ffff:0.0.0.0",
    "::ffff:255.255.255.255",
    "::ffff:224.0.0.1",
    "64:ff9b::e000:1",
    "2002:ffff:ffff::",
];

/// Network and broadcast address of the lab's server, 10.81.0.1/24, which no host can have.
pub(crate) const SUBNET_ENDS: &[&str] = &["10.81.0.255", "10.81.0.0"];

/// Loopback, in every encoding.
pub(crate) const LOOPBACK_ADDRESSES: &[&str] = &[
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:db8::5efe:7f00:1",
];

/// The lab's server, in every encoding.
pub(crate) const SERVER_ADDRESSES: &[&str] = &[
    "10.81.0.1",
    "fd81::1",
    "::ffff:10.81.0.1",
    "64:ff9b::a51:1",
    "2002:a51:1::1",
    "2001:db8::200:5efe:a51:1",
];
