//! The instructions that occur in the state of a rendezvous, for protocols 4 and 5.
//!
//! Instructions that name classes in another way, call by keyword, or build instances otherwise are
//! absent on purpose: what is not listed is refused. The plain data that PyTorch does not use today
//! (floats, lists, longer tuples and bytes) is there for attributes of a later release.

/// Version of the format; one byte follows.
pub const PROTO: u8 = 0x80;
/// Length of what can be read at once; eight bytes follow.
pub const FRAME: u8 = 0x95;
/// End; the result is on the stack.
pub const STOP: u8 = b'.';

/// Beginning of a run of items.
pub const MARK: u8 = b'(';
/// Remembers the top of the stack under the next number.
pub const MEMOIZE: u8 = 0x94;
/// Pushes what was remembered; number in one byte.
pub const BINGET: u8 = b'h';
/// Pushes what was remembered; number in four bytes.
pub const LONG_BINGET: u8 = b'j';

/// None.
pub const NONE: u8 = b'N';
/// True.
pub const NEWTRUE: u8 = 0x88;
/// False.
pub const NEWFALSE: u8 = 0x89;
/// Integer of one unsigned byte.
pub const BININT1: u8 = b'K';
/// Integer of two unsigned bytes.
pub const BININT2: u8 = b'M';
/// Integer of four signed bytes.
pub const BININT: u8 = b'J';
/// Integer of up to 255 signed bytes; their number in one byte.
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

/// The tuple of nothing.
pub const EMPTY_TUPLE: u8 = b')';
/// The tuple of one item.
pub const TUPLE1: u8 = 0x85;
/// The tuple of two items.
pub const TUPLE2: u8 = 0x86;
/// The tuple of three items.
pub const TUPLE3: u8 = 0x87;
/// The tuple of the items since the mark.
pub const TUPLE: u8 = b't';
/// A list.
pub const EMPTY_LIST: u8 = b']';
/// Appends one item to the list below it.
pub const APPEND: u8 = b'a';
/// Appends the items since the mark to the list below it.
pub const APPENDS: u8 = b'e';
/// A dict.
pub const EMPTY_DICT: u8 = b'}';
/// Sets one key of the dict below it.
pub const SETITEM: u8 = b's';
/// Sets the keys since the mark in the dict below it.
pub const SETITEMS: u8 = b'u';
/// A set.
pub const EMPTY_SET: u8 = 0x8f;
/// Adds the items since the mark to the set below it.
pub const ADDITEMS: u8 = 0x90;

/// The class whose module and name are on the stack.
pub const STACK_GLOBAL: u8 = 0x93;
/// An instance of the class on the stack, made with the tuple above it.
pub const NEWOBJ: u8 = 0x81;
/// Calls what is on the stack with the tuple above it.
pub const REDUCE: u8 = b'R';
/// Gives the instance on the stack the attributes in the dict above it.
pub const BUILD: u8 = b'b';
