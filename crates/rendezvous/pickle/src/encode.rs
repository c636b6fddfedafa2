//! Writing of pickles: protocol 4, with Python's framing and sharing.
//!
//! An item that a caller writes twice takes two or five bytes the second time, if the caller kept
//! its [`Memo`]. The [`Writer`] keeps the memos of classes and of the time zone UTC.

use super::class::Class;
use super::opcode;
use super::time::Time;

/// Protocol version: Python 3.8 to 3.13 write it, and later versions read it.
const PROTOCOL: u8 = 4;

/// Number of bytes after which a frame ends at the next opportunity.
const FRAME_TARGET: usize = 64 << 10;

/// Length of a frame's head: the instruction and the length.
const FRAME_HEAD: usize = 9;

/// Maximum number of items or pairs that one instruction adds to a compound.
const BATCH: usize = 1000;

const DAY: i128 = 86_400_000_000;

/// Number of a remembered item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memo(u32);

/// Writer of one pickle, item by item.
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
    /// Offset of the head of the current frame.
    frame: usize,
    remembered: u32,
    /// Modules of the classes that were written.
    modules: Vec<(&'static str, Memo)>,
    classes: [Option<Memo>; Class::ALL.len()],
    utc: Option<Memo>,
}

impl Writer {
    /// Starts a pickle of about this length.
    pub fn with_capacity(length: usize) -> Self {
        let mut out = Vec::with_capacity(length);
        out.extend([opcode::PROTO, PROTOCOL]);
        let mut writer = Self {
            out,
            frame: 0,
            remembered: 0,
            modules: Vec::new(),
            classes: [None; Class::ALL.len()],
            utc: None,
        };
        writer.begin_frame();
        writer
    }

    /// Ends the pickle, which must contain exactly one item, and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(opcode::STOP);
        self.end_frame();
        self.out
    }

    /// Writes `None`.
    pub fn none(&mut self) {
        self.item(opcode::NONE);
    }

    /// Writes a boolean.
    pub fn bool(&mut self, truth: bool) {
        self.item(if truth {
            opcode::NEWTRUE
        } else {
            opcode::NEWFALSE
        });
    }

    /// Writes an integer in the shortest form.
    pub fn int(&mut self, number: i128) {
        if let Ok(small) = u8::try_from(number) {
            self.item(opcode::BININT1);
            self.out.push(small);
        } else if let Ok(middling) = u16::try_from(number) {
            self.item(opcode::BININT2);
            self.out.extend(middling.to_le_bytes());
        } else if let Ok(signed) = i32::try_from(number) {
            self.item(opcode::BININT);
            self.out.extend(signed.to_le_bytes());
        } else {
            let significant = i128::BITS - number.unsigned_abs().leading_zeros();
            // The lowest number of a length is a power of two and needs no additional bit for its
            // sign.
            let lowest = number < 0 && number.unsigned_abs().is_power_of_two();
            let bits = significant + u32::from(!lowest);
            let length = bits.div_ceil(8).min(i128::BITS / 8) as u8;
            self.item(opcode::LONG1);
            self.out.push(length);
            self.out
                .extend_from_slice(&number.to_le_bytes()[..usize::from(length)]);
        }
    }

    /// Writes a text and remembers it.
    pub fn text(&mut self, text: &str) -> Memo {
        self.sized(
            opcode::SHORT_BINUNICODE,
            opcode::BINUNICODE,
            text.as_bytes(),
        )
    }

    /// Writes a text on its first use, and recalls it from `memo` afterwards.
    pub fn name(&mut self, text: &str, memo: &mut Option<Memo>) {
        match *memo {
            Some(memo) => self.recall(memo),
            None => *memo = Some(self.text(text)),
        }
    }

    /// Writes bytes and remembers them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Memo {
        self.sized(opcode::SHORT_BINBYTES, opcode::BINBYTES, bytes)
    }

    /// Writes a reference to a remembered item.
    pub fn recall(&mut self, Memo(number): Memo) {
        match u8::try_from(number) {
            Ok(small) => {
                self.item(opcode::BINGET);
                self.out.push(small);
            }
            Err(_) => {
                self.item(opcode::LONG_BINGET);
                self.out.extend(number.to_le_bytes());
            }
        }
    }

    /// Writes a dict. `write` writes the key and then the value of one pair.
    pub fn dict<T>(
        &mut self,
        pairs: impl ExactSizeIterator<Item = T>,
        write: impl FnMut(&mut Self, T),
    ) {
        self.item(opcode::EMPTY_DICT);
        self.remember();
        let single = (pairs.len() == 1).then_some(opcode::SETITEM);
        self.batches(pairs, single, opcode::SETITEMS, write);
    }

    /// Writes a set. `write` writes one item.
    pub fn set<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        write: impl FnMut(&mut Self, T),
    ) {
        self.item(opcode::EMPTY_SET);
        self.remember();
        self.batches(items, None, opcode::ADDITEMS, write);
    }

    /// Writes an instance without attributes and remembers it.
    ///
    /// A dict and [`Writer::build`] must follow.
    pub fn object(&mut self, class: Class) -> Memo {
        self.class(class);
        self.item(opcode::EMPTY_TUPLE);
        self.out.push(opcode::NEWOBJ);
        self.remember()
    }

    /// Gives an instance the attributes in the dict that was written after it.
    pub fn build(&mut self) {
        self.out.push(opcode::BUILD);
    }

    /// Writes a date with a time of day.
    pub fn time(&mut self, time: Time) {
        self.class(Class::Datetime);
        self.bytes(&time.bytes());
        match time.zone {
            None => self.out.push(opcode::TUPLE1),
            Some(offset) => {
                self.zone(offset);
                self.out.push(opcode::TUPLE2);
            }
        }
        self.called();
    }

    fn class(&mut self, class: Class) {
        if let Some(memo) = self.classes[class as usize] {
            return self.recall(memo);
        }
        let module = class.module();
        let known = self.modules.iter().find(|(name, _)| *name == module);
        match known.map(|(_, memo)| *memo) {
            Some(memo) => self.recall(memo),
            None => {
                let memo = self.text(module);
                self.modules.push((module, memo));
            }
        }
        self.text(class.name());
        self.out.push(opcode::STACK_GLOBAL);
        self.classes[class as usize] = Some(self.remember());
    }

    fn zone(&mut self, offset: i64) {
        if offset == 0
            && let Some(memo) = self.utc
        {
            return self.recall(memo);
        }
        self.class(Class::Timezone);
        self.span(offset.into());
        self.out.push(opcode::TUPLE1);
        let memo = self.called();
        if offset == 0 {
            self.utc = Some(memo);
        }
    }

    fn span(&mut self, micros: i128) {
        self.class(Class::Timedelta);
        let within_the_day = micros.rem_euclid(DAY);
        self.int(micros.div_euclid(DAY));
        self.int(within_the_day / 1_000_000);
        self.int(within_the_day % 1_000_000);
        self.out.push(opcode::TUPLE3);
        self.called();
    }

    /// Writes a call with the tuple on the stack; remembers the tuple and result.
    fn called(&mut self) -> Memo {
        self.remember();
        self.out.push(opcode::REDUCE);
        self.remember()
    }

    fn sized(&mut self, short: u8, long: u8, bytes: &[u8]) -> Memo {
        // Only the address of a node can be long, and a state is far from 4 GiB.
        match u8::try_from(bytes.len()) {
            Ok(length) => {
                self.item(short);
                self.out.push(length);
            }
            Err(_) => {
                self.item(long);
                let length = u32::try_from(bytes.len()).expect("no text of 4 GiB");
                self.out.extend(length.to_le_bytes());
            }
        }
        self.out.extend_from_slice(bytes);
        self.remember()
    }

    fn batches<T>(
        &mut self,
        mut items: impl ExactSizeIterator<Item = T>,
        single: Option<u8>,
        several: u8,
        mut write: impl FnMut(&mut Self, T),
    ) {
        while items.len() > 0 {
            if single.is_none() {
                self.out.push(opcode::MARK);
            }
            for item in items.by_ref().take(BATCH) {
                write(self, item);
            }
            self.out.push(single.unwrap_or(several));
        }
    }

    /// Starts an item with its instruction. Frames end between items.
    fn item(&mut self, instruction: u8) {
        if self.out.len() - self.frame - FRAME_HEAD >= FRAME_TARGET {
            self.end_frame();
            self.begin_frame();
        }
        self.out.push(instruction);
    }

    fn remember(&mut self) -> Memo {
        self.out.push(opcode::MEMOIZE);
        let memo = Memo(self.remembered);
        self.remembered += 1;
        memo
    }

    fn begin_frame(&mut self) {
        self.frame = self.out.len();
        self.out.push(opcode::FRAME);
        self.out.extend([0; FRAME_HEAD - 1]);
    }

    fn end_frame(&mut self) {
        let length = (self.out.len() - self.frame - FRAME_HEAD) as u64;
        self.out[self.frame + 1..self.frame + FRAME_HEAD].copy_from_slice(&length.to_le_bytes());
    }
}
