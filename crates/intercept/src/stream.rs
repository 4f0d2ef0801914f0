//! Byte streams: the sockets of clients, and wrappers that buffer one direction.

/// The methods of [`AsyncWrite`](tokio::io::AsyncWrite) that write, for a wrapper that passes bytes on to the stream in this
/// field.
macro_rules! delegate_writes {
    ($field:ident) => {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.$field).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            parts: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.$field).poll_write_vectored(cx, parts)
        }

        fn is_write_vectored(&self) -> bool {
            self.$field.is_write_vectored()
        }
    };
}

/// Those of the methods `poll_flush` and `poll_shutdown` that such a wrapper leaves to the stream.
macro_rules! delegate_polls {
    ($field:ident, $($method:ident),+) => {
        $(fn $method(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.$field).$method(cx)
        })+
    };
}

pub(crate) use {delegate_polls, delegate_writes};

pub(crate) mod client_socket;
pub(crate) mod corked;
pub(crate) mod prefixed;
