//! Doubly linked lists of units in nodes that are the caller's.

const NONE: u32 = u32::MAX;

/// What a policy keeps of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    before: u32,
    after: u32,
    /// Which list it is on, plus one; 0 for none.
    list: u8,
    /// Touches, or a bit.
    pub(super) mark: u8,
}

impl Node {
    /// A unit that is not resident.
    pub const NEW: Self = Self {
        before: NONE,
        after: NONE,
        list: 0,
        mark: 0,
    };
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// `LISTS` lists; a unit is on one of them at most. Invariants: a unit's list counts it, and following `after` from
/// `oldest` meets `len` units and ends at `newest`.
#[derive(Debug)]
pub struct Links<'a, const LISTS: usize> {
    nodes: &'a mut [Node],
    ends: [Ends; LISTS],
}

impl<'a, const LISTS: usize> Links<'a, LISTS> {
    pub fn new(nodes: &'a mut [Node]) -> Self {
        nodes.fill(Node::NEW);
        let empty = Ends {
            oldest: NONE,
            newest: NONE,
            len: 0,
        };
        Self {
            nodes,
            ends: [empty; LISTS],
        }
    }

    pub fn len(&self, list: usize) -> u32 {
        self.ends[list].len
    }

    pub fn all(&self) -> u32 {
        self.ends.iter().map(|ends| ends.len).sum()
    }

    /// The list a unit is on.
    pub fn list_of(&self, unit: u32) -> Option<usize> {
        usize::from(self.nodes.get(unit as usize)?.list).checked_sub(1)
    }

    /// The mark of a unit that is on a list.
    pub fn mark(&mut self, unit: u32) -> Option<&mut u8> {
        let node = self.nodes.get_mut(unit as usize)?;
        (node.list != 0).then_some(&mut node.mark)
    }

    /// The unit that was put longest ago into a list.
    pub fn oldest(&self, list: usize) -> Option<u32> {
        let unit = self.ends[list].oldest;
        (unit != NONE).then_some(unit)
    }

    /// The unit put after `unit` into the same list.
    pub fn after(&self, unit: u32) -> Option<u32> {
        let after = self.nodes.get(unit as usize)?.after;
        (after != NONE).then_some(after)
    }

    /// Puts a unit that is on no list at the end of one. False if it is on one, or out of range.
    pub fn push(&mut self, list: usize, unit: u32, mark: u8) -> bool {
        let last = self.ends[list].newest;
        match self.nodes.get_mut(unit as usize) {
            Some(node) if node.list == 0 && unit != NONE => {
                *node = Node {
                    before: last,
                    after: NONE,
                    list: list as u8 + 1,
                    mark,
                };
            }
            _ => return false,
        }
        match self.nodes.get_mut(last as usize) {
            Some(node) => node.after = unit,
            None => self.ends[list].oldest = unit,
        }
        self.ends[list].newest = unit;
        self.ends[list].len += 1;
        true
    }

    /// Takes a unit off its list; its mark.
    pub fn take(&mut self, unit: u32) -> Option<u8> {
        let list = self.list_of(unit)?;
        let node = core::mem::replace(self.nodes.get_mut(unit as usize)?, Node::NEW);
        match self.nodes.get_mut(node.before as usize) {
            Some(before) => before.after = node.after,
            None => self.ends[list].oldest = node.after,
        }
        match self.nodes.get_mut(node.after as usize) {
            Some(after) => after.before = node.before,
            None => self.ends[list].newest = node.before,
        }
        self.ends[list].len -= 1;
        Some(node.mark)
    }

    /// Takes the oldest of a list, with its mark.
    pub fn pop(&mut self, list: usize) -> Option<(u32, u8)> {
        let unit = self.oldest(list)?;
        Some((unit, self.take(unit)?))
    }
}
