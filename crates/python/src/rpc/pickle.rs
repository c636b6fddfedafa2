//! Check of a pickle before Python reads it.
//!
//! The check finds every name in the pickle, and refuses operations that Python's pickler does not
//! write in protocols 4 and 5. Names in older operations are hard to follow. Numbered slots of the
//! memo cost memory that was never sent. The check builds no object.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Maximum nesting depth of values.
const DEPTH: usize = 1000;

/// Value on the stack, with the data that the check needs.
#[derive(Clone, Copy)]
struct Value<'a> {
    text: Option<&'a str>,
    depth: usize,
    /// `true` for a class or function itself, which must not be changed.
    is_name: bool,
}

impl Value<'_> {
    const PLAIN: Self = Value {
        text: None,
        depth: 1,
        is_name: false,
    };
}

/// Pickle that is being checked.
#[derive(Default)]
struct Scan<'a> {
    left: &'a [u8],
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    names: Vec<(&'a str, &'a str)>,
    buffers: usize,
}

type Scanned<T> = Result<T, &'static str>;

/// Returns the names of all classes and functions in a pickle.
///
/// Each is a pair of module and name. Raises ValueError if the data is not a pickle of protocol 4
/// or 5, has wrong lengths, is nested too deep, or needs more buffers than `buffers`.
#[pyfunction]
pub(super) fn pickle_globals(data: &[u8], buffers: usize) -> PyResult<Vec<(String, String)>> {
    let mut scan = Scan {
        left: data,
        ..Scan::default()
    };
    let refused = |why| PyValueError::new_err(format!("cannot accept the pickle: {why}"));
    scan.run().map_err(refused)?;
    if scan.buffers > buffers {
        return Err(refused("it needs more buffers than arrived with it"));
    }
    let names = scan.names.into_iter();
    Ok(names
        .map(|(module, name)| (module.to_owned(), name.to_owned()))
        .collect())
}

impl<'a> Scan<'a> {
    fn run(&mut self) -> Scanned<()> {
        if !matches!(self.left, [0x80, 4 | 5, ..]) {
            return Err("it does not use protocol 4 or 5");
        }
        loop {
            match self.byte()? {
                0x80 => self.skip(1)?,                                // PROTO
                0x95 => drop(self.number(8)?),                        // FRAME
                b'.' => break,                                        // STOP
                b'N' | 0x88 | 0x89 => self.push(Value::PLAIN),        // NONE, NEWTRUE, NEWFALSE
                b'K' => self.plain(1)?,                               // BININT1
                b'M' => self.plain(2)?,                               // BININT2
                b'J' => self.plain(4)?,                               // BININT
                b'G' => self.plain(8)?,                               // BINFLOAT
                0x8a | b'C' => self.counted(1)?,                      // LONG1, SHORT_BINBYTES
                0x8b | b'B' => self.counted(4)?,                      // LONG4, BINBYTES
                0x8e | 0x96 => self.counted(8)?,                      // BINBYTES8, BYTEARRAY8
                0x8c => self.text(1)?,                                // SHORT_BINUNICODE
                b'X' => self.text(4)?,                                // BINUNICODE
                0x8d => self.text(8)?,                                // BINUNICODE8
                b')' | b']' | b'}' | 0x8f => self.push(Value::PLAIN), // EMPTY_TUPLE, _LIST, _DICT, _SET
                0x85 => self.fold(1)?,                                // TUPLE1
                0x86 => self.fold(2)?,                                // TUPLE2
                0x87 => self.fold(3)?,                                // TUPLE3
                b't' | 0x91 => {
                    // TUPLE, FROZENSET
                    let depth = self.cut_at_mark()?;
                    self.push_deeper(depth)?;
                }
                b'a' => self.add_to_last(1)?, // APPEND
                b's' => self.add_to_last(2)?, // SETITEM
                b'e' | b'u' | 0x90 => {
                    // APPENDS, SETITEMS, ADDITEMS
                    let depth = self.cut_at_mark()?;
                    self.deepen(depth)?;
                }
                b'(' => self.marks.push(self.stack.len()), // MARK
                b'0' => drop(self.pop()?),                 // POP
                b'1' => drop(self.cut_at_mark()?),         // POP_MARK
                0x94 => self.memo.push(
                    *self
                        .stack
                        .last()
                        .ok_or("it stores a value that does not exist")?,
                ), // MEMOIZE
                b'h' => self.recall(1)?,                   // BINGET
                b'j' => self.recall(4)?,                   // LONG_BINGET
                0x93 => self.name()?,                      // STACK_GLOBAL
                b'R' | 0x81 => self.fold(2)?,              // REDUCE, NEWOBJ
                0x92 => self.fold(3)?,                     // NEWOBJ_EX
                b'b' => self.add_to_last(1)?,              // BUILD
                0x97 => {
                    // NEXT_BUFFER
                    self.buffers += 1;
                    self.push(Value::PLAIN);
                }
                0x98 => {} // READONLY_BUFFER
                _ => return Err("it has an operation that Python's pickler does not write"),
            }
        }
        match (self.left, &*self.stack, &*self.marks) {
            ([], [_], []) => Ok(()),
            ([_, ..], ..) => Err("it has bytes after its end"),
            _ => Err("it does not produce exactly one value"),
        }
    }

    fn take(&mut self, count: usize) -> Scanned<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(count).ok_or("it is truncated")?;
        self.left = left;
        Ok(taken)
    }

    fn skip(&mut self, count: usize) -> Scanned<()> {
        self.take(count).map(drop)
    }

    fn byte(&mut self) -> Scanned<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self, bytes: usize) -> Scanned<usize> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(number)).map_err(|_| "a length is too large")
    }

    fn push(&mut self, value: Value<'a>) {
        self.stack.push(value);
    }

    fn pop(&mut self) -> Scanned<Value<'a>> {
        if self
            .marks
            .last()
            .is_some_and(|mark| self.stack.len() <= *mark)
        {
            return Err("it pops a value from before a mark");
        }
        self.stack
            .pop()
            .ok_or("it pops a value from an empty stack")
    }

    fn plain(&mut self, bytes: usize) -> Scanned<()> {
        self.skip(bytes)?;
        self.push(Value::PLAIN);
        Ok(())
    }

    fn counted(&mut self, bytes: usize) -> Scanned<()> {
        let length = self.number(bytes)?;
        self.plain(length)
    }

    fn text(&mut self, bytes: usize) -> Scanned<()> {
        let length = self.number(bytes)?;
        let text = std::str::from_utf8(self.take(length)?).ok();
        self.push(Value {
            text,
            ..Value::PLAIN
        });
        Ok(())
    }

    /// Removes the last mark and the values after it, and returns their depth.
    fn cut_at_mark(&mut self) -> Scanned<usize> {
        let mark = self.marks.pop().ok_or("it has no mark")?;
        let behind = self.stack.get(mark..).ok_or("a mark is beyond the stack")?;
        let depth = behind.iter().map(|value| value.depth).max();
        self.stack.truncate(mark);
        Ok(depth.unwrap_or_default())
    }

    fn push_deeper(&mut self, depth: usize) -> Scanned<()> {
        if depth >= DEPTH {
            return Err("it is nested too deeply");
        }
        self.push(Value {
            depth: depth + 1,
            ..Value::PLAIN
        });
        Ok(())
    }

    /// Takes the last `count` values, and returns the greatest depth.
    fn deepest(&mut self, count: usize) -> Scanned<usize> {
        (0..count).try_fold(0, |depth, _| Ok(self.pop()?.depth.max(depth)))
    }

    /// Replaces the last `count` values by one value.
    fn fold(&mut self, count: usize) -> Scanned<()> {
        let depth = self.deepest(count)?;
        self.push_deeper(depth)
    }

    /// Puts the last `count` values into the value before them.
    fn add_to_last(&mut self, count: usize) -> Scanned<()> {
        let depth = self.deepest(count)?;
        self.deepen(depth)
    }

    fn deepen(&mut self, depth: usize) -> Scanned<()> {
        if depth >= DEPTH {
            return Err("it is nested too deeply");
        }
        let last = self
            .stack
            .last_mut()
            .ok_or("it adds to a value that does not exist")?;
        if last.is_name {
            return Err("it changes a class or a function");
        }
        last.text = None;
        last.depth = last.depth.max(depth + 1);
        Ok(())
    }

    fn recall(&mut self, bytes: usize) -> Scanned<()> {
        let number = self.number(bytes)?;
        let value = self.memo.get(number).copied();
        self.push(value.ok_or("it uses a value that was not stored")?);
        Ok(())
    }

    fn name(&mut self) -> Scanned<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Some(module), Some(name)) = (module.text, name.text) else {
            return Err("it has a name that is not a string");
        };
        self.names.push((module, name));
        self.push(Value {
            is_name: true,
            ..Value::PLAIN
        });
        Ok(())
    }
}
