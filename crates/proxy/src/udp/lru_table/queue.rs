//! Queues of slot numbers, linked through a table beside the slots: any member leaves in one step.

/// Of each slot, who stands before and behind it in the one queue it is in.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

/// First and last of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    head: Option<u32>,
    tail: Option<u32>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: Option<u32>,
    behind: Option<u32>,
}

impl Queue {
    /// The member that has been here longest.
    pub(super) fn head(&self) -> Option<u32> {
        self.head
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts a slot last. It must be in no queue of these links.
    pub(super) fn push(&mut self, links: &mut Links, slot: u32) {
        *links.of(slot) = Link {
            before: self.tail,
            behind: None,
        };
        match self.tail {
            Some(tail) => links.of(tail).behind = Some(slot),
            None => self.head = Some(slot),
        }
        self.tail = Some(slot);
        self.len += 1;
    }

    /// Takes a slot out. It must be in this queue.
    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { before, behind } = std::mem::take(links.of(slot));
        match before {
            Some(before) => links.of(before).behind = behind,
            None => self.head = behind,
        }
        match behind {
            Some(behind) => links.of(behind).before = before,
            None => self.tail = before,
        }
        self.len -= 1;
    }
}

impl Links {
    fn of(&mut self, slot: u32) -> &mut Link {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, Link::default());
        }
        &mut self.0[slot]
    }
}
