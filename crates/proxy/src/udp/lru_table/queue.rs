//! Doubly linked queues of slot numbers. The links are in a table by slot number, so any slot is removed in constant time.

/// The neighbours of each slot in its queue.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

/// Head and tail of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    head: Option<u32>,
    tail: Option<u32>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    previous: Option<u32>,
    next: Option<u32>,
}

impl Queue {
    /// The slot that was pushed first.
    pub(super) fn head(&self) -> Option<u32> {
        self.head
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a slot. It must be in no queue of these links.
    pub(super) fn push(&mut self, links: &mut Links, slot: u32) {
        *links.link_mut(slot) = Link {
            previous: self.tail,
            next: None,
        };
        match self.tail {
            Some(tail) => links.link_mut(tail).next = Some(slot),
            None => self.head = Some(slot),
        }
        self.tail = Some(slot);
        self.len += 1;
    }

    /// Removes a slot. It must be in this queue.
    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { previous, next } = std::mem::take(links.link_mut(slot));
        match previous {
            Some(previous) => links.link_mut(previous).next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => links.link_mut(next).previous = previous,
            None => self.tail = previous,
        }
        self.len -= 1;
    }
}

impl Links {
    fn link_mut(&mut self, slot: u32) -> &mut Link {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, Link::default());
        }
        &mut self.0[slot]
    }
}
