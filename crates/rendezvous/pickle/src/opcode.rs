//! Instructions that occur in the state of a rendezvous, for protocols 4 and 5.
//!
//! Other instructions that name classes, call by keyword, or build instances are absent on purpose:
//! the machine refuses every unlisted instruction. Some plain data does not occur today, but is
//! listed for attributes of later PyTorch releases: floats, lists, longer tuples and long bytes.

/// Version of the format; one byte follows.
pub const PROTO: u8 = 0x80;
/// Length of the next bytes that can be read together; eight bytes follow.
pub const FRAME: u8 = 0x95;
/// End; the result is on the stack.
pub const STOP: u8 = b'.';

/// Beginning of a sequence of items.
pub const MARK: u8 = b'(';
/// Remembers the top of the stack under the next number.
pub const MEMOIZE: u8 = 0x94;
/// Pushes a remembered item; number in one byte.
pub const BINGET: u8 = b'h';
/// Pushes a remembered item; number in four bytes.
pub const LONG_BINGET: u8 = b'j';

/// Pushes `None`.
pub const NONE: u8 = b'N';
/// Pushes `True`.
pub const NEWTRUE: u8 = 0x88;
/// Pushes `False`.
pub const NEWFALSE: u8 = 0x89;
/// Integer of one unsigned byte.
pub const BININT1: u8 = b'K';
/// Integer of two unsigned bytes.
pub const BININT2: u8 = b'M';
/// Integer of four signed bytes.
pub const BININT: u8 = b'J';
/// Integer of up to 255 signed bytes; the length comes first, in one byte.
pub const LONG1: u8 = 0x8a;
/// Float of eight bytes, big-endian.
pub const BINFLOAT: u8 = b'G';
/// Text; length in one byte.
pub const SHORT_BINUNICODE: u8 = 0x8c;
/// Text; length in four bytes.
pub const BINUNICODE: u8 = b'X';
/// Bytes; length in one byte.
pub const SHORT_BINBYTES: u8 = b'C';
/// Bytes; length in four bytes.
pub const BINBYTES: u8 = b'B';

/// Empty tuple.
pub const EMPTY_TUPLE: u8 = b')';
/// Tuple of one item.
pub const TUPLE1: u8 = 0x85;
/// Tuple of two items.
pub const TUPLE2: u8 = 0x86;
/// Tuple of three items.
pub const TUPLE3: u8 = 0x87;
/// Tuple of the items since the mark.
pub const TUPLE: u8 = b't';
/// Empty list.
pub const EMPTY_LIST: u8 = b']';
/// Appends one item to the list below it.
pub const APPEND: u8 = b'a';
/// Appends the items since the mark to the list below it.
pub const APPENDS: u8 = b'e';
/// Empty dict.
pub const EMPTY_DICT: u8 = b'}';
/// Sets one key of the dict below it.
pub const SETITEM: u8 = b's';
/// Sets the keys since the mark in the dict below it.
pub const SETITEMS: u8 = b'u';
/// Empty set.
pub const EMPTY_SET: u8 = 0x8f;
/// Adds the items since the mark to the set below it.
pub const ADDITEMS: u8 = 0x90;

/// Class whose module and name are on the stack.
pub const STACK_GLOBAL: u8 = 0x93;
/// Instance of the class on the stack, created with the tuple above it.
pub const NEWOBJ: u8 = 0x81;
/// Calls the item on the stack with the tuple above it.
pub const REDUCE: u8 = b'R';
/// Gives the instance on the stack the attributes in the dict above it.
pub const BUILD: u8 = b'b';
