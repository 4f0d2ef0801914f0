//! `libpeername.so`: accept(2) and getpeername(2) that know the client behind the proxy.
