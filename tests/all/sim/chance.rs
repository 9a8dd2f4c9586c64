//! What is drawn by lot, and which seeds draw what: one number makes all of it.

/// Draws lots (splitmix64).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// True so often in a hundred.
    pub fn percent(&mut self, often: u64) -> bool {
        self.below(100) < often
    }

    /// True so often in a thousand.
    pub fn permille(&mut self, often: u64) -> bool {
        self.below(1000) < often
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap();
        from.get(at)
    }
}

/// What goes wrong in a history, and how often.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Two processes share the store; otherwise one has it alone.
    pub two: bool,
    /// Longest delay of the store, in milliseconds.
    pub delay: u64,
    /// Appends that are refused, in a thousand.
    pub refused: u64,
    /// Appends whose fate is unknown, in a thousand.
    pub unknown: u64,
    /// Storms, in which the fate of every append is unknown, in a thousand appends.
    pub storm: u64,
    /// Reads that fail, in a thousand.
    pub unread: u64,
    /// Crashes before or behind an append, in a thousand.
    pub crash: u64,
    /// A process takes over what another one drives, in a hundred rounds.
    pub suspect: u64,
    /// Bodies that panic, do not come back in time or do not know, in a hundred.
    pub bodies: u64,
    /// Models that fail, panic or say nothing, in a hundred.
    pub models: u64,
    /// Clients that leave before they are answered, in a hundred.
    pub leave: u64,
    /// Takeovers for nothing before an invocation is given up.
    pub takeovers: u32,
    /// How many clients there are.
    pub clients: u64,
    /// What each of them does.
    pub deeds: u64,
    /// How many sessions they know by name.
    pub sessions: u64,
    /// A turn waits for all its questions.
    pub barrier: bool,
    /// The questions of a turn are asked one after the other.
    pub one_at_a_time: bool,
    /// If one call of a turn asks, all of them do.
    pub siblings: bool,
}

impl Profile {
    /// The seed's own. In a quarter of all nothing goes wrong, and in most only some things do.
    pub fn of(chance: &mut Chance) -> Self {
        let calm = chance.percent(25);
        let mut some = |most: u64| if calm || chance.percent(50) { 0 } else { most };
        let (refused, unknown, storm) = (some(60), some(80), some(12));
        let (unread, crash, suspect) = (some(25), some(25), some(30));
        let (bodies, models) = (some(25), some(20));
        Self {
            refused,
            unknown,
            storm,
            unread,
            crash,
            suspect,
            bodies,
            models,
            two: chance.percent(35),
            delay: [0, 3, 25][usize::try_from(chance.below(3)).unwrap()],
            leave: [0, 20][usize::try_from(chance.below(2)).unwrap()],
            takeovers: [2, 10][usize::try_from(chance.below(2)).unwrap()],
            clients: 2 + chance.below(3),
            deeds: 3 + chance.below(6),
            sessions: 1 + chance.below(2),
            barrier: chance.percent(50),
            one_at_a_time: chance.percent(25),
            siblings: chance.percent(20),
        }
    }

    /// Nothing goes wrong but what clients do.
    pub fn is_calm(&self) -> bool {
        let Self { refused, unknown, storm, unread, crash, suspect, bodies, models, .. } = self;
        [refused, unknown, storm, unread, crash, suspect, bodies, models].iter().all(|n| **n == 0)
    }
}
